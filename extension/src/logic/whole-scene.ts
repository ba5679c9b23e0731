/** Every op of the program at once, at the positions that come with the plan, else at ones found here. */
import type { OpPlan, OpPositions } from '../model/plan';
import { OP, type Scene, type SceneBox, type SceneEdge, TITLE } from './graph-scene';
import { arrangeLayered } from './layered-layout';
import { cellKey, findRow, type GraphGroup, type OpGraph, ROLES } from './op-graph';
import { findStage } from './plan-index';
import { findStrands, packShelves } from './strands';

/** Pixels from one column of positions to the next, and from one row to the next. */
const STEP = { x: OP.w + 14, y: OP.h + 16 };
const MARGIN = 8;
const GAP = 90;

/** Positions for plans without any: layers in a few columns, roles beside each other. */
export function placeOps(graph: OpGraph): Map<number, [number, number]> {
  const places = new Map<number, [number, number]>();
  const blocks = graph.rows.flatMap((row) => row.layers).map((layer) => arrangeLayer(graph, layer));
  const area = blocks.reduce((sum, block) => sum + (block.w + GAP) * (block.h + GAP), 0);
  const most = Math.max(Math.sqrt(area / 1.5), ...blocks.map((block) => block.h));
  let [x, y, widest] = [0, 0, 0];
  for (const block of blocks) {
    if (y > 0 && y + block.h > most) [x, y, widest] = [x + widest + GAP, 0, 0];
    for (const [id, [ox, oy]] of block.corners) places.set(id, [x + ox, y + oy]);
    y += block.h + GAP;
    widest = Math.max(widest, block.w);
  }
  return places;
}

function arrangeLayer(graph: OpGraph, layer: number): { corners: [number, [number, number]][]; w: number; h: number } {
  const corners: [number, [number, number]][] = [];
  let [w, h] = [0, 0];
  for (const role of ROLES) {
    const cell = graph.cells.get(cellKey(layer, role));
    if (cell === undefined) continue;
    const turns = new Map(cell.ops.map((op, i) => [op.id, i]));
    const edges = listEdges(graph, cell).map(([from, to]): [number, number] => [
      turns.get(from.id) ?? 0,
      turns.get(to.id) ?? 0,
    ]);
    const arranged = arrangeOps(cell.ops.length, edges, role === 'backward');
    for (const [i, op] of cell.ops.entries()) {
      const [x, y] = arranged.corners[i] ?? [0, 0];
      corners.push([op.id, [w + x, y]]);
    }
    w += arranged.w + GAP / 2;
    h = Math.max(h, arranged.h);
  }
  return { corners, w, h };
}

/** Each strand for itself, then side by side. */
function arrangeOps(
  count: number,
  edges: readonly [number, number][],
  upward: boolean,
): { corners: [number, number][]; w: number; h: number } {
  const strands = findStrands(count, edges);
  const turns: [number, number][] = [];
  for (const [s, strand] of strands.entries()) for (const [turn, op] of strand.entries()) turns[op] = [s, turn];
  const edgesOf: [number, number][][] = strands.map(() => []);
  for (const [from, to] of edges) edgesOf[turns[from]?.[0] ?? 0]?.push([turns[from]?.[1] ?? 0, turns[to]?.[1] ?? 0]);
  const arranged = strands.map((strand, s) => {
    const sizes = strand.map(() => OP);
    return arrangeLayered(sizes, edgesOf[s] ?? [], upward);
  });
  const packed = packShelves(arranged);
  const corners = turns.map(([s, turn]): [number, number] => {
    const [ox, oy] = packed.corners[s] ?? [0, 0];
    const [x, y] = arranged[s]?.corners[turn] ?? [0, 0];
    return [ox + x, oy + y];
  });
  return { corners, w: packed.w, h: packed.h };
}

/** (producer, reader, value, operand) inside a cell. */
function listEdges(graph: OpGraph, cell: GraphGroup): [OpPlan, OpPlan, number, number][] {
  return cell.ops.flatMap((op) =>
    op.inputs.flatMap((value, operand): [OpPlan, OpPlan, number, number][] => {
      const producer = value === null ? undefined : graph.indexed.producers.get(value);
      if (value === null || producer === undefined || producer === op) return [];
      return producer.layer === cell.layer && producer.role === cell.role ? [[producer, op, value, operand]] : [];
    }),
  );
}

