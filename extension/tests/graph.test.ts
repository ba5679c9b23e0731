import { describe, expect, it } from 'vitest';
import { BoxMarks } from '../src/logic/box-marks';
import { centre, fit, keepInSight, reveal, SceneIndex, step, zoom } from '../src/logic/camera';
import { findRepeatAbove, layOut, OP, type Scene, type SceneBox } from '../src/logic/graph-scene';
import { detailBox, explainBox, nameBox, sayBox } from '../src/logic/graph-words';
import { arrangeLayered } from '../src/logic/layered-layout';
import { buildOpGraph, foldRepeats, listGroupsAbove, type OpGraph } from '../src/logic/op-graph';
import { indexPlan } from '../src/logic/plan-index';
import { arrangeStrands, findStrands, packShelves } from '../src/logic/strands';
import { layOutWhole, placeOps } from '../src/logic/whole-scene';
import type { OpPlan, Role } from '../src/model/plan';
import { makeOp, makePlan, makeStage } from './plan';

const LAYERS = 8;

/** Eight equal layers on two stages: in each two ops forward and two backward in modules, one update. */
function makeGraph(change: (op: OpPlan) => Partial<OpPlan> = () => ({})): OpGraph {
  const ops: OpPlan[] = [];
  const add = (layer: number, role: Role, module: string, primitive: string, inputs: number[]): number => {
    const id = ops.length;
    const scope = role === 'update' ? 'adam' : `block_${layer}/${module}`;
    const name = `${scope}/${primitive}.${id}`;
    const stage = layer < LAYERS / 2 ? 0 : 1;
    const op = makeOp(id, { name, layer, role, scope, primitive, inputs, outputs: [id], stage });
    ops.push({ ...op, ...change(op) });
    return id;
  };
  let value = 100;
  for (let layer = 0; layer < LAYERS; layer++) {
    value = add(layer, 'forward', 'attn', 'exp', [value]);
    value = add(layer, 'forward', 'mlp', 'dot_general', [value]);
  }
  for (let layer = LAYERS - 1; layer >= 0; layer--) {
    value = add(layer, 'backward', 'mlp', 'dot_general', [value, 2 * layer + 1]);
    value = add(layer, 'backward', 'attn', 'mul', [value, 2 * layer]);
    add(layer, 'update', '', 'sub', [value]);
  }
  const stages = [
    makeStage(0, { first_layer: 0, last_layer: 3 }),
    makeStage(1, { first_layer: 4, last_layer: LAYERS - 1 }),
  ];
  const layers = Array.from({ length: LAYERS }, (_, layer) => `block_${layer}`);
  const program = { ...makePlan().program, num_layers: LAYERS, layers };
  return buildOpGraph(indexPlan(makePlan({ ops, stages, program })));
}

const arrange = (...request: Parameters<typeof arrangeLayered>) => Promise.resolve(arrangeLayered(...request));
const lay = (graph: OpGraph, ...open: string[]): Promise<Scene> => layOut(graph, new Set(open), arrange);

function find(scene: Scene, key: string): SceneBox {
  const box = scene.boxes[scene.byKey.get(key) ?? -1];
  if (box === undefined) throw new Error(`no box ${key}`);
  return box;
}

describe('repeats', () => {
  it('fold equal layers of a stage into one row with a count', () => {
    const rows = foldRepeats(makeGraph().indexed);
    expect(rows.map((row) => [row.layers, row.count])).toEqual([
      [[0, 1, 2, 3], 4],
      [[4, 5, 6, 7], 4],
    ]);
  });

  it('fold patterns of two layers', () => {
    const graph = makeGraph((op) => (op.layer % 2 === 1 && op.primitive === 'exp' ? { strategy: 'whole' } : {}));
    expect(graph.rows.map((row) => [row.period, row.count])).toEqual([
      [2, 2],
      [2, 2],
    ]);
  });

  it('do not fold layers that run in different ways', () => {
    const graph = makeGraph((op) => (op.layer === 1 ? { strategy: 'whole' } : {}));
    expect(graph.rows.map((row) => row.layers)).toEqual([[0], [1], [2, 3], [4, 5, 6, 7]]);
  });

  it('do not mind the order in which weights are updated', () => {
    const plan = makePlan({
      ops: [0, 1].flatMap((layer) => [
        makeOp(2 * layer, { layer, role: 'update', primitive: layer === 0 ? 'add' : 'mul' }),
        makeOp(2 * layer + 1, { layer, role: 'update', primitive: layer === 0 ? 'mul' : 'add' }),
      ]),
    });
    expect(indexPlan(plan).twins.get(1)).toBe(0);
  });
});

