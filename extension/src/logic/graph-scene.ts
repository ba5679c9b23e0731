/** From folded groups to boxes and lines on a plane: what is open, where it lies, what joins what. */
import { type OpPlan, type Role, SHARED_LAYER } from '../model/plan';
import type { Arranged, ArrangeLater, Size } from './layered-layout';
import { cellKey, type GraphGroup, type GraphPart, type OpGraph, ROLES, type RowGroup } from './op-graph';
import { findStage } from './plan-index';
import { arrangeStrands } from './strands';

export interface SceneBox {
  key: string;
  kind: 'repeat' | 'cell' | 'module' | 'op';
  /** Null for a repeat, which is its row. */
  part: GraphPart | null;
  row: RowGroup;
  x: number;
  y: number;
  w: number;
  h: number;
  /** Position among the boxes of the scene; -1 at the top. */
  parent: number;
  depth: number;
  canOpen: boolean;
  isOpen: boolean;
  /** Null where every stage has it. */
  stage: number | null;
  /** Layers that this box stands for. */
  copies: number;
}

export interface SceneEdge {
  /** x, y, x, y, … */
  points: number[];
  bytes: number;
  resharding: string | null;
  /** Boxes that it joins. */
  from: string;
  to: string;
  /** To or from what every stage has: joins nearly everything, and says little. */
  isFaint?: boolean;
}

export interface Scene {
  boxes: SceneBox[];
  edges: SceneEdge[];
  byKey: Map<string, number>;
  columns: { role: Role; x: number; w: number }[];
  w: number;
  h: number;
}

export const OP: Size = { w: 136, h: 40 };
export const MODULE: Size = { w: 176, h: 48 };
export const CELL: Size = { w: 186, h: 56 };
export const REPEAT_WIDTH = 62;
/** Height of the title of an open group. */
export const TITLE = 26;
const PAD = 12;
const COLUMN_GAP = 44;
const ROW_GAP = 26;
const STAGE_GAP = 44;

interface Measured extends Size {
  part: GraphPart;
  arranged: Arranged | null;
  children: Measured[];
}

async function measurePart(part: GraphPart, open: ReadonlySet<string>, arrange: ArrangeLater): Promise<Measured> {
  const folded = part.kind === 'op' ? OP : part.kind === 'module' ? MODULE : CELL;
  if (part.kind === 'op' || !open.has(part.key)) return { part, ...folded, arranged: null, children: [] };
  const children = await Promise.all(part.parts.map((child) => measurePart(child, open, arrange)));
  const edges = part.edges.map((edge): [number, number] => [edge.from, edge.to]);
  const sizes = children.map(({ w, h }) => ({ w, h }));
  const arranged = await arrangeStrands(sizes, edges, part.role === 'backward', arrange);
  const w = Math.max(folded.w, arranged.w + 2 * PAD);
  return { part, w, h: arranged.h + TITLE + 2 * PAD, arranged, children };
}

/** Layers that are drawn for a row: all of them, or one pattern for all. */
export function listDrawnLayers(row: RowGroup, open: ReadonlySet<string>): number[] {
  return row.count === 1 || open.has(row.key) ? row.layers : row.layers.slice(0, row.period);
}

interface MeasuredLayer {
  layer: number;
  row: RowGroup;
  copies: number;
  cells: Map<Role, Measured>;
  h: number;
}

class SceneWriter {
  readonly boxes: SceneBox[] = [];
  readonly edges: SceneEdge[] = [];
  readonly byKey = new Map<string, number>();

  constructor(private readonly graph: OpGraph) {}

  add(box: SceneBox): number {
    this.byKey.set(box.key, this.boxes.length);
    this.boxes.push(box);
    return this.boxes.length - 1;
  }

