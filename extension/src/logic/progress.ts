/** What the header says of a running solve. */
import type { SolveProgress } from '../model/planner-state';
import { formatCount, formatPercent, formatSeconds } from './format';

/** Facts in reading order: units done, the step so far, the stage solve that runs, seconds since the beginning. */
export function listProgressFacts(progress: SolveProgress): string[] {
  const stage = listQuality('incumbent', progress.stage_objective, progress.stage_bound);
  return [
    `${formatCount(progress.done)} of ${formatCount(progress.total)}`,
    ...listQuality('best step so far', progress.objective, progress.bound),
    ...(stage.length > 0 ? [`stage solve: ${stage.join(', ')}`] : []),
    `${progress.elapsed_s.toFixed(1)} s`,
  ];
}

function listQuality(name: string, objective: number | null, bound: number | null): string[] {
  const facts: string[] = [];
  if (objective !== null) facts.push(`${name} ${formatSeconds(objective)}`);
  if (bound !== null) facts.push(`bound ${formatSeconds(bound)}`);
  // Without a positive incumbent there is nothing to relate the gap to.
  if (objective !== null && bound !== null && objective > 0) {
    facts.push(`gap ${formatPercent(Math.max(0, 1 - bound / objective))}`);
  }
  return facts;
}
