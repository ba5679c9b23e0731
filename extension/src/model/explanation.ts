/** As in alpaviz/plan_explanation.py. */

export type FragmentKind = 'text' | 'seconds' | 'bytes' | 'share' | 'count' | 'op' | 'stage' | 'code';

export interface Fragment {
  kind: FragmentKind;
  text: string;
  value: number | null;
}

export interface Sentence {
  stage: number | null;
  fragments: Fragment[];
}
