/** The program as rows of a tree: layers, their scopes, their ops. Folded by default; searching unfolds. */
import type { WordedPin } from '../model/pin';
import type { OpPlan, Role } from '../model/plan';
import { SHARED_LAYER } from '../model/plan';
import { sumStepTime } from './costs';
import { formatSpec } from './format';
import { type IndexedPlan, nameLayer } from './plan-index';

export interface OpFilter {
  query: string;
  role: Role | 'all';
  withCollectives: boolean;
  decisions: boolean;
  pinned: boolean;
}

export const NO_FILTER: OpFilter = { query: '', role: 'all', withCollectives: false, decisions: false, pinned: false };

interface GroupFigures {
  /** Of the ops below that pass the filter. */
  count: number;
  collectives: number;
  seconds: number;
  pins: number;
}

export type TreeRow =
  | ({
      kind: 'layer';
      key: string;
      depth: 0;
      layer: number;
      label: string;
      isOpen: boolean;
      twin: number | null;
    } & GroupFigures)
  | ({ kind: 'scope'; key: string; depth: number; label: string; isOpen: boolean; layer: number } & GroupFigures)
  | { kind: 'op'; key: string; depth: number; op: OpPlan; seconds: number; isPinned: boolean };

export interface Tree {
  rows: TreeRow[];
  matches: number;
  /** Whether a filter or a search leaves something out. */
  isFiltered: boolean;
}

export function isFiltering(filter: OpFilter): boolean {
  return (
    filter.query.trim() !== '' || filter.role !== 'all' || filter.withCollectives || filter.decisions || filter.pinned
  );
}

