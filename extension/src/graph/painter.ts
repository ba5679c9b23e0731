/** Draws a scene on a canvas: what is too small to be read is left out, what is out of sight is not looked at. */
import type { BoxMarks } from '../logic/box-marks';
import type { Camera, Frame, SceneIndex } from '../logic/camera';
import { type Scene, type SceneBox, type SceneEdge, TITLE } from '../logic/graph-scene';
import { nameBox, numberLayers, ROLE_LETTERS, SHORT_KINDS } from '../logic/graph-words';
import type { IndexedPlan } from '../logic/plan-index';
import { BoxPainter, WORDS_FROM } from './box-painter';
import { type Palette, stageSlot } from './palette';

export interface Marks {
  /** Box with the keyboard, and box of the selection. */
  focus: number;
  selected: number;
  hovered: number;
  hasFocus: boolean;
}

/** Pixels of the page: height of a box from which it has a border. */
const BORDER_FROM = 7;
const EDGES_FROM = 0.1;
/** Below this scale names of cells are laid over their ops. */
const OVERLAY_BELOW = 0.42;
/** Pixels of the page from one name of a cell to the next. */
const NAME_EVERY = 380;
const FADED = 0.22;
export const HEADING = 22;

export class Painter {
  private readonly words: BoxPainter;

  constructor(
    private readonly ctx: CanvasRenderingContext2D,
    private readonly palette: Palette,
    private readonly scene: Scene,
    private readonly index: SceneIndex,
    private readonly indexed: IndexedPlan,
    private readonly boxMarks: BoxMarks,
  ) {
    this.words = new BoxPainter(ctx, palette, scene, indexed, boxMarks);
  }

  /** The picture; headings of columns are drawn over it. */
  draw(camera: Camera, frame: Frame, ratio: number, marks: Marks): void {
    const { ctx, palette } = this;
    const { scale } = camera;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.ground;
    ctx.fillRect(0, 0, frame.w, frame.h);
    ctx.setTransform(ratio * scale, 0, 0, ratio * scale, -camera.x * scale * ratio, -camera.y * scale * ratio);
    const [x1, y1] = [camera.x + frame.w / scale, camera.y + frame.h / scale];
    const { boxes } = this.scene;
    const seen = this.index
      .find('boxes', camera.x, camera.y, x1, y1)
      .filter((i) => {
        const box = boxes[i];
        return box !== undefined && box.x < x1 && box.y < y1 && box.x + box.w > camera.x && box.y + box.h > camera.y;
      })
      .sort((a, b) => a - b);
    const frames = seen.filter((i) => boxes[i]?.isOpen === true && boxes[i]?.kind !== 'repeat');
    const leaves = seen.filter((i) => boxes[i]?.isOpen !== true || boxes[i]?.kind === 'repeat');
    for (const i of frames) this.drawFrame(boxes[i], i, scale, marks);
    if (scale >= EDGES_FROM) this.drawEdges(this.index.find('edges', camera.x, camera.y, x1, y1), scale, marks);
    this.fillLeaves(leaves, scale);
    for (const i of leaves) this.drawLeaf(boxes[i], i, scale, marks);
    if (scale >= WORDS_FROM) this.drawSticky(frames, camera);
    if (scale < OVERLAY_BELOW) for (const i of frames) this.drawOverlay(boxes[i], scale);
    if (scale < WORDS_FROM) for (const i of leaves) this.drawOverlay(boxes[i], scale);
  }

  /** Open groups: a soft ground, a border, a title. */
  private drawFrame(box: SceneBox | undefined, index: number, scale: number, marks: Marks): void {
    if (box === undefined) return;
    const { ctx, palette } = this;
    const slot = stageSlot(box.stage);
    ctx.fillStyle = palette.soft[slot] ?? palette.ground;
    ctx.fillRect(box.x, box.y, box.w, box.h);
    ctx.strokeStyle = palette.border[slot] ?? palette.line;
    ctx.lineWidth = (box.kind === 'cell' ? 1.5 : 1) / Math.max(scale, 0.3);
    this.dash(box, scale);
    ctx.strokeRect(box.x, box.y, box.w, box.h);
    ctx.setLineDash([]);
    if (scale >= WORDS_FROM) {
      this.words.drawTitle(box, box.y + TITLE / 2 + 2, box.w - 16);
    }
    this.drawRing(box, index, scale, marks);
  }