describe('the folded picture', () => {
  it('has a box for each role of each row, and one for each repeat', async () => {
    const scene = await lay(makeGraph());
    expect(scene.boxes.map((box) => box.key)).toEqual([
      'repeat:0',
      'cell:0:forward',
      'cell:0:backward',
      'cell:0:update',
      'repeat:4',
      'cell:4:forward',
      'cell:4:backward',
      'cell:4:update',
    ]);
    expect(find(scene, 'cell:0:forward').copies).toBe(4);
  });

  it('has a column for each role', async () => {
    const scene = await lay(makeGraph());
    expect(scene.columns.map((column) => column.role)).toEqual(['forward', 'backward', 'update']);
    for (const { role, x } of scene.columns) expect(find(scene, `cell:4:${role}`).x).toBe(x);
  });

  it('joins what passes tensors on', async () => {
    const scene = await lay(makeGraph());
    const joined = scene.edges.map((edge) => `${edge.from} ${edge.to}`);
    expect(joined).toContain('cell:0:forward cell:4:forward');
    expect(joined).toContain('cell:4:backward cell:0:backward');
    expect(joined).toContain('cell:0:backward cell:0:update');
  });
});

describe('unfolding', () => {
  it('of a repeat shows each layer', async () => {
    const scene = await lay(makeGraph(), 'repeat:0');
    expect([0, 1, 2, 3].every((layer) => scene.byKey.has(`cell:${layer}:forward`))).toBe(true);
    expect(scene.byKey.has('cell:5:forward')).toBe(false);
    expect(find(scene, 'cell:1:forward').copies).toBe(1);
  });

  it('of a cell shows its modules inside of it', async () => {
    const scene = await lay(makeGraph(), 'cell:0:forward');
    const cell = find(scene, 'cell:0:forward');
    for (const name of ['attn', 'mlp']) {
      const part = find(scene, `cell:0:forward/${name}#0`);
      expect(part.parent).toBe(scene.byKey.get(cell.key));
      expect(part.x).toBeGreaterThan(cell.x);
      expect(part.y + part.h).toBeLessThan(cell.y + cell.h);
    }
  });

  it('runs forward modules down and backward modules up', async () => {
    const scene = await lay(makeGraph(), 'cell:0:forward', 'cell:0:backward');
    const y = (key: string) => find(scene, key).y;
    expect(y('cell:0:forward/attn#0')).toBeLessThan(y('cell:0:forward/mlp#0'));
    expect(y('cell:0:backward/attn#0')).toBeLessThan(y('cell:0:backward/mlp#0'));
  });

  it('lets no two boxes of one group overlap', async () => {
    const scene = await lay(makeGraph(), 'repeat:0', 'cell:0:forward', 'cell:1:backward', 'cell:1:backward/mlp#0');
    for (const [i, a] of scene.boxes.entries()) {
      for (const b of scene.boxes.slice(i + 1)) {
        const apart = a.x + a.w <= b.x || b.x + b.w <= a.x || a.y + a.h <= b.y || b.y + b.h <= a.y;
        if (a.parent === b.parent) expect(apart, `${a.key} and ${b.key}`).toBe(true);
      }
    }
  });

  it('reaches every op by the groups above it', async () => {
    const graph = makeGraph();
    for (const op of graph.indexed.plan.ops) {
      const repeat = findRepeatAbove(graph, op, new Set());
      const scene = await lay(graph, ...listGroupsAbove(graph, op), ...(repeat === null ? [] : [repeat]));
      expect(scene.byKey.has(`op:${op.id}`), op.name).toBe(true);
    }
  });

  it('marks an edge over which a tensor is resharded', async () => {
    const gathered = { kind: 'all-gather' as const, axes: ['x'], num_bytes: 1, time_s: 1, once: false };
    const resharding = { operand: 0, held: [], wanted: [], specs: [], collectives: [gathered] };
    const graph = makeGraph((op) => (op.id === 1 ? { reshardings: [resharding] } : {}));
    const scene = await lay(graph, 'cell:0:forward');
    const edge = scene.edges.find((each) => each.to === 'cell:0:forward/mlp#0');
    expect(edge?.resharding).toBe('all-gather');
  });
});