  addMeasured(measured: Measured, row: RowGroup, x: number, y: number, parent: number, depth: number, copies: number) {
    const { part, w, h, arranged } = measured;
    const stage = findStage(this.graph.indexed.plan, part.layer)?.index ?? null;
    const isOpen = arranged !== null;
    const { key, kind } = part;
    const canOpen = kind !== 'op';
    const index = this.add({ key, kind, part, row, x, y, w, h, parent, depth, canOpen, isOpen, stage, copies });
    if (arranged === null || part.kind === 'op') return;
    const left = x + (w - arranged.w) / 2;
    const top = y + TITLE + PAD;
    for (const [i, child] of measured.children.entries()) {
      const [cx, cy] = arranged.corners[i] ?? [0, 0];
      this.addMeasured(child, row, left + cx, top + cy, index, depth + 1, copies);
    }
    for (const [i, edge] of part.edges.entries()) {
      const route = arranged.routes[i] ?? [];
      this.edges.push({
        points: route.map((v, at) => v + (at % 2 === 0 ? left : top)),
        bytes: edge.bytes,
        resharding: edge.resharding,
        from: part.parts[edge.from]?.key ?? '',
        to: part.parts[edge.to]?.key ?? '',
      });
    }
  }

  finish(columns: Scene['columns']): Scene {
    const w = this.boxes.reduce((most, box) => Math.max(most, box.x + box.w), 0);
    const h = this.boxes.reduce((most, box) => Math.max(most, box.y + box.h), 0);
    return { boxes: this.boxes, edges: this.edges, byKey: this.byKey, columns, w, h };
  }
}

/** A line that leaves and arrives level: `x, y, x, y, …`. */
function curve(fx: number, fy: number, tx: number, ty: number, isLevel: boolean, bend = 0): number[] {
  const points: number[] = [];
  const steps = 12;
  for (let i = 0; i <= steps; i++) {
    const t = i / steps;
    const smooth = t * t * (3 - 2 * t);
    const [a, b] = isLevel ? [t, smooth] : [smooth, t];
    points.push(fx + (tx - fx) * a + bend * Math.sin(Math.PI * t), fy + (ty - fy) * b);
  }
  return points;
}

/** Where a line between two cells runs: straight between neighbours of a column, around the others, level across columns. */
function routeCells(from: SceneBox, to: SceneBox, areNeighbours: boolean): number[] {
  if (from.x === to.x || from.part?.role === to.part?.role) {
    const isDown = to.y > from.y;
    const [fy, ty] = isDown ? [from.y + from.h, to.y] : [from.y, to.y + to.h];
    if (areNeighbours) {
      const x =
        Math.min(from.x + from.w, to.x + to.w, Math.max(from.x, to.x) + CELL.w) / 2 + Math.max(from.x, to.x) / 2;
      return [x, fy, x, ty];
    }
    const [fm, tm] = [from.y + Math.min(from.h, CELL.h) / 2, to.y + Math.min(to.h, CELL.h) / 2];
    return curve(from.x, fm, to.x, tm, false, -Math.min(46, 18 + Math.abs(tm - fm) / 40));
  }
  const isRight = to.x > from.x;
  const fy = from.y + Math.min(from.h, CELL.h) / 2;
  const ty = to.y + Math.min(to.h, CELL.h) / 2;
  return curve(isRight ? from.x + from.w : from.x, fy, isRight ? to.x : to.x + to.w, ty, true);
}

function addCellEdges(writer: SceneWriter, graph: OpGraph, layers: readonly MeasuredLayer[]): void {
  const turns = new Map(layers.map((measured, turn) => [measured.layer, turn]));
  const drawn = new Map<number, number>();
  for (const row of graph.rows) {
    for (const [i, layer] of row.layers.entries()) {
      drawn.set(layer, turns.has(layer) ? layer : (row.layers[i % row.period] ?? layer));
    }
  }
  const merged = new Map<string, SceneEdge>();
  for (const edge of graph.cellEdges) {
    const [a, b] = [drawn.get(edge.from.layer) ?? 0, drawn.get(edge.to.layer) ?? 0];
    const [from, to] = [cellKey(a, edge.from.role), cellKey(b, edge.to.role)];
    const known = merged.get(`${from}>${to}`);
    if (known !== undefined) known.bytes = Math.max(known.bytes, edge.bytes);
    if (known !== undefined || from === to) continue;
    const [source, target] = [writer.boxes[writer.byKey.get(from) ?? -1], writer.boxes[writer.byKey.get(to) ?? -1]];
    if (source === undefined || target === undefined) continue;
    const areNeighbours = Math.abs((turns.get(a) ?? 0) - (turns.get(b) ?? 0)) === 1;
    const points = routeCells(source, target, areNeighbours);
    const isFaint = a === SHARED_LAYER || b === SHARED_LAYER;
    merged.set(`${from}>${to}`, { points, bytes: edge.bytes, resharding: null, from, to, isFaint });
  }
  writer.edges.push(...merged.values());
}

