import { deflateSync } from 'node:zlib';
import { describe, expect, it } from 'vitest';
import { inkOn, mix, STAGE_COLOURS } from '../src/logic/colours';
import { countRecomputed, findCostliest, splitMemory, splitStep, sumParts, sumStepTime } from '../src/logic/costs';
import * as format from '../src/logic/format';
import { indexPlan } from '../src/logic/plan-index';
import { buildTree, NO_FILTER } from '../src/logic/program-tree';
import { readRule, readStrategy } from '../src/logic/rule';
import { listLogicalMeshes, listSubmeshes } from '../src/logic/shapes';
import { initialState, reduce, Store } from '../src/logic/store';
import { chooseShown, countPieces, describeDims, layoutTensor } from '../src/logic/tensor';
import { decodeBase64, encodeBase64, inflatePlan, readPlan } from '../src/logic/unpack';
import { wordPin } from '../src/views/pins';
import { makeOp, makePlan } from './plan';

const plain = (text: string): string => text.replaceAll('\u202f', ' ');

describe('numbers', () => {
  it.each([
    [0, '0 s'],
    [1.234, '1.23 s'],
    [0.0123, '12.3 ms'],
    [4.2e-7, '420 ns'],
    [123, '2.05 min'],
  ])('%d seconds are %s', (seconds, text) => expect(plain(format.formatSeconds(seconds))).toBe(text));

  it('says bytes in units of a thousand', () => {
    expect(plain(format.formatBytes(1.6e10))).toBe('16 GB');
    expect(plain(format.formatBytes(999))).toBe('999 B');
  });

  it('gives a sign to differences', () => {
    expect(plain(format.formatSecondsDelta(-0.002))).toBe('−2 ms');
    expect(format.formatSecondsDelta(0)).toBe('±0');
  });

  it('counts', () => {
    expect(plain(format.formatPlural(9012, 'op'))).toBe('9 012 ops');
    expect(format.formatPlural(1, 'microbatch', 'microbatches')).toBe('1\u202fmicrobatch'.replace('\u202f', ' '));
    expect(format.formatSpec([['x', 'y'], [], ['z']])).toBe('[xy, -, z]');
    expect(format.formatRange(3, 3)).toBe('3');
  });
});

describe('rules', () => {
  it('are terms of dimensions, each of one or more factors', () => {
    expect(readRule('b s (h d), 1 k -> b (s k), ·')).toEqual({
      operands: [
        [['b'], ['s'], ['h', 'd']],
        [[], ['k']],
      ],
      results: [[['b'], ['s', 'k']], []],
    });
  });

  it('are split as a strategy says', () => {
    expect(readStrategy('c:x>0 c:y>1')).toEqual(new Map([['c', 'xy']]));
    expect(readStrategy('m:x k:y>1')).toEqual(
      new Map([
        ['m', 'x'],
        ['k', 'y'],
      ]),
    );
    expect(readStrategy('whole').size).toBe(0);
  });
});

describe('shapes that can be pinned', () => {
  it('are powers of two of one host, then whole hosts', () => {
    const { cluster } = makePlan();
    const host = cluster.hosts[0];
    if (host === undefined) throw new Error('the plan has a host');
    expect(listSubmeshes({ ...cluster, hosts: [host, host] })).toEqual(['1x1', '1x2', '1x4', '1x8', '2x8']);
  });

  it('of the logical mesh have one or two axes, inside a host without mirror images', () => {
    expect(listLogicalMeshes('1x8')).toEqual(['8', '4x2']);
    expect(listLogicalMeshes('2x4')).toEqual(['8', '4x2', '2x4']);
    expect(listLogicalMeshes('1x1')).toEqual(['1']);
  });
});

describe('costs', () => {
  it('add up to the step', () => {
    const { estimate } = makePlan();
    const parts = splitStep(estimate);
    expect(parts.map((part) => [part.key, part.value])).toEqual([
      ['compute', 5],
      ['all-reduce', 1],
      ['transfer', 1],
      ['bubble', 3],
    ]);
    expect(sumParts(parts)).toBe(estimate.step_s);
  });

  it('count an op once for each microbatch, an update once', () => {
    const plan = makePlan();
    expect(sumStepTime(makeOp(0), plan)).toBeCloseTo(2e-3);
    expect(sumStepTime(makeOp(0, { role: 'update' }), plan)).toBeCloseTo(1e-3);
    const reduction = { kind: 'all-reduce', axes: ['x'], num_bytes: 1, time_s: 5e-3, once: true } as const;
    const deferred = makeOp(0, { partial_axes: ['x'], collectives: [{ ...reduction, axes: ['x'] }] });
    expect(sumStepTime(deferred, plan)).toBeCloseTo(7e-3);
  });

  it('find the costliest ops and leave out empty memory', () => {
    const plan = makePlan({ ops: [makeOp(0), makeOp(1, { compute_s: 1 }), makeOp(2)] });
    expect(findCostliest(plan, 1).map((op) => op.id)).toEqual([1]);
    const memory = plan.stages[0]?.memory;
    expect(memory && splitMemory(memory).map((part) => part.key)).toEqual([
      'parameters',
      'optimizer',
      'gradients',
      'activations',
    ]);
  });

  it('count the recomputed layers of a stage, and none in plans from before there were any', () => {
    const plan = makePlan();
    const stage = plan.stages[0];
    const { recomputed_layers: _, ...older } = plan.program;
    const first = stage?.first_layer ?? 0;
    const some = { ...plan, program: { ...plan.program, recomputed_layers: [first, 99] } };
    expect(stage && countRecomputed(some, stage)).toBe(1);
    expect(stage && countRecomputed({ ...plan, program: older as typeof plan.program }, stage)).toBe(0);
  });
});