function readPlaces(graph: OpGraph, positions: OpPositions): Map<number, [number, number]> {
  return new Map(
    graph.indexed.plan.ops.map((op, i) => [
      op.id,
      [(positions.columns[i] ?? 0) * STEP.x, (positions.rows[i] ?? 0) * STEP.y],
    ]),
  );
}

/** All ops as boxes, each in the frame of its cell. */
export function layOutWhole(graph: OpGraph): Scene {
  const { plan } = graph.indexed;
  const places = plan.positions === undefined ? placeOps(graph) : readPlaces(graph, plan.positions);
  const boxes: SceneBox[] = [];
  const edges: SceneEdge[] = [];
  const byKey = new Map<string, number>();
  const add = (box: SceneBox): number => {
    byKey.set(box.key, boxes.length);
    return boxes.push(box) - 1;
  };
  for (const cell of graph.cells.values()) {
    const row = findRow(graph, cell.layer);
    if (row === undefined) continue;
    const at = cell.ops.map((op): [number, number] => places.get(op.id) ?? [0, 0]);
    const left = at.reduce((least, [x]) => Math.min(least, x), Number.POSITIVE_INFINITY) - MARGIN;
    const top = at.reduce((least, [, y]) => Math.min(least, y), Number.POSITIVE_INFINITY) - TITLE;
    const right = at.reduce((most, [x]) => Math.max(most, x), Number.NEGATIVE_INFINITY) + OP.w + MARGIN;
    const bottom = at.reduce((most, [, y]) => Math.max(most, y), Number.NEGATIVE_INFINITY) + OP.h + MARGIN;
    const stage = findStage(plan, cell.layer)?.index ?? null;
    const shared = { row, stage, copies: 1 };
    const frame = { x: left, y: top, w: right - left, h: bottom - top, parent: -1, depth: 0 };
    const parent = add({ ...shared, ...frame, key: cell.key, kind: 'cell', part: cell, canOpen: false, isOpen: true });
    for (const [i, op] of cell.ops.entries()) {
      const [x, y] = at[i] ?? [0, 0];
      const place = { x, y, ...OP, parent, depth: 1, canOpen: false, isOpen: false };
      add({ ...shared, ...place, key: `op:${op.id}`, kind: 'op', part: graph.opParts.get(op.id) ?? null });
    }
    for (const [from, to, value, operand] of listEdges(graph, cell)) {
      edges.push(joinOps(graph, places, from, to, value, operand));
    }
  }
  return normalise({ boxes, edges, byKey, columns: [], w: 0, h: 0 });
}

function joinOps(
  graph: OpGraph,
  places: Map<number, [number, number]>,
  from: OpPlan,
  to: OpPlan,
  value: number,
  operand: number,
): SceneEdge {
  const [fx, fy] = places.get(from.id) ?? [0, 0];
  const [tx, ty] = places.get(to.id) ?? [0, 0];
  const isDown = ty > fy;
  const points = [fx + OP.w / 2, isDown ? fy + OP.h : fy, tx + OP.w / 2, isDown ? ty : ty + OP.h];
  const resharding = to.reshardings.find((r) => r.operand === operand)?.collectives[0]?.kind ?? null;
  return { points, bytes: graph.bytes.get(value) ?? 0, resharding, from: `op:${from.id}`, to: `op:${to.id}` };
}

/** Moved so that it starts at 0, 0. */
function normalise(scene: Scene): Scene {
  const x = scene.boxes.reduce((least, box) => Math.min(least, box.x), Number.POSITIVE_INFINITY);
  const y = scene.boxes.reduce((least, box) => Math.min(least, box.y), Number.POSITIVE_INFINITY);
  if (scene.boxes.length === 0) return scene;
  for (const box of scene.boxes) {
    box.x -= x;
    box.y -= y;
    scene.w = Math.max(scene.w, box.x + box.w);
    scene.h = Math.max(scene.h, box.y + box.h);
  }
  for (const edge of scene.edges) edge.points = edge.points.map((v, i) => v - (i % 2 === 0 ? x : y));
  return scene;
}