/** Whether an op matches every word of the query: by name, primitive, strategy, output spec or source line. */
function matchesQuery(op: OpPlan, words: readonly string[]): boolean {
  if (words.length === 0) return true;
  const text = `${op.name} ${op.primitive} ${op.strategy} ${op.output_specs.map(formatSpec).join(' ')} ${op.source} ${[
    ...op.collectives,
    ...op.reshardings.flatMap((r) => r.collectives),
  ]
    .map((c) => c.kind)
    .join(' ')}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

export function communicates(op: OpPlan): boolean {
  return op.collectives.length > 0 || op.reshardings.some((resharding) => resharding.collectives.length > 0);
}

export function listPinnedOps(pins: readonly WordedPin[]): Set<string> {
  return new Set(pins.filter((pin) => pin.kind === 'strategy').map((pin) => String(pin.subject)));
}

export function selectOps(ops: readonly OpPlan[], filter: OpFilter, pinned: ReadonlySet<string>): OpPlan[] {
  if (!isFiltering(filter)) return [...ops];
  const words = filter.query.toLowerCase().split(/\s+/).filter(Boolean);
  return ops.filter(
    (op) =>
      (filter.role === 'all' || op.role === filter.role) &&
      (!filter.withCollectives || communicates(op)) &&
      (!filter.decisions || op.is_decision) &&
      (!filter.pinned || pinned.has(op.name)) &&
      matchesQuery(op, words),
  );
}

interface Group {
  path: string;
  label: string;
  children: Map<string, Group>;
  ops: OpPlan[];
}

function groupByScope(ops: readonly OpPlan[]): Group {
  const root: Group = { path: '', label: '', children: new Map(), ops: [] };
  for (const op of ops) {
    let group = root;
    for (const part of op.scope.split('/').filter(Boolean)) {
      let child = group.children.get(part);
      if (child === undefined) {
        child = { path: `${group.path}/${part}`, label: part, children: new Map(), ops: [] };
        group.children.set(part, child);
      }
      group = child;
    }
    group.ops.push(op);
  }
  return root;
}

/** A scope that holds nothing but one scope is drawn as one row, `decoder/block_3`. */
function mergeChains(group: Group): Group {
  let merged = group;
  while (merged.children.size === 1 && merged.ops.length === 0) {
    const [only] = merged.children.values();
    if (only === undefined) break;
    merged = { ...only, label: group.label === '' && merged === group ? only.label : `${merged.label}/${only.label}` };
  }
  return merged;
}

class TreeWriter {
  readonly rows: TreeRow[] = [];

  constructor(
    private readonly indexed: IndexedPlan,
    private readonly open: ReadonlySet<string>,
    private readonly pinned: ReadonlySet<string>,
    private readonly unfoldsAll: boolean,
  ) {}

  private summarise(ops: readonly OpPlan[]): GroupFigures {
    let collectives = 0;
    let seconds = 0;
    let pins = 0;
    for (const op of ops) {
      if (communicates(op)) collectives++;
      if (this.pinned.has(op.name)) pins++;
      seconds += sumStepTime(op, this.indexed.plan);
    }
    return { count: ops.length, collectives, seconds, pins };
  }

  private isOpen(key: string): boolean {
    return this.open.has(key) !== this.unfoldsAll;
  }

  addLayer(layer: number, ops: readonly OpPlan[]): void {
    const key = `layer:${layer}`;
    const isOpen = this.isOpen(key);
    const label = nameLayer(this.indexed.plan, layer);
    const twin = this.indexed.twins.get(layer) ?? null;
    this.rows.push({ kind: 'layer', key, depth: 0, layer, label, isOpen, twin, ...this.summarise(ops) });
    if (isOpen) this.addGroups(groupByScope(ops), key, 1, layer);
  }

  private addGroups(root: Group, prefix: string, depth: number, layer: number): void {
    for (const child of root.children.values()) {
      const group = mergeChains(child);
      const key = `${prefix}${group.path}`;
      const isOpen = this.isOpen(key);
      const figures = this.summarise(listAllOps(group));
      this.rows.push({ kind: 'scope', key, depth, label: group.label, isOpen, layer, ...figures });
      if (isOpen) this.addGroups(group, prefix, depth + 1, layer);
    }
    for (const op of root.ops) {
      const seconds = sumStepTime(op, this.indexed.plan);
      this.rows.push({ kind: 'op', key: `op:${op.id}`, depth, op, seconds, isPinned: this.pinned.has(op.name) });
    }
  }
}

function listAllOps(group: Group): OpPlan[] {
  const below = [...group.children.values()].flatMap(listAllOps);
  return [...below, ...group.ops];
}

/** With few matches everything is unfolded, so that the answer to a search is seen at once. */
const UNFOLD_BELOW = 400;

/** Visible rows. `open` holds keys of unfolded rows; while a filter leaves few ops, it holds those that are folded. */
export function buildTree(
  indexed: IndexedPlan,
  filter: OpFilter,
  open: ReadonlySet<string>,
  pins: readonly WordedPin[],
): Tree {
  const pinned = listPinnedOps(pins);
  const isFiltered = isFiltering(filter);
  const layers = [...indexed.opsByLayer.keys()].sort((a, b) => rank(a) - rank(b));
  const selected = layers.map(
    (layer) => [layer, selectOps(indexed.opsByLayer.get(layer) ?? [], filter, pinned)] as const,
  );
  const matches = selected.reduce((sum, [, ops]) => sum + ops.length, 0);
  const writer = new TreeWriter(indexed, open, pinned, isFiltered && matches <= UNFOLD_BELOW);
  for (const [layer, ops] of selected) if (ops.length > 0) writer.addLayer(layer, ops);
  return { rows: writer.rows, matches, isFiltered };
}

function rank(layer: number): number {
  return layer === SHARED_LAYER ? Number.POSITIVE_INFINITY : layer;
}

/** Keys that must be open for an op to be seen. */
export function listAncestors(op: OpPlan): string[] {
  const keys = [`layer:${op.layer}`];
  let path = '';
  for (const part of op.scope.split('/').filter(Boolean)) {
    path += `/${part}`;
    keys.push(`layer:${op.layer}${path}`);
  }
  return keys;
}
