/** Draws a tensor as a box, cut by the mesh axes that split it, with the first device's piece shaded. */
import { formatBytes, formatCount } from '../logic/format';
import { countPieces, layoutTensor, type Point, type TensorDim } from '../logic/tensor';
import { h, svg } from './dom';

const ITEM_BYTES: Record<string, number> = {
  bool: 1,
  int8: 1,
  uint8: 1,
  int16: 2,
  uint16: 2,
  float16: 2,
  bfloat16: 2,
  int64: 8,
  uint64: 8,
  float64: 8,
};

export function countTensorBytes(shape: readonly number[], dtype: string): number {
  const item = dtype.startsWith('float8') ? 1 : (ITEM_BYTES[dtype] ?? 4);
  return shape.reduce((product, size) => product * size, item);
}

function points(face: readonly Point[]): string {
  return face.map(({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
}

/** `2048 n ÷2 y`: a dimension in words, cuts in the colours of their axes. */
function describeDim(dim: TensorDim): string {
  const cuts = dim.axes.map((axis) => `÷${axis.size} ${axis.name}`).join(' ');
  return `${formatCount(dim.size)}${dim.factor === '' ? '' : ` ${dim.factor}`}${cuts === '' ? '' : ` ${cuts}`}`;
}

function makeDimLabel(dim: TensorDim, at: Point, anchor: string): SVGTextElement {
  const label = svg('text', { x: at.x.toFixed(1), y: at.y.toFixed(1), 'text-anchor': anchor });
  label.append(svg('tspan', { class: 'ap-dim-size' }, formatCount(dim.size)));
  if (dim.factor !== '') label.append(svg('tspan', { class: 'ap-dim-factor', dx: 3 }, dim.factor));
  for (const axis of dim.axes) {
    label.append(svg('tspan', { class: `ap-axis ap-axis-${axis.name}`, dx: 4 }, `÷${axis.size} ${axis.name}`));
  }
  return label;
}

export interface TensorOptions {
  title: string;
  dtype: string;
  dims: readonly TensorDim[];
}

export function makeTensor({ title, dtype, dims }: TensorOptions): HTMLElement {
  const drawing = layoutTensor(dims);
  const pieces = countPieces(dims);
  const bytes = countTensorBytes(
    dims.map((dim) => dim.size),
    dtype,
  );
  const split = pieces === 1 ? 'whole on every device' : `1/${pieces} a device: ${formatBytes(bytes / pieces)}`;
  const words = dims.length === 0 ? 'a scalar' : dims.map(describeDim).join(' by ');
  const picture = svg(
    'svg',
    {
      class: 'ap-tensor-picture',
      width: Math.ceil(drawing.width),
      height: Math.ceil(drawing.height),
      role: 'img',
      'aria-label': `${title}: ${words}; ${split}`,
    },
    ...drawing.faces.map((face, i) =>
      svg('polygon', { class: i === 0 ? 'ap-face ap-front' : 'ap-face', points: points(face) }),
    ),
    ...(pieces > 1 ? drawing.piece.map((face) => svg('polygon', { class: 'ap-piece', points: points(face) })) : []),
    ...drawing.cuts.map((cut) =>
      svg('line', {
        class: `ap-cut ap-cut-${cut.axis}`,
        x1: cut.from.x.toFixed(1),
        y1: cut.from.y.toFixed(1),
        x2: cut.to.x.toFixed(1),
        y2: cut.to.y.toFixed(1),
      }),
    ),
    ...drawing.labels.map(({ dim, at, anchor }) => makeDimLabel(dim, at, anchor)),
  );
  return h(
    'figure',
    { class: 'ap-tensor' },
    h('figcaption', {}, h('b', {}, title)),
    drawing.others.length > 0 &&
      h('div', { class: 'ap-dim ap-others' }, `× ${drawing.others.map(describeDim).join(' × ')}`),
    picture,
    h('div', { class: 'ap-dim' }, `${dtype} · ${formatBytes(bytes)}`),
    h('div', { class: 'ap-dim' }, split),
  );
}
