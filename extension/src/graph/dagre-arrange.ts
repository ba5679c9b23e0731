/** One group of boxes laid out by dagre. */
import { Graph, layout } from '@dagrejs/dagre';
import { type Arrange, arrangeLayered } from '../logic/layered-layout';

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
    return points.flatMap(({ x, y }) => [x, y]);
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
