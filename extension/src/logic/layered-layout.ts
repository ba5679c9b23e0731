/** Boxes in rows by longest path, rows ordered by barycentre sweeps: linear, for groups that are too large for dagre. */

export interface Size {
  w: number;
  h: number;
}

export interface Arranged {
  /** Upper left corner of each box. */
  corners: [number, number][];
  w: number;
  h: number;
  /** For each edge x, y, x, y, … from the border of the one to that of the other. */
  routes: number[][];
}

/** Places boxes of one group so that edges run down, or up. */
export type Arrange = (sizes: readonly Size[], edges: readonly [number, number][], upward: boolean) => Arranged;

/** The same later: a worker may do it. */
export type ArrangeLater = (...request: Parameters<Arrange>) => Promise<Arranged>;

const BESIDE = 14;
const BELOW = 22;
const SWEEPS = 4;

/** Rows by longest path. Edges against the order of the boxes, which can only come from cycles, are left out. */
export function rankBoxes(count: number, edges: readonly [number, number][]): number[] {
  const into: number[][] = Array.from({ length: count }, () => []);
  const out: number[][] = Array.from({ length: count }, () => []);
  for (const [from, to] of edges) {
    if (from >= to) continue;
    into[to]?.push(from);
    out[from]?.push(to);
  }
  const ranks: number[] = [];
  for (let i = 0; i < count; i++) ranks.push(Math.max(-1, ...(into[i] ?? []).map((from) => ranks[from] ?? 0)) + 1);
  // Constants move down to just above their first reader.
  for (let i = count - 1; i >= 0; i--) {
    const readers = out[i] ?? [];
    if (into[i]?.length === 0 && readers.length > 0) ranks[i] = Math.min(...readers.map((to) => ranks[to] ?? 0)) - 1;
  }
  return ranks;
}

export const arrangeLayered: Arrange = (sizes, edges, upward) => {
  const ranks = rankBoxes(sizes.length, edges);
  const depth = Math.max(-1, ...ranks) + 1;
  const rows: number[][] = Array.from({ length: depth }, () => []);
  for (const [i, rank] of ranks.entries()) rows[rank]?.push(i);
  const centres = sizes.map(() => 0);
  const settle = (): void => {
    for (const row of rows) {
      const width = row.reduce((sum, i) => sum + (sizes[i]?.w ?? 0) + BESIDE, -BESIDE);
      let x = -width / 2;
      for (const i of row) {
        centres[i] = x + (sizes[i]?.w ?? 0) / 2;
        x += (sizes[i]?.w ?? 0) + BESIDE;
      }
    }
  };
  settle();
  const neighbours = [0, 1].map((side) => {
    const lists: number[][] = sizes.map(() => []);
    for (const edge of edges) lists[edge[1 - side] ?? 0]?.push(edge[side] ?? 0);
    return lists;
  });
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const lists = neighbours[sweep % 2] ?? [];
    const wanted = centres.map((own, i) => {
      const list = lists[i] ?? [];
      return list.length === 0 ? own : list.reduce((sum, n) => sum + (centres[n] ?? 0), 0) / list.length;
    });
    for (const row of rows) row.sort((a, b) => (wanted[a] ?? 0) - (wanted[b] ?? 0));
    settle();
  }
  return finish(sizes, edges, rows, centres, upward);
};

function finish(
  sizes: readonly Size[],
  edges: readonly [number, number][],
  rows: readonly number[][],
  centres: readonly number[],
  upward: boolean,
): Arranged {
  const heights = rows.map((row) => Math.max(0, ...row.map((i) => sizes[i]?.h ?? 0)));
  const h = heights.reduce((sum, height) => sum + height + BELOW, -BELOW);
  const left = Math.min(0, ...centres.map((centre, i) => centre - (sizes[i]?.w ?? 0) / 2));
  const right = Math.max(0, ...centres.map((centre, i) => centre + (sizes[i]?.w ?? 0) / 2));
  const corners: [number, number][] = sizes.map(() => [0, 0]);
  let y = 0;
  for (const [r, row] of rows.entries()) {
    for (const i of row) {
      const own = sizes[i] ?? { w: 0, h: 0 };
      corners[i] = [(centres[i] ?? 0) - own.w / 2 - left, upward ? h - y - own.h : y];
    }
    y += (heights[r] ?? 0) + BELOW;
  }
  const routes = edges.map(([from, to]) => {
    const [[fx, fy], [tx, ty]] = [corners[from] ?? [0, 0], corners[to] ?? [0, 0]];
    const [a, b] = [sizes[from] ?? { w: 0, h: 0 }, sizes[to] ?? { w: 0, h: 0 }];
    const isDown = ty > fy;
    return [fx + a.w / 2, isDown ? fy + a.h : fy, tx + b.w / 2, isDown ? ty : ty + b.h];
  });
  return { corners, w: right - left, h: Math.max(0, h), routes };
}
