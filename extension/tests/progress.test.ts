import { expect, test } from 'vitest';
import { listProgressFacts } from '../src/logic/progress';
import type { SolveProgress } from '../src/model/planner-state';

const PROGRESS: SolveProgress = {
  phase: 'solving stages',
  done: 3,
  total: 7,
  objective: null,
  bound: null,
  elapsed_s: 1.25,
  stage_objective: null,
  stage_bound: null,
};

test('the stage solve that runs is told with incumbent, bound and gap', () => {
  const facts = listProgressFacts({ ...PROGRESS, stage_objective: 0.0123, stage_bound: 0.0121 });
  expect(facts[1]?.replaceAll('\u202f', ' ')).toBe('stage solve: incumbent 12.3 ms, bound 12.1 ms, gap 1.6 %');
});

test('nothing is said of a stage solve that has neither incumbent nor bound', () => {
  expect(listProgressFacts(PROGRESS).join()).not.toContain('stage solve');
});