/** Rows of layers below each other, forward, backward and update beside; repeats as one row while they are folded. */
export async function layOut(graph: OpGraph, open: ReadonlySet<string>, arrange: ArrangeLater): Promise<Scene> {
  const layers = await Promise.all(
    graph.rows.flatMap((row) => {
      const drawn = listDrawnLayers(row, open);
      const copies = drawn.length < row.layers.length ? row.count : 1;
      return drawn.map(async (layer): Promise<MeasuredLayer> => {
        const parts = ROLES.flatMap((role) => graph.cells.get(cellKey(layer, role)) ?? []);
        const measured = await Promise.all(parts.map((part) => measurePart(part, open, arrange)));
        const cells = new Map(measured.map((cell) => [cell.part.role, cell]));
        return { layer, row, copies, cells, h: Math.max(CELL.h, ...measured.map((cell) => cell.h)) };
      });
    }),
  );
  const writer = new SceneWriter(graph);
  const hasRepeats = graph.rows.some((row) => row.count > 1);
  let x = hasRepeats ? REPEAT_WIDTH + 24 : 0;
  const columns = ROLES.flatMap((role) => {
    const cells = layers.flatMap((layer) => layer.cells.get(role) ?? []);
    if (cells.length === 0) return [];
    const column = { role, x, w: Math.max(...cells.map((cell) => cell.w)) };
    x += column.w + COLUMN_GAP;
    return [column];
  });
  placeRows(writer, graph, layers, columns);
  addCellEdges(writer, graph, layers);
  return writer.finish(columns);
}

function placeRows(
  writer: SceneWriter,
  graph: OpGraph,
  layers: readonly MeasuredLayer[],
  columns: Scene['columns'],
): void {
  let y = 0;
  const { plan } = graph.indexed;
  for (const [i, measured] of layers.entries()) {
    const { row, layer, copies } = measured;
    const before = layers[i - 1];
    const stage = findStage(plan, layer)?.index ?? null;
    if (before !== undefined) y += (findStage(plan, before.layer)?.index ?? null) === stage ? ROW_GAP : STAGE_GAP;
    if (row.count > 1 && before?.row !== row) {
      const isOpen = copies === 1;
      const members = layers.filter((other) => other.row === row);
      const h = members.reduce((sum, other) => sum + other.h + ROW_GAP, -ROW_GAP);
      const box = { key: row.key, kind: 'repeat' as const, part: null, row, x: 0, y, w: REPEAT_WIDTH, h };
      writer.add({ ...box, parent: -1, depth: 0, canOpen: true, isOpen, stage, copies: row.count });
    }
    for (const column of columns) {
      const cell = measured.cells.get(column.role);
      if (cell !== undefined) writer.addMeasured(cell, row, column.x, y, -1, 0, copies);
    }
    y += measured.h;
  }
}

/** Whether the layer of an op is drawn as itself, not as one of its repeats. */
export function findRepeatAbove(graph: OpGraph, op: OpPlan, open: ReadonlySet<string>): string | null {
  if (op.layer === SHARED_LAYER) return null;
  const row = graph.rows.find((candidate) => candidate.layers.includes(op.layer));
  return row === undefined || listDrawnLayers(row, open).includes(op.layer) ? null : row.key;
}

/** Groups in which a box lies, innermost first. */
export function listBoxesAbove(scene: Scene, index: number): number[] {
  const above: number[] = [];
  for (let at = scene.boxes[index]?.parent ?? -1; at >= 0; at = scene.boxes[at]?.parent ?? -1) above.push(at);
  return above;
}

export function isGroup(part: GraphPart | null): part is GraphGroup {
  return part !== null && part.kind !== 'op';
}
