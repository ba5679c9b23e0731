/** Sentences of an explanation by what they are about, and what their links select. */
import type { Fragment, Sentence } from '../model/explanation';
import type { IndexedPlan } from './plan-index';
import type { Selection } from './store';

export interface Chapter {
  /** Null for the whole plan. */
  stage: number | null;
  sentences: Sentence[];
}

/** One chapter for the whole plan, then one for each stage, in the order in which they come. */
export function groupSentences(sentences: readonly Sentence[]): Chapter[] {
  const chapters = new Map<number | null, Sentence[]>();
  for (const sentence of sentences) {
    const chapter = chapters.get(sentence.stage);
    if (chapter === undefined) chapters.set(sentence.stage, [sentence]);
    else chapter.push(sentence);
  }
  return [...chapters].map(([stage, found]) => ({ stage, sentences: found }));
}

/** What a click on a fragment selects; null where it is no link or leads nowhere. */
export function findTarget({ kind, text, value }: Fragment, indexed: IndexedPlan): Selection {
  if (kind === 'op') {
    const op = indexed.opByName.get(text);
    return op === undefined ? null : { kind: 'op', op: op.id };
  }
  if (kind === 'stage' && value !== null && indexed.plan.stages[value] !== undefined) {
    return { kind: 'stage', stage: value };
  }
  return null;
}
