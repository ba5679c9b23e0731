import { describe, expect, it } from 'vitest';
import { listTicks, measureBusy, orderTasks, playSchedule, sumTransfers } from '../src/logic/schedule';

const unit = { forward_s: 1, backward_s: 2, update_s: 0.5 };
const letters = { forward: 'F', backward: 'B', update: 'U' };

function spell(schedule: string, stages: number, microbatches: number): string[] {
  return orderTasks(schedule, stages, microbatches).map((tasks) =>
    tasks.map((task) => `${letters[task.kind]}${task.kind === 'update' ? '' : task.microbatch}`).join(' '),
  );
}

describe('order', () => {
  it('alternates forward and backward in 1f1b after running ahead', () => {
    expect(spell('1f1b', 3, 4)).toEqual([
      'F0 F1 F2 B0 F3 B1 B2 B3 U',
      'F0 F1 B0 F2 B1 F3 B2 B3 U',
      'F0 B0 F1 B1 F2 B2 F3 B3 U',
    ]);
  });

  it('runs all forwards first in gpipe, then backwards from the last', () => {
    expect(spell('gpipe', 2, 3)).toEqual(['F0 F1 F2 B2 B1 B0 U', 'F0 F1 F2 B2 B1 B0 U']);
  });

  it('runs ahead no further than there are microbatches', () => {
    expect(spell('1f1b', 4, 1)).toEqual(['F0 B0 U', 'F0 B0 U', 'F0 B0 U', 'F0 B0 U']);
  });
});

describe('order of shared devices and cut backwards', () => {
  const spellParts = (schedule: string, stages: number, microbatches: number): string[] =>
    orderTasks(schedule, stages, microbatches).map((tasks) =>
      tasks
        .filter((task) => task.kind !== 'update')
        .map((task) => {
          const letter = task.part === undefined ? letters[task.kind] : task.part === 'inputs' ? 'I' : 'W';
          return `${letter}${task.stage}.${task.microbatch}`;
        })
        .join(' '),
    );

  it('puts weight gradients off by the number of the stage', () => {
    expect(spellParts('zero-bubble', 2, 4)).toEqual([
      'F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 F0.3 I0.2 W0.2 I0.3 W0.3',
      'F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 F1.3 I1.3 W1.2 W1.3',
    ]);
  });

  it('takes turns between two stages of a row', () => {
    expect(spellParts('interleaved-2', 4, 4)).toEqual([
      'F0.0 F0.1 F2.0 F2.1 F0.2 B2.0 F0.3 B2.1 F2.2 B0.0 F2.3 B0.1 B2.2 B2.3 B0.2 B0.3',
      'F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3',
    ]);
  });

  it('waits as the closed forms say', () => {
    const cut = { forward_s: 1, backward_s: 2, update_s: 0, weights_s: 1 };
    expect(playSchedule('zero-bubble', [cut, cut, cut], 8).makespan).toBeCloseTo(8 * 3 + 2);
    const chunk = { forward_s: 1, backward_s: 1, update_s: 0 };
    const timeline = playSchedule('interleaved-2', [chunk, chunk, chunk, chunk], 4);
    expect(timeline.makespan).toBeCloseTo(4 * 2 * 2 + 2);
    expect(timeline.events.map((events) => events.length)).toEqual([9, 9, 9, 9]);
  });
});

describe('timeline', () => {
  it('of one stage has no bubble', () => {
    const timeline = playSchedule('1f1b', [unit], 4);
    expect(timeline.makespan).toBe(12.5);
    expect(timeline.bubbles).toEqual([]);
    expect(measureBusy(timeline, 0)).toBe(1);
  });

  it('of equal stages takes (M + S - 1) microbatches and the update', () => {
    const timeline = playSchedule('1f1b', [unit, unit, unit, unit], 8);
    expect(timeline.makespan).toBeCloseTo((8 + 4 - 1) * 3 + 0.5);
    expect(measureBusy(timeline, 0)).toBeCloseTo((8 * 3 + 0.5) / 33.5);
  });

  it('waits for sends', () => {
    const sends = new Map([
      ['0>1', 0.25],
      ['1>0', 0.5],
    ]);
    const timeline = playSchedule('1f1b', [unit, unit], 1, sends);
    expect(timeline.events[1]?.map((event) => event.start)).toEqual([1.25, 2.25, 4.25]);
    expect(timeline.events[0]?.map((event) => event.start)).toEqual([0, 4.75, 6.75]);
    expect(timeline.bubbles.filter((bubble) => bubble.stage === 0)).toEqual([{ stage: 0, start: 1, end: 4.75 }]);
  });

  it('adds up transfers of one pair and leaves out those of once a step', () => {
    const make = (time_s: number, once: boolean) => ({
      value: 0,
      source_stage: 0,
      target_stage: 1,
      target_spec: [],
      num_bytes: 1,
      time_s,
      once,
    });
    expect(sumTransfers([make(1, false), make(2, false), make(4, true)])).toEqual(new Map([['0>1', 3]]));
  });

  it('plays a thousand microbatches on eight stages, each in every stage, forward and backward', () => {
    const timeline = playSchedule(
      '1f1b',
      Array.from({ length: 8 }, () => unit),
      1024,
    );
    expect(timeline.events.map((events) => events.length)).toEqual(Array.from({ length: 8 }, () => 2 * 1024 + 1));
    expect(timeline.makespan).toBeCloseTo((1024 + 8 - 1) * 3 + 0.5);
  });
});

it('ticks are round numbers', () => {
  expect(listTicks(0, 1, 4)).toEqual([0, 0.5, 1]);
  expect(listTicks(0.3, 0.95, 4)).toEqual([0.4, 0.6000000000000001, 0.8]);
});