describe('the program as a tree', () => {
  const collective = { kind: 'all-reduce', axes: ['x'], num_bytes: 1, time_s: 1, once: false } as const;
  const plan = makePlan({
    ops: [
      makeOp(0),
      makeOp(1),
      makeOp(2, { collectives: [{ ...collective, axes: ['x'] }] }),
      makeOp(3, { layer: -1, scope: '' }),
    ],
  });
  const indexed = indexPlan(plan);

  it('is folded to layers with what they hold', () => {
    const { rows, matches } = buildTree(indexed, NO_FILTER, new Set(), []);
    expect(rows.map((row) => row.key)).toEqual(['layer:0', 'layer:1', 'layer:2', 'layer:-1']);
    expect(matches).toBe(4);
    expect(rows[1]).toMatchObject({ count: 1, twin: 0, label: 'block_1' });
    expect(rows[2]).toMatchObject({ collectives: 1, twin: null });
  });

  it('unfolds, with scopes of one child in one row', () => {
    const open = new Set(['layer:0', 'layer:0/block_0/mlp']);
    const { rows } = buildTree(indexed, NO_FILTER, open, []);
    expect(rows.slice(0, 3).map((row) => [row.kind, row.depth])).toEqual([
      ['layer', 0],
      ['scope', 1],
      ['op', 2],
    ]);
    expect(rows[1]).toMatchObject({ label: 'block_0/mlp' });
  });

  it('shows what a search finds at once', () => {
    const { rows, matches } = buildTree(indexed, { ...NO_FILTER, query: 'all-reduce [x' }, new Set(), []);
    expect(matches).toBe(1);
    expect(rows.map((row) => row.kind)).toEqual(['layer', 'scope', 'op']);
  });

  it('filters by pins', () => {
    const pin = { kind: 'strategy', subject: 'block_1/mlp/dot_general.0', choice: 'b:x', text: '' } as const;
    const { rows } = buildTree(indexed, { ...NO_FILTER, pinned: true }, new Set(), [pin]);
    expect(rows.filter((row) => row.kind === 'op').map((row) => row.key)).toEqual(['op:1']);
  });
});

describe('tensors', () => {
  const sizes = new Map([
    ['x', 2],
    ['y', 4],
    ['z', 1],
  ]);

  it('are cut where mesh axes split them, and not by axes of one device', () => {
    const dims = describeDims([8, 6, 5], [['x', 'y'], [], ['z']], sizes, [['b'], ['h', 'd'], []]);
    expect(dims.map((dim) => dim.parts)).toEqual([8, 1, 1]);
    expect(dims.map((dim) => dim.factor)).toEqual(['b', '(h d)', '']);
    expect(countPieces(dims)).toBe(8);
  });

  it('draw seven cuts for eight pieces, the middle one of the major axis', () => {
    const drawing = layoutTensor(describeDims([64], [['x', 'y']], sizes, []));
    expect(drawing.cuts.map((cut) => cut.axis)).toEqual(['y', 'y', 'y', 'x', 'y', 'y', 'y']);
    expect(drawing.faces).toHaveLength(1);
  });

  it('of more than three dimensions show those that are split', () => {
    const dims = describeDims([2, 3, 1000, 999, 998], [['x'], ['y'], [], [], []], sizes, []);
    const { shown, others } = chooseShown(dims);
    expect(shown.map((dim) => dim.size)).toEqual([2, 3, 1000]);
    expect(others.map((dim) => dim.size)).toEqual([999, 998]);
  });

  it('of rank 0 are a point', () => {
    expect(layoutTensor([]).labels).toEqual([]);
  });
});

