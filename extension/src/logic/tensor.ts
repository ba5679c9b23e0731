/** Where a tensor's box, its cuts and its labels go: geometry in pixels, drawn by views/tensor-view.ts. */
import type { ShardingSpec } from '../model/plan';
import type { DimFactors } from './rule';

export interface TensorDim {
  size: number;
  /** Mesh axes that split it, major first, with their sizes. */
  axes: { name: string; size: number }[];
  parts: number;
  /** Its name in the rule, `(h d)`, or ''. */
  factor: string;
}

export interface Point {
  x: number;
  y: number;
}

export interface Cut {
  from: Point;
  to: Point;
  axis: string;
}

export interface TensorDrawing {
  width: number;
  height: number;
  /** Outlines of the visible faces; the first is the front. */
  faces: Point[][];
  cuts: Cut[];
  /** Faces of the piece that the first device holds. */
  piece: Point[][];
  /** Shown dimensions: depth, height, width as far as there are so many. */
  labels: { dim: TensorDim; at: Point; anchor: 'start' | 'middle' | 'end' }[];
  /** Dimensions that do not fit into a box of three. */
  others: TensorDim[];
}

export function describeDims(
  shape: readonly number[],
  spec: ShardingSpec,
  axisSizes: ReadonlyMap<string, number>,
  factors: readonly DimFactors[],
): TensorDim[] {
  return shape.map((size, d) => {
    const axes = (spec[d] ?? [])
      .map((name) => ({ name, size: axisSizes.get(name) ?? 1 }))
      .filter((axis) => axis.size > 1);
    const names = factors[d] ?? [];
    return {
      size,
      axes,
      parts: axes.reduce((product, axis) => product * axis.size, 1),
      factor: names.length > 1 ? `(${names.join(' ')})` : (names[0] ?? ''),
    };
  });
}

/** At most three dimensions for the box: those that are split, then the largest; in the tensor's order. */
export function chooseShown(dims: readonly TensorDim[]): { shown: TensorDim[]; others: TensorDim[] } {
  if (dims.length <= 3) return { shown: [...dims], others: [] };
  const ranked = dims
    .map((dim, i) => ({ dim, i }))
    .sort((a, b) => Number(b.dim.parts > 1) - Number(a.dim.parts > 1) || b.dim.size - a.dim.size || b.i - a.i);
  const chosen = new Set(ranked.slice(0, 3).map(({ dim }) => dim));
  return { shown: dims.filter((d) => chosen.has(d)), others: dims.filter((d) => !chosen.has(d)) };
}

/** Length on the screen: logarithmic, since sizes go from 1 to millions. */
function measure(size: number, least: number, most: number): number {
  const share = Math.log2(Math.max(1, size)) / 17;
  return Math.round(least + (most - least) * Math.min(1, share));
}

/** Cuts are drawn one by one up to this many; more would be a grey wash. */
const MOST_CUTS = 15;

function listCuts(dim: TensorDim): { share: number; axis: string }[] {
  const cuts: { share: number; axis: string }[] = [];
  const drawn = Math.min(dim.parts, MOST_CUTS + 1);
  const major = dim.axes[0];
  for (let i = 1; i < drawn; i++) {
    // A cut between blocks of the major axis is that axis's; those inside a block are the last axis's.
    const isMajor = major !== undefined && (i * major.size) % drawn === 0;
    const axis = isMajor ? major : dim.axes[dim.axes.length - 1];
    cuts.push({ share: i / drawn, axis: axis?.name ?? '' });
  }
  return cuts;
}

/** Width of a label in pixels, near enough to keep it inside the picture. */
function measureLabel(dim: TensorDim): number {
  const digits = String(dim.size).length + Math.floor((String(dim.size).length - 1) / 3) * 0.5;
  const factor = dim.factor === '' ? 0 : dim.factor.length + 0.5;
  const axes = dim.axes.reduce((sum, axis) => sum + 2.8 + String(axis.size).length + axis.name.length, 0);
  return (digits + factor + axes) * 7;
}

