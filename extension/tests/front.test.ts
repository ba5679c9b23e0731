import { describe, expect, it } from 'vitest';
import { isNow, layoutFront, PRESENT, wordVariant } from '../src/logic/front';
import type { OfferedVariant, OfferedVariants } from '../src/model/variants';

const plain = (text: string): string => text.replaceAll('\u202f', ' ');
const FRAME = { left: 60, top: 10, right: 500, bottom: 200 };

function makeVariant(key: string, stage_s: number, gigabytes: number, change: Partial<OfferedVariant> = {}) {
  return {
    key,
    stage_s,
    stage_bytes: gigabytes * 1e9,
    step_s: 16 * stage_s,
    is_optimal: true,
    fits: true,
    num_differences: 1,
    differences: [],
    ...change,
  };
}

const OFFERED: OfferedVariants = {
  stage: 0,
  limit_bytes: 12e9,
  present: makeVariant(PRESENT, 0.1, 10, { num_differences: 0 }),
  variants: [
    makeVariant('front 0', 0.14, 6),
    makeVariant('front 1', 0.12, 8),
    makeVariant('front 2', 0.1, 10, { num_differences: 0 }),
    makeVariant('front 3', 0.09, 14, { fits: false }),
  ],
};

describe('a front', () => {
  it('goes right with memory and down with time, inside its frame', () => {
    const { points } = layoutFront(OFFERED, PRESENT, FRAME);
    const sorted = (values: number[]): number[] => [...values].sort((a, b) => a - b);
    expect(points.map((p) => p.x)).toEqual(sorted(points.map((p) => p.x)));
    expect(points.map((p) => p.y)).toEqual(sorted(points.map((p) => p.y)));
    for (const { x, y } of points) {
      expect(x > FRAME.left && x < FRAME.right).toBe(true);
      expect(y > FRAME.top && y < FRAME.bottom).toBe(true);
    }
  });

  it('shows the limit where it is between the points', () => {
    const { limitX, points } = layoutFront(OFFERED, PRESENT, FRAME);
    expect(limitX).toBeGreaterThan(points[2]?.x ?? 0);
    expect(limitX).toBeLessThan(points[3]?.x ?? 0);
  });

  it('has no limit where all of it fits', () => {
    expect(layoutFront({ ...OFFERED, limit_bytes: 1e12 }, PRESENT, FRAME).limitX).toBeNull();
  });

  it('may be one point', () => {
    const one = { ...OFFERED, variants: OFFERED.variants.slice(2, 3) };
    const { points, steps } = layoutFront(one, PRESENT, FRAME);
    expect([points[0]?.x, steps]).toEqual([280, 'M280 105']);
  });

  it('has round ticks', () => {
    const { ticksX } = layoutFront(OFFERED, PRESENT, FRAME);
    expect(ticksX.map((tick) => plain(tick.text))).toEqual(['6 GB', '8 GB', '10 GB', '12 GB', '14 GB']);
  });
});

describe('the present plan', () => {
  it.each([
    [PRESENT, 'front 2'],
    ['front 1', 'front 1'],
    ['cheapest 4', undefined],
  ])('%s is the point %s', (now, key) => {
    expect(OFFERED.variants.find((variant) => isNow(variant, now))?.key).toBe(key);
  });
});

describe('a variant in words', () => {
  it.each([
    ['front 0', '6 GB a device, 140 ms a microbatch, step +40 %'],
    ['front 3', '14 GB a device, 90 ms a microbatch, step −10 %, more than a plan may use of a device'],
  ])('%s says time, memory and what is special', (key, words) => {
    const variant = OFFERED.variants.find((v) => v.key === key);
    expect(variant && plain(wordVariant(variant, OFFERED.present))).toBe(words);
  });
});
