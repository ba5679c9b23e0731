/** The program as nested boxes: rows of layers, a cell for each role, modules in it, ops in those. Pure data. */
import { type OpPlan, type Role, SHARED_LAYER } from '../model/plan';
import { sumStepTime } from './costs';
import { findStage, type IndexedPlan, nameLayer } from './plan-index';

export const ROLES: readonly Role[] = ['forward', 'backward', 'update'];

export interface GraphEdge {
  /** Positions among the parts of the group. */
  from: number;
  to: number;
  /** Of one microbatch, whole tensors. */
  bytes: number;
  /** A collective that brings the tensor into the spec that its reader needs; null where it arrives so. */
  resharding: string | null;
}

export interface GraphFigures {
  /** Seconds of one step. */
  seconds: number;
  /** Number of collectives by kind. */
  collectives: ReadonlyMap<string, number>;
}

export interface GraphGroup extends GraphFigures {
  kind: 'cell' | 'module';
  key: string;
  label: string;
  role: Role;
  layer: number;
  parts: GraphPart[];
  edges: GraphEdge[];
  /** All ops below, in program order. */
  ops: OpPlan[];
}

export interface GraphOp extends GraphFigures {
  kind: 'op';
  key: string;
  label: string;
  role: Role;
  layer: number;
  op: OpPlan;
}

export type GraphPart = GraphGroup | GraphOp;

/** Ops between two cells that pass tensors on. */
export interface CellEdge {
  from: { layer: number; role: Role };
  to: { layer: number; role: Role };
  bytes: number;
}

/** Of `layers` the first `period` stand for all: `count` times the same, one after the other. */
export interface RowGroup {
  key: string;
  layers: number[];
  period: number;
  count: number;
}

export interface OpGraph {
  indexed: IndexedPlan;
  rows: RowGroup[];
  cells: Map<string, GraphGroup>;
  cellEdges: CellEdge[];
  /** Each op's own part, by op id. */
  opParts: Map<number, GraphOp>;
  /** Values' bytes by id, of one microbatch. */
  bytes: Map<number, number>;
}

export function cellKey(layer: number, role: Role): string {
  return `cell:${layer}:${role}`;
}

const ITEM_BYTES: Record<string, number> = {
  float64: 8,
  int64: 8,
  float16: 2,
  bfloat16: 2,
  int8: 1,
  uint8: 1,
  bool: 1,
};

function countBytes(indexed: IndexedPlan): Map<number, number> {
  return new Map(
    indexed.plan.values.map((value) => [
      value.id,
      value.shape.reduce((product, size) => product * size, ITEM_BYTES[value.dtype] ?? 4),
    ]),
  );
}

/** Consecutive layers of one stage that run alike, also in patterns of up to four (dense, expert, dense, expert). */
export function foldRepeats(indexed: IndexedPlan): RowGroup[] {
  const { plan, twins, opsByLayer } = indexed;
  const layers = [...opsByLayer.keys()].filter((layer) => layer !== SHARED_LAYER).sort((a, b) => a - b);
  const classOf = (layer: number): string => `${twins.get(layer) ?? layer}/${findStage(plan, layer)?.index}`;
  const rows: RowGroup[] = [];
  for (let i = 0; i < layers.length; ) {
    let best = { period: 1, count: 1 };
    for (let period = 1; period <= 4; period++) {
      let end = i + period;
      while (end < layers.length && classOf(layers[end] ?? -2) === classOf(layers[end - period] ?? -3)) end++;
      const count = Math.floor((end - i) / period);
      if (count > 1 && count * period > best.count * best.period) best = { period, count };
    }
    const members = layers.slice(i, i + best.period * best.count);
    rows.push({ key: `repeat:${members[0]}`, layers: members, ...best });
    i += members.length;
  }
  if (opsByLayer.has(SHARED_LAYER)) {
    rows.push({ key: `repeat:${SHARED_LAYER}`, layers: [SHARED_LAYER], period: 1, count: 1 });
  }
  return rows;
}