  private dash(box: SceneBox, scale: number): void {
    if (box.part?.role === 'update') this.ctx.setLineDash([5 / Math.max(scale, 0.4), 3 / Math.max(scale, 0.4)]);
  }

  /** All boxes of one colour after the other: changing colours costs more than filling. */
  private fillLeaves(leaves: readonly number[], scale: number): void {
    const { ctx, palette } = this;
    const isSmall = scale < 0.3;
    const byStyle = new Map<string, SceneBox[]>();
    for (const i of leaves) {
      const box = this.scene.boxes[i];
      if (box === undefined || box.kind === 'repeat') continue;
      const kind = isSmall ? box.part?.collectives.keys().next().value : undefined;
      const slot = stageSlot(box.stage);
      const own = isSmall ? palette.strong[slot]?.[box.part?.role ?? 'forward'] : palette.fill[slot];
      const style = kind === undefined ? (own ?? '') : (palette.collectives.get(kind) ?? '');
      const isFaded = this.boxMarks.isFaded(box);
      const key = `${isFaded ? FADED : 1} ${style}`;
      const list = byStyle.get(key);
      if (list === undefined) byStyle.set(key, [box]);
      else list.push(box);
    }
    for (const [key, list] of byStyle) {
      const space = key.indexOf(' ');
      ctx.globalAlpha = Number(key.slice(0, space));
      ctx.fillStyle = key.slice(space + 1);
      for (const box of list) ctx.fillRect(box.x, box.y, box.w, box.h);
    }
    ctx.globalAlpha = 1;
  }

  private drawLeaf(box: SceneBox | undefined, index: number, scale: number, marks: Marks): void {
    if (box === undefined) return;
    if (box.kind === 'repeat') {
      this.words.drawRepeat(box, scale);
      this.drawRing(box, index, scale, marks);
      return;
    }
    const { ctx, palette } = this;
    const border = palette.border[stageSlot(box.stage)] ?? palette.line;
    if (box.h * scale >= BORDER_FROM) {
      ctx.globalAlpha = this.boxMarks.isFaded(box) ? FADED : 1;
      ctx.strokeStyle = border;
      ctx.lineWidth = 1 / Math.max(scale, 0.5);
      this.dash(box, scale);
      ctx.strokeRect(box.x, box.y, box.w, box.h);
      ctx.setLineDash([]);
      if (box.copies > 1 && box.kind === 'cell') this.words.drawStack(box, scale);
      if (box.part?.role === 'backward') {
        // A double edge tells backward from forward without its colour.
        ctx.beginPath();
        ctx.moveTo(box.x + 3.5, box.y);
        ctx.lineTo(box.x + 3.5, box.y + box.h);
        ctx.stroke();
      }
      if (scale >= WORDS_FROM) this.words.drawWords(box);
      ctx.globalAlpha = 1;
    }
    this.drawRing(box, index, scale, marks);
  }

  private drawEdges(found: readonly number[], scale: number, marks: Marks): void {
    const { ctx, palette } = this;
    const focus = this.scene.boxes[marks.focus]?.key;
    const special: SceneEdge[] = [];
    const faint: SceneEdge[] = [];
    ctx.strokeStyle = palette.line;
    ctx.lineWidth = Math.min(1.2, 1 / scale);
    ctx.globalAlpha = scale < 0.3 ? 0.55 : 0.85;
    ctx.beginPath();
    for (const i of found) {
      const edge = this.scene.edges[i];
      if (edge === undefined) continue;
      if (edge.resharding !== null || edge.from === focus || edge.to === focus) special.push(edge);
      else if (edge.isFaint === true) faint.push(edge);
      else this.trace(edge.points, scale);
    }
    ctx.stroke();
    ctx.globalAlpha = 0.3;
    ctx.beginPath();
    for (const edge of faint) this.trace(edge.points, scale);
    ctx.stroke();
    ctx.globalAlpha = 1;
    if (scale >= 0.3) for (const i of found) this.drawHead(this.scene.edges[i], palette.line);
    for (const edge of special) {
      const isNear = edge.from === focus || edge.to === focus;
      const colour =
        edge.resharding === null ? palette.accent : (palette.collectives.get(edge.resharding) ?? palette.line);
      ctx.strokeStyle = colour;
      ctx.lineWidth = (isNear ? 2.2 : 2.4) / Math.max(0.5, scale);
      if (edge.resharding !== null) ctx.setLineDash([6, 3]);
      ctx.beginPath();
      this.trace(edge.points, scale);
      ctx.stroke();
      ctx.setLineDash([]);
      if (scale >= 0.3) this.drawHead(edge, colour);
      if (edge.resharding !== null && scale >= WORDS_FROM) this.drawEdgeChip(edge, colour);
    }
  }

