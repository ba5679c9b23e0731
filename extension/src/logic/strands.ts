/** Parts of a group that do not hang together are placed each for itself, then side by side in shelves. */
import type { Arranged, ArrangeLater, Size } from './layered-layout';

const BESIDE = 22;
const BELOW = 26;
/** Width to height of what is packed. */
const ASPECT = 1.4;

/** Positions of the boxes of each strand, in the order in which their first ones come: connected components. */
export function findStrands(count: number, edges: readonly [number, number][]): number[][] {
  const above = Array.from({ length: count }, (_, i) => i);
  const find = (box: number): number => {
    let at = box;
    for (;;) {
      const next = above[at] ?? at;
      if (next === at) return at;
      above[at] = above[next] ?? next;
      at = next;
    }
  };
  for (const [from, to] of edges) {
    const [first, second] = [find(from), find(to)];
    above[Math.max(first, second)] = Math.min(first, second);
  }
  const strands = new Map<number, number[]>();
  for (let i = 0; i < count; i++) {
    const root = find(i);
    const strand = strands.get(root);
    if (strand === undefined) strands.set(root, [i]);
    else strand.push(i);
  }
  return [...strands.values()];
}

/** Upper left corners of blocks in shelves, about as wide as a screen. */
export function packShelves(blocks: readonly Size[]): { corners: [number, number][]; w: number; h: number } {
  const area = blocks.reduce((sum, { w, h }) => sum + (w + BESIDE) * (h + BELOW), 0);
  const limit = Math.max(Math.sqrt(area * ASPECT), ...blocks.map(({ w }) => w));
  const corners: [number, number][] = [];
  let [x, y, deepest, widest] = [0, 0, 0, 0];
  for (const { w, h } of blocks) {
    if (x > 0 && x + w > limit) [x, y, deepest] = [0, y + deepest + BELOW, 0];
    corners.push([x, y]);
    x += w + BESIDE;
    widest = Math.max(widest, x - BESIDE);
    deepest = Math.max(deepest, h);
  }
  return { corners, w: widest, h: y + deepest };
}

/** As `arrange` for what hangs together; equal strands are equal requests. */
export async function arrangeStrands(
  sizes: readonly Size[],
  edges: readonly [number, number][],
  upward: boolean,
  arrange: ArrangeLater,
): Promise<Arranged> {
  const strands = findStrands(sizes.length, edges);
  if (strands.length < 2) return arrange(sizes, edges, upward);
  const strandOf: number[] = [];
  const turnOf: number[] = [];
  for (const [s, strand] of strands.entries()) {
    for (const [turn, box] of strand.entries()) {
      strandOf[box] = s;
      turnOf[box] = turn;
    }
  }
  const edgesOf: number[][] = strands.map(() => []);
  for (const [e, [from]] of edges.entries()) edgesOf[strandOf[from] ?? 0]?.push(e);
  const arranged = await Promise.all(
    strands.map((strand, s) =>
      arrange(
        strand.map((box) => sizes[box] ?? { w: 0, h: 0 }),
        (edgesOf[s] ?? []).map((e): [number, number] => {
          const [from, to] = edges[e] ?? [0, 0];
          return [turnOf[from] ?? 0, turnOf[to] ?? 0];
        }),
        upward,
      ),
    ),
  );
  const packed = packShelves(arranged);
  const corners = sizes.map((_, box): [number, number] => {
    const s = strandOf[box] ?? 0;
    const [ox, oy] = packed.corners[s] ?? [0, 0];
    const [x, y] = arranged[s]?.corners[turnOf[box] ?? 0] ?? [0, 0];
    return [ox + x, oy + y];
  });
  const routes: number[][] = edges.map(() => []);
  for (const [s, own] of edgesOf.entries()) {
    const [ox, oy] = packed.corners[s] ?? [0, 0];
    for (const [turn, e] of own.entries()) {
      routes[e] = (arranged[s]?.routes[turn] ?? []).map((v, i) => v + (i % 2 === 0 ? ox : oy));
    }
  }
  return { corners, routes, w: packed.w, h: packed.h };
}