function countCollectives(ops: readonly OpPlan[]): Map<string, number> {
  const counts = new Map<string, number>();
  const add = (kind: string): void => void counts.set(kind, (counts.get(kind) ?? 0) + 1);
  for (const op of ops) {
    for (const collective of op.collectives) add(collective.kind);
    for (const resharding of op.reshardings) for (const collective of resharding.collectives) add(collective.kind);
  }
  return counts;
}

function sumSeconds(ops: readonly OpPlan[], indexed: IndexedPlan): number {
  let seconds = 0;
  for (const op of ops) seconds += sumStepTime(op, indexed.plan);
  return seconds;
}

/** How often more runs than names a module may have before its ops are gathered by name instead. */
const MOST_RUNS = 4;

/** Ops by the scope part at `depth`: one entry for each run in program order, so that `ln` before and after `attn` are two. */
function splitByScope(ops: readonly OpPlan[], depth: number): { label: string | null; ops: OpPlan[] }[] {
  const runs: { label: string | null; ops: OpPlan[] }[] = [];
  for (const op of ops) {
    const label = op.scope.split('/').filter(Boolean)[depth] ?? null;
    const last = runs[runs.length - 1];
    if (label !== null && last?.label === label) last.ops.push(op);
    else runs.push({ label, ops: [op] });
  }
  const named = runs.filter((run) => run.label !== null);
  const names = new Set(named.map((run) => run.label));
  if (named.length <= MOST_RUNS * names.size) return runs;
  const byName = new Map<string, { label: string | null; ops: OpPlan[] }>();
  const gathered: { label: string | null; ops: OpPlan[] }[] = [];
  for (const run of runs) {
    const known = run.label === null ? undefined : byName.get(run.label);
    if (known !== undefined) known.ops.push(...run.ops);
    else {
      gathered.push(run);
      if (run.label !== null) byName.set(run.label, run);
    }
  }
  return gathered;
}

class CellBuilder {
  readonly opParts = new Map<number, GraphOp>();

  constructor(
    private readonly indexed: IndexedPlan,
    private readonly bytes: ReadonlyMap<number, number>,
  ) {}

  build(layer: number, role: Role, ops: OpPlan[]): GraphGroup {
    const label = nameLayer(this.indexed.plan, layer);
    const cell = this.makeGroup('cell', cellKey(layer, role), label, layer, role, ops, 0);
    this.addEdges(cell);
    return cell;
  }

  private makeGroup(
    kind: 'cell' | 'module',
    key: string,
    label: string,
    layer: number,
    role: Role,
    ops: OpPlan[],
    depth: number,
  ): GraphGroup {
    let [first, ...others] = splitByScope(ops, depth);
    let name = label;
    let level = depth;
    // A module that holds nothing but one module is one box, `decoder/block_3`.
    while (first !== undefined && others.length === 0 && first.label !== null) {
      name = kind === 'cell' ? label : `${name}/${first.label}`;
      level++;
      [first, ...others] = splitByScope(ops, level);
    }
    const used = new Map<string, number>();
    const parts = (first === undefined ? [] : [first, ...others]).flatMap(
      ({ label: part, ops: below }): GraphPart[] => {
        if (part === null) return below.map((op) => this.makeOp(op));
        const turn = used.get(part) ?? 0;
        used.set(part, turn + 1);
        return [this.makeGroup('module', `${key}/${part}#${turn}`, part, layer, role, below, level + 1)];
      },
    );
    return {
      kind,
      key,
      label: name,
      role,
      layer,
      parts,
      edges: [],
      ops,
      seconds: sumSeconds(ops, this.indexed),
      collectives: countCollectives(ops),
    };
  }

  private makeOp(op: OpPlan): GraphOp {
    const part: GraphOp = {
      kind: 'op',
      key: `op:${op.id}`,
      label: op.primitive,
      role: op.role,
      layer: op.layer,
      op,
      seconds: sumStepTime(op, this.indexed.plan),
      collectives: countCollectives([op]),
    };
    this.opParts.set(op.id, part);
    return part;
  }