const SLOPE = { x: 0.62, y: -0.46 };
const LABEL = 14;

/** The drawing of a tensor as a point, bar, rectangle or box; the first piece is shaded. */
export function layoutTensor(dims: readonly TensorDim[]): TensorDrawing {
  const { shown, others } = chooseShown(dims);
  const [width, height, depth] = [shown.at(-1), shown.at(-2), shown.at(-3)];
  const w = width === undefined ? 16 : measure(width.size, 24, 104);
  const h = height === undefined ? 16 : measure(height.size, 20, 72);
  const d = depth === undefined ? 0 : measure(depth.size, 12, 54);
  const sx = d * SLOPE.x;
  const sy = d * SLOPE.y;
  const left = Math.max(
    4,
    height === undefined ? 0 : measureLabel(height) + 8,
    depth === undefined ? 0 : measureLabel(depth) + 10 - sx / 2,
  );
  const top = 6 - sy + (depth === undefined ? 0 : 4);
  const at = (u: number, v: number, z: number): Point => ({ x: left + u * w + z * sx, y: top + v * h + z * sy });
  const faces = [[at(0, 0, 0), at(1, 0, 0), at(1, 1, 0), at(0, 1, 0)]];
  if (d > 0) {
    faces.push([at(0, 0, 0), at(1, 0, 0), at(1, 0, 1), at(0, 0, 1)]);
    faces.push([at(1, 0, 0), at(1, 1, 0), at(1, 1, 1), at(1, 0, 1)]);
  }
  const cuts: Cut[] = [];
  if (width !== undefined) {
    for (const { share, axis } of listCuts(width)) {
      cuts.push({ from: at(share, 0, 0), to: at(share, 1, 0), axis });
      if (d > 0) cuts.push({ from: at(share, 0, 0), to: at(share, 0, 1), axis });
    }
  }
  if (height !== undefined) {
    for (const { share, axis } of listCuts(height)) {
      cuts.push({ from: at(0, share, 0), to: at(1, share, 0), axis });
      if (d > 0) cuts.push({ from: at(1, share, 0), to: at(1, share, 1), axis });
    }
  }
  if (depth !== undefined) {
    for (const { share, axis } of listCuts(depth)) {
      cuts.push({ from: at(0, 0, share), to: at(1, 0, share), axis });
      cuts.push({ from: at(1, 0, share), to: at(1, 1, share), axis });
    }
  }
  const [pw, ph, pd] = [width, height, depth].map((dim) => 1 / Math.min(dim?.parts ?? 1, MOST_CUTS + 1)) as [
    number,
    number,
    number,
  ];
  const piece = [[at(0, 0, 0), at(pw, 0, 0), at(pw, ph, 0), at(0, ph, 0)]];
  if (d > 0) {
    piece.push([at(0, 0, 0), at(pw, 0, 0), at(pw, 0, pd), at(0, 0, pd)]);
    if (pw === 1) piece.push([at(1, 0, 0), at(1, ph, 0), at(1, ph, pd), at(1, 0, pd)]);
  }
  const labels: TensorDrawing['labels'] = [];
  if (width !== undefined) labels.push({ dim: width, at: { x: left + w / 2, y: top + h + LABEL }, anchor: 'middle' });
  if (height !== undefined) labels.push({ dim: height, at: { x: left - 5, y: top + h / 2 + 4 }, anchor: 'end' });
  if (depth !== undefined) {
    labels.push({ dim: depth, at: { x: left + sx / 2 - 6, y: top + sy / 2 }, anchor: 'end' });
  }
  return { width: Math.max(left + w + sx + 4, 60), height: top + h + LABEL + 6, faces, cuts, piece, labels, others };
}

/** How many pieces a spec makes. */
export function countPieces(dims: readonly TensorDim[]): number {
  return dims.reduce((product, dim) => product * dim.parts, 1);
}