  private drawEdgeChip(edge: SceneEdge, colour: string): void {
    const { ctx, palette } = this;
    const { points } = edge;
    const at = Math.floor(points.length / 4) * 2;
    const isPair = points.length === 4;
    const x = isPair ? ((points[0] ?? 0) + (points[2] ?? 0)) / 2 : (points[at] ?? 0);
    const y = isPair ? ((points[1] ?? 0) + (points[3] ?? 0)) / 2 : (points[at + 1] ?? 0);
    const text = SHORT_KINDS[edge.resharding ?? ''] ?? '';
    ctx.font = `600 9.5px ${palette.font}`;
    const w = this.words.fitter.measure(text) + 7;
    ctx.fillStyle = colour;
    ctx.fillRect(x - w / 2, y - 7, w, 14);
    ctx.fillStyle = palette.ink;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    ctx.fillText(text, x, y + 0.5);
  }

  /** Bends are rounded where they are large enough to be seen. */
  private trace(points: readonly number[], scale: number): void {
    const { ctx } = this;
    ctx.moveTo(points[0] ?? 0, points[1] ?? 0);
    const last = points.length - 2;
    if (scale < 0.3) {
      for (let i = 2; i <= last; i += 2) ctx.lineTo(points[i] ?? 0, points[i + 1] ?? 0);
      return;
    }
    for (let i = 2; i < last; i += 2) {
      const [x, y] = [points[i] ?? 0, points[i + 1] ?? 0];
      ctx.quadraticCurveTo(x, y, (x + (points[i + 2] ?? x)) / 2, (y + (points[i + 3] ?? y)) / 2);
    }
    ctx.lineTo(points[last] ?? 0, points[last + 1] ?? 0);
  }

  private drawHead(edge: SceneEdge | undefined, colour: string): void {
    if (edge === undefined || edge.isFaint === true) return;
    const { points } = edge;
    const n = points.length;
    const [x, y] = [points[n - 2] ?? 0, points[n - 1] ?? 0];
    const [dx, dy] = [x - (points[n - 4] ?? x), y - (points[n - 3] ?? y)];
    const length = Math.hypot(dx, dy) || 1;
    const [ux, uy] = [(dx / length) * 6, (dy / length) * 6];
    const { ctx } = this;
    ctx.fillStyle = colour;
    ctx.beginPath();
    ctx.moveTo(x, y);
    ctx.lineTo(x - ux - uy * 0.55, y - uy + ux * 0.55);
    ctx.lineTo(x - ux + uy * 0.55, y - uy - ux * 0.55);
    ctx.fill();
  }

  private drawRing(box: SceneBox, index: number, scale: number, marks: Marks): void {
    if (index !== marks.focus && index !== marks.selected && index !== marks.hovered) return;
    const { ctx, palette } = this;
    const unit = 1 / scale;
    ctx.setLineDash([]);
    if (index === marks.hovered && index !== marks.selected) {
      ctx.strokeStyle = palette.text;
      ctx.lineWidth = 1.5 * unit;
      ctx.strokeRect(box.x, box.y, box.w, box.h);
    }
    if (index === marks.selected || index === marks.focus) {
      ctx.strokeStyle = index === marks.selected ? palette.text : palette.accent;
      ctx.lineWidth = 2.5 * unit;
      ctx.strokeRect(box.x - 1.5 * unit, box.y - 1.5 * unit, box.w + 3 * unit, box.h + 3 * unit);
    }
    if (index === marks.focus && marks.hasFocus) {
      ctx.strokeStyle = palette.accent;
      ctx.lineWidth = 2 * unit;
      ctx.strokeRect(box.x - 5 * unit, box.y - 5 * unit, box.w + 10 * unit, box.h + 10 * unit);
    }
  }

