/** Time against memory of a stage: where the points of a front are drawn, and what is said of each. */
import type { OfferedVariant, OfferedVariants } from '../model/variants';
import { formatBytes, formatSeconds } from './format';
import { formatShareDelta } from './regrets';
import { listTicks } from './schedule';

/** Key of the plan that variants were asked of. */
export const PRESENT = 'present';

export interface FrontPoint {
  variant: OfferedVariant;
  x: number;
  y: number;
  isNow: boolean;
}

export interface FrontLayout {
  points: FrontPoint[];
  /** Where the plan that was asked about is. */
  present: { x: number; y: number };
  /** SVG path: time stays until the memory of the next point is there. */
  steps: string;
  /** Where the memory that a plan may use ends; null where that is beyond the chart. */
  limitX: number | null;
  ticksX: { at: number; text: string }[];
  ticksY: { at: number; text: string }[];
}

export interface Frame {
  left: number;
  top: number;
  right: number;
  bottom: number;
}

/** `now` is the key of the variant that the plan is. */
export function isNow(variant: OfferedVariant, now: string): boolean {
  if (variant.key === now) return true;
  return now === PRESENT && variant.num_differences === 0;
}

/** Scales in which `values` fill `from` .. `to` but for a margin. */
function makeScale(
  values: readonly number[],
  from: number,
  to: number,
): { low: number; high: number; map: (v: number) => number } {
  const least = Math.min(...values);
  const most = Math.max(...values);
  const margin = (most - least) * 0.07 || Math.abs(most) * 0.05 || 1;
  const low = Math.max(0, least - margin);
  const high = most + margin;
  return { low, high, map: (value) => from + ((value - low) / (high - low)) * (to - from) };
}

export function layoutFront(offered: OfferedVariants, now: string, frame: Frame): FrontLayout {
  const shown = [...offered.variants].sort((a, b) => a.stage_bytes - b.stage_bytes);
  const all = [...shown, offered.present];
  const x = makeScale(
    all.map((v) => v.stage_bytes),
    frame.left,
    frame.right,
  );
  const y = makeScale(
    all.map((v) => v.stage_s),
    frame.bottom,
    frame.top,
  );
  const points = shown.map((variant) => ({
    variant,
    x: x.map(variant.stage_bytes),
    y: y.map(variant.stage_s),
    isNow: isNow(variant, now),
  }));
  const steps = points.map((p, i) => (i === 0 ? `M${p.x} ${p.y}` : `H${p.x}V${p.y}`)).join('');
  const limit = offered.limit_bytes;
  return {
    points,
    present: { x: x.map(offered.present.stage_bytes), y: y.map(offered.present.stage_s) },
    steps,
    limitX: limit < x.high ? Math.max(frame.left, x.map(limit)) : null,
    ticksX: listTicks(x.low, x.high, 5).map((v) => ({ at: x.map(v), text: formatBytes(v) })),
    ticksY: listTicks(y.low, y.high, 4).map((v) => ({ at: y.map(v), text: formatSeconds(v) })),
  };
}

/** `7.4 GB a device, 144 ms a microbatch, step +3.2 %`, and what is special. */
export function wordVariant(variant: OfferedVariant, present: OfferedVariant): string {
  const step = formatShareDelta(variant.step_s / (present.step_s || 1) - 1);
  const parts = [
    `${formatBytes(variant.stage_bytes)} a device`,
    `${formatSeconds(variant.stage_s)} a microbatch`,
    `step ${step}`,
  ];
  if (!variant.fits) parts.push('more than a plan may use of a device');
  return parts.join(', ');
}
