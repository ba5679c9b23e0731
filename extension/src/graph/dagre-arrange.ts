/** One group of boxes laid out by dagre. */
import { Graph, layout } from '@dagrejs/dagre';
import { type Arrange, arrangeLayered, type Size } from '../logic/layered-layout';

/** Above this many boxes dagre takes more than about 0.3 s, and overflows the stack in the thousands. */
export const MOST_BOXES = 250;

export const arrangeByDagre: Arrange = (sizes, edges, upward) => {
  if (sizes.length > MOST_BOXES) return arrangeLayered(sizes, edges, upward);
  const graph = new Graph();
  graph.setGraph({ rankdir: upward ? 'BT' : 'TB', nodesep: 14, ranksep: 24, edgesep: 8, marginx: 0, marginy: 0 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const [i, size] of sizes.entries()) graph.setNode(String(i), { width: size.w, height: size.h });
  for (const [from, to] of edges) graph.setEdge(String(from), String(to));
  layout(graph);
  const corners = sizes.map((size, i): [number, number] => {
    const node = graph.node(String(i)) as { x: number; y: number };
    return [node.x - size.w / 2, node.y - size.h / 2];
  });
  const routes = edges.map(([from, to]) => {
    const { points } = graph.edge(String(from), String(to)) as { points: { x: number; y: number }[] };
    const [source, target] = [readBox(corners, sizes, from), readBox(corners, sizes, to)];
    // dagre aims at the middle of boxes, so that lines would meet at corners; here they leave and arrive upright.
    const inner = points.length > 3 ? points.slice(1, -1) : [];
    const isDown = target.y > source.y;
    const first = inner[0]?.x ?? target.x + target.w / 2;
    const last = inner[inner.length - 1]?.x ?? source.x + source.w / 2;
    const start = { x: clampInto(source, first), y: isDown ? source.y + source.h : source.y };
    const end = { x: clampInto(target, last), y: isDown ? target.y : target.y + target.h };
    return bend([start, ...inner, end]);
  });
  // Edges may bend outside of the boxes: what is placed starts at 0, 0 all the same.
  const xs = [...corners.map(([x]) => x), ...routes.flatMap((route) => route.filter((_, i) => i % 2 === 0))];
  const left = Math.min(0, ...xs);
  const right = Math.max(0, ...corners.map(([x], i) => x + (sizes[i]?.w ?? 0)), ...xs);
  const bottom = Math.max(0, ...corners.map(([, y], i) => y + (sizes[i]?.h ?? 0)));
  return {
    corners: corners.map(([x, y]) => [x - left, y]),
    routes: routes.map((route) => route.map((v, i) => (i % 2 === 0 ? v - left : v))),
    w: right - left,
    h: bottom,
  };
};

interface Box {
  x: number;
  y: number;
  w: number;
  h: number;
}

function readBox(corners: readonly [number, number][], sizes: readonly Size[], index: number): Box {
  const [x, y] = corners[index] ?? [0, 0];
  return { x, y, w: sizes[index]?.w ?? 0, h: sizes[index]?.h ?? 0 };
}

/** A place at the rim of a box near `x`, in the middle third: lines to different boxes part, corners stay free. */
function clampInto(box: Box, x: number): number {
  return Math.max(box.x + box.w / 3, Math.min(box.x + (2 * box.w) / 3, x));
}

const STEPS = 8;

/** `x, y, x, y, …` of a line through `points` that is upright at each of them. */
function bend(points: readonly { x: number; y: number }[]): number[] {
  const [start] = points;
  if (start === undefined) return [];
  const route = [start.x, start.y];
  for (const [i, to] of points.slice(1).entries()) {
    const from = points[i] ?? to;
    const steps = Math.abs(to.x - from.x) < 1 ? 1 : STEPS;
    for (let step = 1; step <= steps; step++) {
      const t = step / steps;
      route.push(from.x + (to.x - from.x) * t * t * (3 - 2 * t), from.y + (to.y - from.y) * t);
    }
  }
  return route;
}