describe('the store', () => {
  it('finds the selected op again in another plan by its name', () => {
    const first = reduce(initialState(false), { type: 'plan', plan: makePlan() });
    const selected = reduce(first, { type: 'select', selection: { kind: 'op', op: 2 } });
    const shifted = makePlan({ ops: [makeOp(0), makeOp(1, { name: 'block_2/mlp/dot_general.0' })] });
    expect(reduce(selected, { type: 'plan', plan: shifted }).selection).toEqual({ kind: 'op', op: 1 });
    expect(reduce(selected, { type: 'plan', plan: makePlan({ ops: [] }) }).selection).toBeNull();
  });

  it('unfolds what hides a revealed op and drops the filter', () => {
    const store = new Store(initialState(false));
    store.dispatch({ type: 'plan', plan: makePlan() });
    store.dispatch({ type: 'filter', filter: { query: 'nothing' } });
    store.dispatch({ type: 'select', selection: { kind: 'op', op: 3 }, reveal: true });
    expect([...store.state.open]).toEqual(['layer:3', 'layer:3/block_3', 'layer:3/block_3/mlp']);
    expect(store.state.filter).toEqual(NO_FILTER);
  });

  it('tells listeners state and state before until they leave', () => {
    const store = new Store(initialState(true));
    const seen: (string | null)[][] = [];
    const leave = store.subscribe((state, before) => seen.push([before.notice, state.notice]));
    store.dispatch({ type: 'notice', notice: 'a' });
    leave();
    store.dispatch({ type: 'notice', notice: 'b' });
    expect(seen).toEqual([[null, 'a']]);
  });
});

describe('plans that arrive', () => {
  it('are read as they are saved', () => {
    expect(readPlan(makePlan()).program.name).toBe('tiny');
  });

  it('are unpacked from columns', async () => {
    const plan = makePlan();
    const op = makeOp(0);
    const cell = (value: unknown) => ({ table: [value], index: [0, 0] });
    const columns = Object.fromEntries(Object.entries(op).map(([key, value]) => [key, cell(value)]));
    const packed = {
      ...plan,
      format: 'alpaviz.packed-plan.v1',
      ops: {
        count: 2,
        columns: {
          ...columns,
          id: { rows: true },
          name: { cells: ['backward/\u0001.0', 'other'] },
          outputs: { cells: [[5, null], [1]] },
          inputs: cell([2, null]),
        },
      },
      values: { count: 1, columns: { id: { rows: true }, name: { cells: ['\u0001'] }, shape: { cells: [[2, 3]] } } },
    };
    const read = await inflatePlan(new Uint8Array(deflateSync(JSON.stringify(packed))));
    expect(read.ops.map((o) => o.name)).toEqual(['backward/block_0/mlp/dot_general.0', 'other']);
    expect(read.ops.map((o) => o.outputs)).toEqual([[5, null], [6]]);
    expect(read.ops.map((o) => o.inputs)).toEqual([
      [3, null],
      [4, null],
    ]);
    expect(read.values[0]).toEqual({ id: 0, name: 'v0', shape: [2, 3] });
  });

  it('bring positions of their ops behind the text', async () => {
    const plan = makePlan();
    const steps = new Int16Array([4, 4, 4, 4, 0, -32768, -32768, 2]);
    const bytes = new Uint8Array([
      ...new TextEncoder().encode(JSON.stringify(plan)),
      0,
      ...new Uint8Array(steps.buffer),
    ]);
    const { positions } = await inflatePlan(new Uint8Array(deflateSync(bytes)));
    expect([...(positions?.columns ?? [])]).toEqual([1, 2, 3, 4]);
    expect([...(positions?.rows ?? [])]).toEqual([0, 8192, 0, 0.5]);
  });

  it('come without positions from earlier versions', async () => {
    const read = await inflatePlan(new Uint8Array(deflateSync(JSON.stringify(makePlan()))));
    expect(read.positions).toBeUndefined();
  });

  it('survive base64, however long', () => {
    const bytes = Uint8Array.from({ length: 20_001 }, (_, i) => i % 256);
    expect(decodeBase64(encodeBase64(bytes))).toEqual(bytes);
  });

  it('are refused in a sentence', () => {
    expect(() => readPlan({ cells: [] })).toThrow('This file is no AlpaViz plan: it has no schema_version.');
    expect(() => readPlan({ ...makePlan(), schema_version: 7 })).toThrow('schema version 7');
    expect(() => readPlan({ schema_version: 1, program: {} })).toThrow('lacks cluster, stages');
  });
});

it('colours carry ink that is read', () => {
  expect(STAGE_COLOURS.map(inkOn).filter((ink) => ink === '#ffffff')).toHaveLength(1);
  expect(mix('#000000', '#ffffff', 0.5)).toBe('#808080');
});

it('pins are worded', () => {
  expect(wordPin({ kind: 'logical_mesh', subject: null, choice: '4x2' })).toBe('every stage has logical mesh 4x2');
});