  /** An edge belongs to the innermost group that holds both ends, between the parts in which they are. */
  private addEdges(cell: GraphGroup): void {
    const paths = new Map<number, number[]>();
    const walk = (group: GraphGroup, path: number[]): void => {
      for (const [i, part] of group.parts.entries()) {
        if (part.kind === 'op') paths.set(part.op.id, [...path, i]);
        else walk(part, [...path, i]);
      }
    };
    walk(cell, []);
    const known = new Map<GraphGroup, Map<string, GraphEdge>>();
    for (const op of cell.ops) {
      const target = paths.get(op.id);
      for (const [operand, value] of op.inputs.entries()) {
        const producer = value === null ? undefined : this.indexed.producers.get(value);
        const source = producer === undefined ? undefined : paths.get(producer.id);
        if (value === null || source === undefined || target === undefined || producer === op) continue;
        let group = cell;
        let level = 0;
        while (source[level] === target[level]) {
          group = group.parts[source[level] ?? 0] as GraphGroup;
          level++;
        }
        const edges = known.get(group) ?? new Map<string, GraphEdge>();
        known.set(group, edges);
        const [from, to] = [source[level] ?? 0, target[level] ?? 0];
        const kind = op.reshardings.find((r) => r.operand === operand)?.collectives[0]?.kind ?? null;
        const edge = edges.get(`${from}>${to}`);
        if (edge === undefined) {
          const made = { from, to, bytes: this.bytes.get(value) ?? 0, resharding: kind };
          edges.set(`${from}>${to}`, made);
          group.edges.push(made);
        } else {
          edge.bytes += this.bytes.get(value) ?? 0;
          edge.resharding ??= kind;
        }
      }
    }
  }
}

function listCellEdges(indexed: IndexedPlan, bytes: ReadonlyMap<number, number>): CellEdge[] {
  const edges = new Map<string, CellEdge>();
  const seen = new Set<string>();
  for (const op of indexed.plan.ops) {
    for (const value of op.inputs) {
      const producer = value === null ? undefined : indexed.producers.get(value);
      if (value === null || producer === undefined || (producer.layer === op.layer && producer.role === op.role))
        continue;
      const key = `${cellKey(producer.layer, producer.role)}>${cellKey(op.layer, op.role)}`;
      if (seen.has(`${key}/${value}`)) continue;
      seen.add(`${key}/${value}`);
      const edge = edges.get(key);
      if (edge !== undefined) edge.bytes += bytes.get(value) ?? 0;
      else {
        edges.set(key, {
          from: { layer: producer.layer, role: producer.role },
          to: { layer: op.layer, role: op.role },
          bytes: bytes.get(value) ?? 0,
        });
      }
    }
  }
  return [...edges.values()];
}

export function buildOpGraph(indexed: IndexedPlan): OpGraph {
  const bytes = countBytes(indexed);
  const builder = new CellBuilder(indexed, bytes);
  const cells = new Map<string, GraphGroup>();
  for (const [layer, ops] of indexed.opsByLayer) {
    for (const role of ROLES) {
      const own = ops.filter((op) => op.role === role);
      if (own.length > 0) cells.set(cellKey(layer, role), builder.build(layer, role, own));
    }
  }
  const cellEdges = listCellEdges(indexed, bytes);
  return { indexed, rows: foldRepeats(indexed), cells, cellEdges, opParts: builder.opParts, bytes };
}

/** Keys of the groups that must be open for an op to be seen, its repeat not counted. */
export function listGroupsAbove(graph: OpGraph, op: OpPlan): string[] {
  const keys: string[] = [];
  let group = graph.cells.get(cellKey(op.layer, op.role));
  while (group !== undefined) {
    keys.push(group.key);
    group = group.parts.find((part): part is GraphGroup => part.kind !== 'op' && part.ops.includes(op));
  }
  return keys;
}

/** The row of a layer. */
export function findRow(graph: OpGraph, layer: number): RowGroup | undefined {
  return graph.rows.find((row) => row.layers.includes(layer));
}