describe('all ops at once', () => {
  it('are each a box in the frame of their cell', () => {
    const graph = makeGraph();
    const scene = layOutWhole(graph);
    expect(scene.boxes.filter((box) => box.kind === 'op')).toHaveLength(graph.indexed.plan.ops.length);
    const op = find(scene, 'op:0');
    expect(scene.boxes[op.parent]?.key).toBe('cell:0:forward');
  });

  it('lie where the plan says, if it says so', () => {
    const graph = makeGraph();
    const { plan } = graph.indexed;
    const columns = Float32Array.from(plan.ops, (_, i) => i);
    plan.positions = { columns, rows: new Float32Array(plan.ops.length) };
    const scene = layOutWhole(graph);
    expect(find(scene, 'op:3').x - find(scene, 'op:1').x).toBe(2 * 150);
  });
});

describe('plans without positions', () => {
  it('have their ops placed in the page, none over another', () => {
    const graph = makeGraph();
    const places = [...placeOps(graph).values()];
    expect(places).toHaveLength(graph.indexed.plan.ops.length);
    for (const [i, [ax, ay]] of places.entries()) {
      for (const [bx, by] of places.slice(i + 1))
        expect(Math.abs(ax - bx) >= OP.w || Math.abs(ay - by) >= OP.h).toBe(true);
    }
  });
});

describe('parts that do not hang together', () => {
  const edges: [number, number][] = [
    [0, 2],
    [1, 3],
  ];

  it('are strands', () => {
    expect(findStrands(5, edges)).toEqual([[0, 2], [1, 3], [4]]);
  });

  it('are laid out each for itself, equal ones alike', async () => {
    const asked: string[] = [];
    const sizes = [0, 1, 2, 3].map(() => OP);
    const arranged = await arrangeStrands(sizes, edges, false, (...request) => {
      asked.push(JSON.stringify(request));
      return arrange(...request);
    });
    expect(asked).toHaveLength(2);
    expect(asked[0]).toBe(asked[1]);
    const [first = [0, 0], second = [0, 0]] = arranged.corners;
    expect(second[0] > first[0] || second[1] > first[1]).toBe(true);
    expect(arranged.routes[1]?.[0]).toBe(second[0] + OP.w / 2);
  });

  it('are packed about as wide as a screen', () => {
    const { w, h, corners } = packShelves(Array.from({ length: 60 }, () => OP));
    expect(corners).toHaveLength(60);
    expect(w / h).toBeGreaterThan(0.9);
    expect(w / h).toBeLessThan(2);
  });
});

describe('what is written', () => {
  it('names a repeat by its first and last layer', async () => {
    const graph = makeGraph();
    const scene = await lay(graph);
    expect(nameBox(find(scene, 'cell:4:forward'), graph.indexed)).toBe('block_4 … block_7');
  });

  it('numbers layers whose names are not unique', async () => {
    const graph = makeGraph();
    graph.indexed.plan.program.layers = Array.from({ length: LAYERS }, () => 'stage_0');
    const scene = await lay(graph);
    expect(nameBox(find(scene, 'cell:4:forward'), graph.indexed)).toBe('4–7 · stage_0');
  });

  it('says the sharding of an op', () => {
    const graph = makeGraph();
    expect(detailBox(find(layOutWhole(graph), 'op:0'))).toEqual(['[x, -, y]']);
  });

  it('tells on hovering name, sharding and cost', () => {
    const graph = makeGraph();
    const said = explainBox(find(layOutWhole(graph), 'op:0'), graph.indexed, graph.bytes).join('\n');
    expect(said).toContain('block_0/attn/exp.0');
    expect(said).toContain('[x, -, y]');
    expect(said).toContain('2\u202fms of a step');
  });

  it('is said to a screen reader with role, count, stage and pins', async () => {
    const graph = makeGraph();
    const box = find(await lay(graph), 'cell:4:backward');
    expect(sayBox(box, graph.indexed, 1)).toBe(
      'block_4 … block_7, 2 ops · 4\u202fms, backward, 4 times, stage 1, 1 pin',
    );
  });
});

describe('marks', () => {
  it('count the pins of all layers that a box stands for', async () => {
    const graph = makeGraph();
    const op = graph.indexed.plan.ops.find((each) => each.layer === 2 && each.role === 'forward');
    const marks = new BoxMarks(graph.indexed, null, new Set([op?.name ?? '']));
    const scene = await lay(graph);
    expect(marks.countPins(find(scene, 'cell:0:forward'))).toBe(1);
    expect(marks.countPins(find(scene, 'cell:0:backward'))).toBe(0);
  });

  it('fade what the search leaves nothing of', async () => {
    const graph = makeGraph();
    const marks = new BoxMarks(graph.indexed, new Set([0]), new Set());
    const scene = await lay(graph);
    expect(marks.isFaded(find(scene, 'cell:0:forward'))).toBe(false);
    expect(marks.isFaded(find(scene, 'cell:4:forward'))).toBe(true);
  });
});

