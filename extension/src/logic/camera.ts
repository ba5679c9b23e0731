/** What part of the plane is seen, what lies under a point, what is next to a box. Pure functions. */
import type { Scene, SceneBox } from './graph-scene';

export interface Camera {
  /** The point of the plane at the upper left corner of the picture. */
  x: number;
  y: number;
  /** Pixels of the page for a unit of the plane. */
  scale: number;
}

export interface Frame {
  w: number;
  h: number;
}

export const MOST_SCALE = 2.5;
export const LEAST_SCALE = 0.01;
const MARGIN = 14;

/** All of `area` in the picture, `most` times enlarged at most. `top` pixels are kept free. */
export function fit(area: { x: number; y: number; w: number; h: number }, frame: Frame, top = 0, most = 1): Camera {
  const scale = Math.max(
    LEAST_SCALE,
    Math.min(most, (frame.w - 2 * MARGIN) / area.w, (frame.h - top - 2 * MARGIN) / area.h),
  );
  return {
    scale,
    x: area.x + area.w / 2 - frame.w / 2 / scale,
    y: area.y + area.h / 2 - (frame.h + top) / 2 / scale,
  };
}

/** Enlarged by `factor`, the point at (px, py) of the picture staying where it is. */
export function zoom(camera: Camera, factor: number, px: number, py: number): Camera {
  const scale = Math.max(LEAST_SCALE, Math.min(MOST_SCALE, camera.scale * factor));
  return { scale, x: camera.x + px / camera.scale - px / scale, y: camera.y + py / camera.scale - py / scale };
}

/** Not so far that nothing is left to be seen. */
export function keepInSight(camera: Camera, scene: Scene, frame: Frame): Camera {
  const [w, h] = [frame.w / camera.scale, frame.h / camera.scale];
  const least = Math.min(60 / camera.scale, scene.w, scene.h);
  return {
    scale: camera.scale,
    x: Math.max(least - w, Math.min(scene.w - least, camera.x)),
    y: Math.max(least - h, Math.min(scene.h - least, camera.y)),
  };
}

/** Moved no further than needed for `box` to be seen; what is larger than the picture shows its beginning. */
export function reveal(camera: Camera, box: SceneBox, frame: Frame, top = 0): Camera {
  const { scale } = camera;
  const along = (from: number, size: number, start: number, length: number, before: number): number => {
    const margin = Math.min(MARGIN / scale, Math.max(0, (length - before - size) / 2));
    if (size > length - before || from < start + before + margin) return from - before - margin;
    return from + size > start + length - margin ? from + size - length + margin : start;
  };
  return {
    scale,
    x: along(box.x, box.w, camera.x, frame.w / scale, 0),
    y: along(box.y, box.h, camera.y, frame.h / scale, top / scale),
  };
}

/** In the middle of the picture, large enough to be read. */
export function centre(camera: Camera, box: SceneBox, frame: Frame): Camera {
  const scale = Math.max(camera.scale, 0.8);
  const [w, h] = [Math.min(box.w, frame.w / scale), Math.min(box.h, frame.h / scale)];
  return { scale, x: box.x + w / 2 - frame.w / 2 / scale, y: box.y + h / 2 - frame.h / 2 / scale };
}

const CELL_SIZE = 640;

/** Boxes and edges by where they are, so that a picture of a part looks at that part only. */
export class SceneIndex {
  private readonly across: number;
  private readonly down: number;
  private readonly boxes: number[][];
  private readonly edges: number[][];
  private readonly seen: Uint32Array;
  private turn = 0;

  constructor(private readonly scene: Scene) {
    this.across = Math.max(1, Math.ceil(scene.w / CELL_SIZE));
    this.down = Math.max(1, Math.ceil(scene.h / CELL_SIZE));
    const count = this.across * this.down;
    this.boxes = Array.from({ length: count }, () => []);
    this.edges = Array.from({ length: count }, () => []);
    this.seen = new Uint32Array(Math.max(scene.boxes.length, scene.edges.length));
    for (const [i, { x, y, w, h }] of scene.boxes.entries()) this.enter(this.boxes, i, x, y, x + w, y + h);
    for (const [i, { points }] of scene.edges.entries()) {
      let [x0, y0, x1, y1] = [points[0] ?? 0, points[1] ?? 0, points[0] ?? 0, points[1] ?? 0];
      for (let at = 2; at + 1 < points.length; at += 2) {
        x0 = Math.min(x0, points[at] ?? 0);
        x1 = Math.max(x1, points[at] ?? 0);
        y0 = Math.min(y0, points[at + 1] ?? 0);
        y1 = Math.max(y1, points[at + 1] ?? 0);
      }
      this.enter(this.edges, i, x0, y0, x1, y1);
    }
  }

