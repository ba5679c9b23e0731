import { describe, expect, it } from 'vitest';
import { keepAnswers, NO_ANSWERS } from '../src/logic/answers';
import { findTarget, groupSentences } from '../src/logic/explanation';
import { indexPlan } from '../src/logic/plan-index';
import { formatShareDelta, measureExcess, rankAlternatives, wordExactCost } from '../src/logic/regrets';
import { type AppState, initialState, reduce, type Selection } from '../src/logic/store';
import type { Fragment, Sentence } from '../src/model/explanation';
import type { Alternative } from '../src/model/planner-state';
import type { OfferedVariants, Regret } from '../src/model/variants';
import { makePlan } from './plan';

const plain = (text: string): string => text.replaceAll('\u202f', ' ');

function makeAlternative(strategy: string, change: Partial<Alternative> = {}): Alternative {
  return {
    strategy,
    compute_s: 1,
    communication_s: 0,
    memory_bytes: 1e9,
    delta_s: 0,
    is_chosen: false,
    is_pinned: false,
    input_specs: [],
    output_specs: [],
    ...change,
  };
}

function makeRegret(strategy: string, delta_s: number | null, change: Partial<Regret> = {}): Regret {
  return {
    strategy,
    stage_s: delta_s === null ? null : 2 + delta_s,
    delta_s,
    share: delta_s,
    is_chosen: false,
    is_exact: true,
    gap: 0,
    stage_bytes: delta_s === null ? null : 5e9,
    ...change,
  };
}

const ALTERNATIVES = ['b:x', 'n:y', 'k:y', 'never'].map((s) => makeAlternative(s, { is_chosen: s === 'b:x' }));
const REGRETS = [
  makeRegret('b:x', 0, { is_chosen: true }),
  makeRegret('never', null),
  makeRegret('n:y', 0.4, { stage_bytes: 4e9 }),
  makeRegret('k:y', 0.1, { gap: 0.02, is_exact: false }),
];

describe('exact regrets', () => {
  it('order the alternatives, what never fits last', () => {
    const ranked = rankAlternatives(ALTERNATIVES, REGRETS, 10);
    expect(ranked.map(({ alternative }) => alternative.strategy)).toEqual(['b:x', 'k:y', 'n:y', 'never']);
  });

  it('leave the order while they are not known', () => {
    const ranked = rankAlternatives(ALTERNATIVES, null, 10);
    expect(ranked.map(({ alternative, exact }) => [alternative.strategy, exact])).toEqual(
      ALTERNATIVES.map(({ strategy }) => [strategy, null]),
    );
  });

  it('are shares of a step, memory against the chosen strategy', () => {
    const found = rankAlternatives(ALTERNATIVES, REGRETS, 10).find((r) => r.alternative.strategy === 'n:y');
    expect(found?.exact).toEqual({ share: 0.04, delta_s: 0.4, delta_bytes: -1e9, stage_bytes: 4e9, gap: 0 });
  });

  it('may lack a strategy', () => {
    const ranked = rankAlternatives([makeAlternative('new')], REGRETS, 10);
    expect(ranked[0]?.exact).toBeNull();
  });

  it.each([
    ['n:y', 'step +4 %, memory −1 GB'],
    ['k:y', 'step +1 %, at most 2 % above the optimum, memory ±0'],
    ['b:x', 'step ±0, memory ±0'],
    ['never', 'nothing fits'],
  ])('of %s are worded %s', (strategy, text) => {
    const found = rankAlternatives(ALTERNATIVES, REGRETS, 10).find((r) => r.alternative.strategy === strategy);
    expect(found?.exact && plain(wordExactCost(found.exact))).toBe(text);
  });

  it('tell how far the plan is from the best of its stage', () => {
    expect(measureExcess(REGRETS, 2)).toBe(0);
    expect(measureExcess(REGRETS, 2.1)).toBeCloseTo(0.05);
    expect(measureExcess([makeRegret('never', null)], 2)).toBe(0);
  });

  it.each([
    [0.0321, '+3.2 %'],
    [-0.5, '−50 %'],
    [0.0013, '+0.13 %'],
    [0.00001, '+<0.01 %'],
    [0, '±0'],
  ])('%d of a step is %s', (share, text) => expect(plain(formatShareDelta(share))).toBe(text));
});

describe('explanations', () => {
  const sentence = (stage: number | null, ...fragments: Fragment[]): Sentence => ({ stage, fragments });
  const indexed = indexPlan(makePlan());

  it('are grouped by stage, the plan first', () => {
    const chapters = groupSentences([sentence(null), sentence(0), sentence(1), sentence(0)]);
    expect(chapters.map((chapter) => [chapter.stage, chapter.sentences.length])).toEqual([
      [null, 1],
      [0, 2],
      [1, 1],
    ]);
  });

  it.each([
    [
      { kind: 'op', text: 'block_2/mlp/dot_general.0', value: null },
      { kind: 'op', op: 2 },
    ],
    [{ kind: 'op', text: 'gone', value: null }, null],
    [
      { kind: 'stage', text: 'stage 1', value: 1 },
      { kind: 'stage', stage: 1 },
    ],
    [{ kind: 'stage', text: 'stage 9', value: 9 }, null],
    [{ kind: 'seconds', text: '1 s', value: 1 }, null],
  ] as [Fragment, Selection][])('%j selects %j', (fragment, target) => {
    expect(findTarget(fragment, indexed)).toEqual(target);
  });
});

describe('answers', () => {
  const offered = {} as OfferedVariants;
  const known = (topic: 'front' | 'regrets', state: AppState): AppState =>
    topic === 'front'
      ? reduce(state, { type: 'answer', topic, answer: { subject: 0, state: 'known', value: offered } })
      : reduce(state, {
          type: 'answer',
          topic,
          answer: { subject: 'block_0/mlp/dot_general.0', state: 'known', value: REGRETS },
        });
  const start = reduce(initialState(false), { type: 'plan', plan: makePlan() });
  const selected = known('regrets', reduce(start, { type: 'select', selection: { kind: 'op', op: 0 } }));

  it('are forgotten when another plan comes', () => {
    expect(reduce(known('front', selected), { type: 'plan', plan: makePlan() }).answers).toEqual(NO_ANSWERS);
  });

  it('of variants stay when the plan is one of them', () => {
    const state = known('front', selected);
    const taken = reduce(state, { type: 'status', status: { ...state.status, variant: 'front 3' } });
    const { front, regrets } = reduce(taken, { type: 'plan', plan: makePlan() }).answers;
    expect([front, regrets]).toEqual([state.answers.front, null]);
  });

  it('on regrets stay with their op only', () => {
    const same = reduce(selected, { type: 'select', selection: { kind: 'op', op: 0 } });
    expect(same.answers.regrets).not.toBeNull();
    expect(reduce(selected, { type: 'select', selection: { kind: 'op', op: 1 } }).answers.regrets).toBeNull();
  });

  it('are kept by topic', () => {
    expect(keepAnswers(known('front', start).answers, 'present').front?.state).toBe('known');
  });
});
