/** What is written on boxes of the op graph, and said about them. */
import { type Role, SHARED_LAYER } from '../model/plan';
import { formatBytes, formatPlural, formatRange, formatSeconds, formatSpec } from './format';
import type { SceneBox } from './graph-scene';
import type { IndexedPlan } from './plan-index';
import { nameLayer } from './plan-index';

/** For chips that have little room; the full name is in what hovering shows. */
export const SHORT_KINDS: Record<string, string> = {
  'all-reduce': 'AR',
  'all-gather': 'AG',
  'reduce-scatter': 'RS',
  'all-to-all': 'A2A',
  'collective-permute': 'CP',
};

export const ROLE_LETTERS: Record<Role, string> = { forward: 'F', backward: 'B', update: 'U' };

/** A layer's name may be a range itself, `block_1 … block_3`. */
function nameEnds(name: string): [string, string] {
  const parts = name.split(' … ');
  return [parts[0] ?? name, parts[parts.length - 1] ?? name];
}

/** `block_1 … block_23` for layers from the first to the last. */
function nameSpan(layers: readonly number[], indexed: IndexedPlan): string {
  const [first] = nameEnds(nameLayer(indexed.plan, layers[0] ?? 0));
  const [, last] = nameEnds(nameLayer(indexed.plan, layers[layers.length - 1] ?? 0));
  return first === last ? first : `${first} … ${last}`;
}

/** `block_3`, `block_1 … block_11` for a repeat that is folded into it; `3 · stage_0` where names of layers are not unique. */
export function nameBox(box: SceneBox, indexed: IndexedPlan): string {
  const { row, part } = box;
  if (part !== null && part.kind !== 'cell') return part.label;
  const isOne = part !== null && (box.copies === 1 || row.period > 1);
  const layers = part !== null && isOne ? [part.layer] : row.layers;
  if (layers[0] === SHARED_LAYER) return nameLayer(indexed.plan, SHARED_LAYER);
  const names = indexed.plan.program.layers;
  const span = nameSpan(layers, indexed);
  return new Set(names).size === names.length ? span : `${numberLayers(layers)} · ${span}`;
}

/** Numbers as on the strip of layers: `1–11`. */
export function numberLayers(layers: readonly number[]): string {
  return layers[0] === SHARED_LAYER ? 'shared' : formatRange(layers[0] ?? 0, layers[layers.length - 1] ?? 0);
}

/** What may be said of a box below its name, the longest first. An op says how its results are sharded. */
export function detailBox(box: SceneBox): string[] {
  const { part, row } = box;
  if (part === null) return [formatPlural(row.layers.length, 'layer')];
  if (part.kind === 'op') return [part.op.output_specs.map(formatSpec).join(' ')];
  const time = formatSeconds(part.seconds);
  return [`${formatPlural(part.ops.length, 'op')} · ${time}`, time];
}

export function listCollectiveCounts(box: SceneBox): [string, number][] {
  return [...(box.part?.collectives ?? [])].sort(([, a], [, b]) => b - a);
}

/** Lines that hovering shows, the first one the name. */
export function explainBox(box: SceneBox, indexed: IndexedPlan, bytes: ReadonlyMap<number, number>): string[] {
  const { part, row } = box;
  if (part === null) {
    const how = box.isOpen ? 'Enter or double click folds them into one.' : 'Enter or double click shows each.';
    return [nameBox(box, indexed), `${row.layers.length} layers in ${row.count} equal turns. ${how}`];
  }
  const lines = [
    part.kind === 'op' ? part.op.name : `${nameBox(box, indexed)}, ${part.role}`,
    box.stage === null ? 'on every stage' : `stage ${box.stage}`,
  ];
  if (part.kind !== 'cell') lines[1] += `, ${nameLayer(indexed.plan, part.layer)}, ${part.role}`;
  if (part.kind === 'op') {
    lines.push(`result ${part.op.output_specs.map(formatSpec).join(' ')}, strategy ${part.op.strategy}`);
    const out = part.op.outputs.reduce<number>((sum, id) => sum + (id === null ? 0 : (bytes.get(id) ?? 0)), 0);
    if (out > 0) lines.push(`${formatBytes(out)} a microbatch, before sharding`);
  } else lines.push(formatPlural(part.ops.length, 'op') + (box.copies > 1 ? `, ${box.copies} times` : ''));
  lines.push(`${formatSeconds(part.seconds)} of a step${box.copies > 1 ? ' each' : ''}`);
  for (const [kind, count] of listCollectiveCounts(box)) lines.push(count > 1 ? `${count} × ${kind}` : kind);
  return lines;
}

/** One sentence for a screen reader. */
export function sayBox(box: SceneBox, indexed: IndexedPlan, pins: number): string {
  const { part } = box;
  const parts = [nameBox(box, indexed), detailBox(box)[0] ?? ''];
  if (part !== null) {
    parts.push(part.role);
    if (part.kind === 'op') parts.push(formatSeconds(part.seconds));
    for (const [kind, count] of listCollectiveCounts(box)) parts.push(count > 1 ? `${count} ${kind}` : kind);
  }
  if (box.copies > 1) parts.push(`${box.copies} times`);
  if (box.stage !== null) parts.push(`stage ${box.stage}`);
  if (pins > 0) parts.push(box.kind === 'op' ? 'pinned' : formatPlural(pins, 'pin'));
  return parts.join(', ');
}