describe('the camera', () => {
  const frame = { w: 400, h: 300 };
  const area = { x: 0, y: 0, w: 1000, h: 300 };

  it('fits a picture into the frame', () => {
    const camera = fit(area, frame);
    expect(camera.scale * area.w).toBeLessThan(frame.w);
    expect((area.x - camera.x) * camera.scale).toBeGreaterThan(0);
  });

  it('keeps the point under the pointer when zooming', () => {
    const camera = zoom({ x: 10, y: 20, scale: 1 }, 2, 100, 50);
    expect(camera.x + 100 / camera.scale).toBeCloseTo(110);
    expect(camera.y + 50 / camera.scale).toBeCloseTo(70);
  });

  it('does not lose the picture', async () => {
    const scene = await lay(makeGraph());
    const camera = keepInSight({ x: 1e6, y: -1e6, scale: 1 }, scene, frame);
    expect(camera.x).toBeLessThan(scene.w);
    expect(camera.y + frame.h).toBeGreaterThan(0);
  });

  it('moves no further than needed to show a box, and not at all for one that is seen', async () => {
    const box = find(await lay(makeGraph()), 'cell:0:update');
    const seen = { x: box.x - 50, y: box.y - 50, scale: 1 };
    expect(reveal(seen, box, frame)).toEqual(seen);
    const moved = reveal({ ...seen, x: box.x - 390 }, box, frame);
    expect(box.x + box.w).toBeLessThanOrEqual(moved.x + frame.w);
    expect(moved.y).toBe(seen.y);
  });

  it('centres a box at a scale that can be read', async () => {
    const box = find(await lay(makeGraph()), 'cell:4:forward');
    const camera = centre({ x: 0, y: 0, scale: 0.1 }, box, frame);
    expect(camera.scale).toBeGreaterThanOrEqual(0.8);
    expect(camera.x + frame.w / 2 / camera.scale).toBeCloseTo(box.x + box.w / 2);
  });
});

describe('boxes under the pointer', () => {
  it('are the innermost ones', async () => {
    const scene = await lay(makeGraph(), 'cell:0:forward');
    const inner = find(scene, 'cell:0:forward/mlp#0');
    const index = new SceneIndex(scene);
    expect(scene.boxes[index.hit(inner.x + 5, inner.y + 5)]?.key).toBe(inner.key);
    expect(index.hit(-50, -50)).toBe(-1);
  });

  it('are found again in a large picture', () => {
    const scene = layOutWhole(makeGraph());
    const index = new SceneIndex(scene);
    for (const [i, box] of scene.boxes.entries()) {
      if (box.kind === 'op') expect(index.hit(box.x + box.w / 2, box.y + box.h / 2)).toBe(i);
    }
  });
});

describe('arrow keys', () => {
  const walk = (
    scene: Scene,
    from: string,
    ...directions: ('up' | 'down' | 'left' | 'right')[]
  ): string | undefined => {
    let at = scene.byKey.get(from) ?? -1;
    for (const direction of directions) at = step(scene, at, direction);
    return scene.boxes[at]?.key;
  };

  it('lead to the neighbour in a direction', async () => {
    const scene = await lay(makeGraph());
    expect(walk(scene, 'cell:0:forward', 'right')).toBe('cell:0:backward');
    expect(walk(scene, 'cell:0:forward', 'down')).toBe('cell:4:forward');
    expect(walk(scene, 'cell:4:forward', 'left')).toBe('repeat:4');
  });

  it('lead into an open group and out of it again', async () => {
    const scene = await lay(makeGraph(), 'cell:0:forward');
    expect(walk(scene, 'cell:0:forward', 'down')).toBe('cell:0:forward/attn#0');
    expect(walk(scene, 'cell:0:forward', 'down', 'down')).toBe('cell:0:forward/mlp#0');
    expect(walk(scene, 'cell:0:forward/attn#0', 'up')).toBe('cell:0:forward');
    expect(walk(scene, 'cell:0:forward/mlp#0', 'down')).toBe('cell:4:forward');
  });

  it('stay where nothing is further on', async () => {
    const scene = await lay(makeGraph());
    expect(walk(scene, 'cell:0:update', 'right')).toBe('cell:0:update');
  });
});
