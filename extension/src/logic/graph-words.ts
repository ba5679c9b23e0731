/** What is written on boxes of the op graph, and said about them. */
import type { Role } from '../model/plan';
import { formatBytes, formatPlural, formatSeconds, formatSpec } from './format';
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

/** `block_1`, `block_1 – block_11` for a repeat that is folded into it. */
export function nameBox(box: SceneBox, indexed: IndexedPlan): string {
  const { row, part } = box;
  const layers = row.layers.map((layer) => nameLayer(indexed.plan, layer));
  const [first, last] = [layers[0] ?? '', layers[layers.length - 1] ?? ''];
  if (part === null) return `${first} – ${last}`;
  if (part.kind !== 'cell' || box.copies === 1) return part.label;
  return row.period === 1 ? `${first} – ${last}` : `${part.label}, …`;
}

/** `96 ops`, for an op the sharding of its results. */
export function detailBox(box: SceneBox): string {
  const { part, row } = box;
  if (part === null) return `${formatPlural(row.layers.length, 'layer')}`;
  if (part.kind === 'op') return part.op.output_specs.map(formatSpec).join(' ');
  return `${formatPlural(part.ops.length, 'op')} · ${formatSeconds(part.seconds)}`;
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
    box.stage === null ? 'on every stage' : `stage ${box.stage}, ${nameLayer(indexed.plan, part.layer)}, ${part.role}`,
  ];
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
  const parts = [nameBox(box, indexed), detailBox(box)];
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