  private enter(lists: number[][], index: number, x0: number, y0: number, x1: number, y1: number): void {
    this.visit(x0, y0, x1, y1, (at) => lists[at]?.push(index));
  }

  private visit(x0: number, y0: number, x1: number, y1: number, act: (at: number) => void): void {
    const clip = (value: number, count: number) => Math.max(0, Math.min(count - 1, Math.floor(value / CELL_SIZE)));
    const [left, right] = [clip(x0, this.across), clip(x1, this.across)];
    const [top, bottom] = [clip(y0, this.down), clip(y1, this.down)];
    for (let row = top; row <= bottom; row++) {
      for (let column = left; column <= right; column++) act(row * this.across + column);
    }
  }

  /** Positions of the boxes, or edges, that may be seen, groups before what is in them. */
  find(what: 'boxes' | 'edges', x0: number, y0: number, x1: number, y1: number): number[] {
    const found: number[] = [];
    this.turn++;
    this.visit(x0, y0, x1, y1, (at) => {
      for (const i of this[what][at] ?? []) {
        if (this.seen[i] === this.turn) continue;
        this.seen[i] = this.turn;
        found.push(i);
      }
    });
    return found;
  }

  /** The innermost box at a point; -1 where there is none. */
  hit(x: number, y: number): number {
    let best = -1;
    for (const i of this.find('boxes', x, y, x, y)) {
      const box = this.scene.boxes[i];
      if (box === undefined || x < box.x || y < box.y || x > box.x + box.w || y > box.y + box.h) continue;
      if (best < 0 || box.depth >= (this.scene.boxes[best]?.depth ?? 0)) best = i;
    }
    return best;
  }
}

export type Direction = 'up' | 'down' | 'left' | 'right';

/** How far `to` is from `from` in a direction; sideways counts double. Infinite where it lies elsewhere. */
function measureStep(from: SceneBox, to: SceneBox, direction: Direction): number {
  const isAcross = direction === 'left' || direction === 'right';
  const sign = direction === 'right' || direction === 'down' ? 1 : -1;
  const middle = (box: SceneBox): [number, number] => [box.x + box.w / 2, box.y + Math.min(box.h, 60) / 2];
  const [fx, fy] = middle(from);
  const [tx, ty] = middle(to);
  const along = sign * (isAcross ? tx - fx : ty - fy);
  const aside = isAcross
    ? Math.max(0, to.y - from.y - from.h, from.y - to.y - to.h)
    : Math.max(0, to.x - from.x - from.w, from.x - to.x - to.w);
  const offset = Math.abs(isAcross ? ty - fy : tx - fx);
  return along <= 1 ? Number.POSITIVE_INFINITY : along + 2 * aside + offset / 4;
}

function findNearest(scene: Scene, from: SceneBox, parent: number, direction: Direction): number {
  let [best, least] = [-1, Number.POSITIVE_INFINITY];
  for (const [i, box] of scene.boxes.entries()) {
    if (box.parent !== parent || box === from) continue;
    const distance = measureStep(from, box, direction);
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
}

/** The box that an arrow key leads to: into an open group, to the nearest beside, out of the group at its rim. */
export function step(scene: Scene, index: number, direction: Direction): number {
  const box = scene.boxes[index];
  if (box === undefined) return scene.boxes.length > 0 ? 0 : -1;
  if (direction === 'down' && box.isOpen && box.kind !== 'repeat') {
    let first = -1;
    for (const [i, child] of scene.boxes.entries()) {
      const best = scene.boxes[first];
      const isHigher = best === undefined || child.y < best.y || (child.y === best.y && child.x < best.x);
      if (child.parent === index && isHigher) first = i;
    }
    if (first >= 0) return first;
  }
  for (let from = index; from >= 0; from = scene.boxes[from]?.parent ?? -1) {
    const own = scene.boxes[from];
    if (own === undefined) break;
    const next = findNearest(scene, own, own.parent, direction);
    if (next >= 0) return next;
    if (direction === 'up' && own.parent >= 0) return own.parent;
  }
  return index;
}