  /** Names of cells over ops that are too small for words. */
  private drawOverlay(box: SceneBox | undefined, scale: number): void {
    if (box === undefined || box.kind === 'op' || (box.isOpen && box.kind === 'module')) return;
    const [w, h] = [box.w * scale, box.h * scale];
    if (w < (box.kind === 'repeat' ? 20 : 30) || h < 12) return;
    const { ctx, palette } = this;
    const size = box.isOpen ? Math.min(13, Math.max(10, h / 6)) : 10;
    ctx.font = `600 ${size / scale}px ${palette.font}`;
    const letter = box.kind === 'cell' && box.isOpen ? `${ROLE_LETTERS[box.part?.role ?? 'forward']} ` : '';
    const name = box.kind === 'repeat' ? `×${box.row.count}` : `${letter}${nameBox(box, this.indexed)}`;
    const room = box.w - 6 / scale;
    const fitted = this.words.fitter.fit(name, room);
    // A name of which little is left says less than the number.
    const short = `${letter}${numberLayers(box.part === null ? box.row.layers : [box.part.layer])}`;
    const isGood = fitted === name || fitted.length > 8 || box.kind === 'module';
    const text = isGood ? fitted : this.words.fitter.measure(short) <= room ? short : letter.trim();
    if (text === '') return;
    if (!box.isOpen) this.words.drawStripes(box, scale);
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    ctx.strokeStyle = palette.ground;
    ctx.lineWidth = 3.5 / scale;
    ctx.lineJoin = 'round';
    ctx.fillStyle = palette.text;
    // More than once on what is high, so that one of them is in sight.
    const turns = Math.max(1, Math.floor(h / NAME_EVERY));
    for (let turn = 0; turn < turns; turn++) {
      const [x, y] = [box.x + box.w / 2, box.y + (box.h * (turn + 0.5)) / turns];
      ctx.strokeText(text, x, y);
      ctx.fillText(text, x, y);
    }
  }

  /** Titles of open groups that begin above the picture stay at its top. */
  private drawSticky(frames: readonly number[], camera: Camera): void {
    const { ctx, palette } = this;
    const top = camera.y + (this.scene.columns.length > 0 ? HEADING / camera.scale : 0);
    for (const i of frames) {
      const box = this.scene.boxes[i];
      if (box === undefined) continue;
      const y = top + box.depth * TITLE;
      if (box.y >= y || box.y + box.h < y + TITLE) continue;
      const slot = stageSlot(box.stage);
      ctx.fillStyle = palette.fill[slot] ?? palette.ground;
      ctx.fillRect(box.x, y, box.w, TITLE);
      ctx.strokeStyle = palette.border[slot] ?? palette.line;
      ctx.lineWidth = 1;
      ctx.strokeRect(box.x, y, box.w, TITLE);
      this.words.drawTitle(box, y + TITLE / 2, box.w - 16);
    }
  }

  /** Which column is forward, backward, update: stays at the top while the picture moves. */
  drawHeadings(camera: Camera, frame: Frame, ratio: number): void {
    const { ctx, palette } = this;
    if (this.scene.columns.length === 0) return;
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.fillStyle = palette.ground;
    ctx.fillRect(0, 0, frame.w, HEADING);
    ctx.font = `600 11.5px ${palette.font}`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'center';
    ctx.fillStyle = palette.dim;
    const arrows = { forward: '↓', backward: '↑', update: '' };
    for (const { role, x, w } of this.scene.columns) {
      const [from, to] = [(x - camera.x) * camera.scale, (x + w - camera.x) * camera.scale];
      const [left, right] = [Math.max(0, from), Math.min(frame.w, to)];
      if (right - left > 60) ctx.fillText(`${role} ${arrows[role]}`, (left + right) / 2, HEADING / 2 + 1);
    }
    ctx.strokeStyle = palette.line;
    ctx.globalAlpha = 0.4;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(0, HEADING + 0.5);
    ctx.lineTo(frame.w, HEADING + 0.5);
    ctx.stroke();
    ctx.globalAlpha = 1;
  }
}
