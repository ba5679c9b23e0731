/** Alternatives of an op with what each really costs, once that is known. */
import type { Alternative } from '../model/planner-state';
import type { Regret } from '../model/variants';
import { formatBytes, formatPercent } from './format';

export interface ExactCost {
  /** Share of a step that it takes longer; null where nothing fits. */
  share: number | null;
  delta_s: number | null;
  /** Bytes on each device against the strategy that is chosen; null where either is not known. */
  delta_bytes: number | null;
  stage_bytes: number | null;
  /** How far, at most, the time is above the optimum; 0 where it is the optimum. */
  gap: number;
}

export interface RankedAlternative {
  alternative: Alternative;
  /** Null where it is not known. */
  exact: ExactCost | null;
}

const LAST = Number.POSITIVE_INFINITY;

/** By exact cost where `regrets` are known, else in the order of `alternatives`. What never fits is last. */
export function rankAlternatives(
  alternatives: readonly Alternative[],
  regrets: readonly Regret[] | null,
  step_s: number,
): RankedAlternative[] {
  if (regrets === null) return alternatives.map((alternative) => ({ alternative, exact: null }));
  const byStrategy = new Map(regrets.map((regret) => [regret.strategy, regret]));
  const now = regrets.find((regret) => regret.is_chosen)?.stage_bytes ?? null;
  const ranked = alternatives.map((alternative) => {
    const regret = byStrategy.get(alternative.strategy);
    return { alternative, exact: regret === undefined ? null : measureRegret(regret, now, step_s) };
  });
  const cost = ({ exact }: RankedAlternative): number => exact?.delta_s ?? LAST;
  return ranked.sort((a, b) => (cost(a) === cost(b) ? 0 : cost(a) - cost(b)));
}

function measureRegret(regret: Regret, now: number | null, step_s: number): ExactCost {
  const { delta_s, stage_bytes, gap } = regret;
  return {
    share: delta_s === null ? null : delta_s / (step_s || 1),
    delta_s,
    delta_bytes: stage_bytes === null || now === null ? null : stage_bytes - now,
    stage_bytes,
    gap,
  };
}

/** `+3.2 %`, `−0.41 %`, `±0`: with two digits below one percent, where most regrets are. */
export function formatShareDelta(share: number): string {
  const percent = Math.abs(share) * 100;
  if (percent < 5e-4) return '±0';
  const text = percent < 0.005 ? '<0.01' : String(Number(percent.toFixed(percent < 1 ? 2 : percent < 10 ? 1 : 0)));
  return `${share > 0 ? '+' : '\u2212'}${text}\u202f%`;
}

/** `+1.1 GB`, `±0`. */
export function formatBytesDelta(bytes: number): string {
  if (Math.abs(bytes) < 1) return '±0';
  return `${bytes > 0 ? '+' : '\u2212'}${formatBytes(Math.abs(bytes))}`;
}

/** `+3.2 %, memory −1.1 GB`: what forcing a strategy does to the step. */
export function wordExactCost(exact: ExactCost): string {
  if (exact.share === null) return 'nothing fits';
  const gap = exact.gap > 0 ? `, at most ${formatPercent(exact.gap)} above the optimum` : '';
  const memory = exact.delta_bytes === null ? '' : `, memory ${formatBytesDelta(exact.delta_bytes)}`;
  return `step ${formatShareDelta(exact.share)}${gap}${memory}`;
}

/** How much longer the present plan takes in its stage than the optimum of `regrets`, as a share; 0 where it is it. */
export function measureExcess(regrets: readonly Regret[], stage_s: number): number {
  const times = regrets.map((regret) => regret.stage_s).filter((time) => time !== null);
  const best = Math.min(...times);
  return Number.isFinite(best) && best > 0 ? stage_s / best - 1 : 0;
}
