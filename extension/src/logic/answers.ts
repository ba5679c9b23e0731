/** Questions that the solver needs seconds for, and what is known of their answers. */
import type { Sentence } from '../model/explanation';
import type { OfferedVariants, Regret } from '../model/variants';

export interface Topics {
  /** Of the op whose name is the subject. */
  regrets: Regret[];
  /** Of the stage whose number is the subject. */
  front: OfferedVariants;
  cheapest: OfferedVariants;
  /** Of the plan; the subject says whether with regrets. */
  explanation: Sentence[];
}
export type Topic = keyof Topics;

export type Answer<T> = { subject: string | number } & (
  | { state: 'asked' }
  | { state: 'refused'; message: string }
  | { state: 'known'; value: T }
);

export type Answers = { readonly [K in Topic]: Answer<Topics[K]> | null };

export type AnswerAction = { [K in Topic]: { type: 'answer'; topic: K; answer: Answer<Topics[K]> | null } }[Topic];

export const NO_ANSWERS: Answers = { regrets: null, front: null, cheapest: null, explanation: null };

/** What still holds when another plan comes: variants, if the plan is one of them (`variant` is its key). */
export function keepAnswers(answers: Answers, variant: string | null): Answers {
  return variant === null ? NO_ANSWERS : { ...answers, regrets: null, explanation: null };
}
