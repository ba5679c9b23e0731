/** Draws a scene on a canvas: what is too small to be read is left out, what is out of sight is not looked at. */
import type { Camera, Frame, SceneIndex } from '../logic/camera';
import { type Scene, type SceneBox, type SceneEdge, TITLE } from '../logic/graph-scene';
import { detailBox, listCollectiveCounts, nameBox, ROLE_LETTERS, SHORT_KINDS } from '../logic/graph-words';
import type { IndexedPlan } from '../logic/plan-index';
import { type Palette, stageSlot } from './palette';
import { TextFitter } from './text-fitter';

export interface Marks {
  /** Box with the keyboard, and box of the selection. */
  focus: number;
  selected: number;
  hovered: number;
  hasFocus: boolean;
  /** Ops that the filter leaves; null where it leaves all. */
  matches: ReadonlySet<number> | null;
  pinned: ReadonlySet<string>;
}

/** Pixels of the page: height of an op from which it has a border, from which it has words. */
const BORDER_FROM = 7;
const WORDS_FROM = 0.5;
const EDGES_FROM = 0.1;
/** Below this scale names of cells are laid over their ops. */
const OVERLAY_BELOW = 0.42;
const FADED = 0.22;
export const HEADING = 22;

export class Painter {
  private readonly fitter: TextFitter;
  private readonly pins = new Map<string, number>();
  private readonly matching = new Map<string, boolean>();

  constructor(
    private readonly ctx: CanvasRenderingContext2D,
    private readonly palette: Palette,
    private readonly scene: Scene,
    private readonly index: SceneIndex,
    private readonly indexed: IndexedPlan,
  ) {
    this.fitter = new TextFitter(ctx);
  }

  /** What marks say about boxes is kept until this is called. */
  forgetMarks(): void {
    this.pins.clear();
    this.matching.clear();
  }

  countPins(box: SceneBox, pinned: ReadonlySet<string>): number {
    const { part } = box;
    if (part === null || pinned.size === 0) return 0;
    if (part.kind === 'op') return pinned.has(part.op.name) ? 1 : 0;
    const known = this.pins.get(box.key);
    if (known !== undefined) return known;
    const count = part.ops.reduce((sum, op) => sum + (pinned.has(op.name) ? 1 : 0), 0);
    this.pins.set(box.key, count);
    return count;
  }

  private isFaded(box: SceneBox, matches: Marks['matches']): boolean {
    const { part } = box;
    if (matches === null) return false;
    if (part?.kind === 'op') return !matches.has(part.op.id);
    const known = this.matching.get(box.key);
    if (known !== undefined) return !known;
    const layers = new Set(box.row.layers);
    const ops = part === null || box.copies > 1 ? this.indexed.plan.ops.filter((op) => layers.has(op.layer)) : part.ops;
    const matching = ops.some((op) => matches.has(op.id) && (part === null || op.role === part.role));
    this.matching.set(box.key, matching);
    return !matching;
  }

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
    this.fillLeaves(leaves, scale, marks);
    for (const i of leaves) this.drawLeaf(boxes[i], i, scale, marks);
    if (scale < OVERLAY_BELOW) for (const i of frames) this.drawOverlay(boxes[i], scale);
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.drawHeadings(camera, frame);
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
      this.drawTitle(box, box.y + TITLE / 2 + 2, box.w - 16, marks);
    }
    this.drawRing(box, index, scale, marks);
  }

  private dash(box: SceneBox, scale: number): void {
    if (box.part?.role === 'update') this.ctx.setLineDash([5 / Math.max(scale, 0.4), 3 / Math.max(scale, 0.4)]);
  }

  /** All boxes of one colour after the other: changing colours costs more than filling. */
  private fillLeaves(leaves: readonly number[], scale: number, marks: Marks): void {
    const { ctx, palette } = this;
    const isSmall = scale < 0.3;
    const byStyle = new Map<string, SceneBox[]>();
    for (const i of leaves) {
      const box = this.scene.boxes[i];
      if (box === undefined || box.kind === 'repeat') continue;
      const kind = isSmall ? box.part?.collectives.keys().next().value : undefined;
      const style =
        kind === undefined ? (palette.fill[stageSlot(box.stage)] ?? '') : (palette.collectives.get(kind) ?? '');
      const isFaded = this.isFaded(box, marks.matches);
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
      this.drawRepeat(box, scale);
      this.drawRing(box, index, scale, marks);
      return;
    }
    const { ctx, palette } = this;
    const border = palette.border[stageSlot(box.stage)] ?? palette.line;
    if (box.h * scale >= BORDER_FROM) {
      ctx.globalAlpha = this.isFaded(box, marks.matches) ? FADED : 1;
      ctx.strokeStyle = border;
      ctx.lineWidth = 1 / Math.max(scale, 0.5);
      this.dash(box, scale);
      ctx.strokeRect(box.x, box.y, box.w, box.h);
      ctx.setLineDash([]);
      if (box.copies > 1 && box.kind === 'cell') this.drawStack(box, scale);
      if (box.part?.role === 'backward') {
        // A double edge tells backward from forward without its colour.
        ctx.beginPath();
        ctx.moveTo(box.x + 3.5, box.y);
        ctx.lineTo(box.x + 3.5, box.y + box.h);
        ctx.stroke();
      }
      if (scale >= WORDS_FROM) this.drawWords(box, marks);
      ctx.globalAlpha = 1;
    }
    this.drawRing(box, index, scale, marks);
  }

  /** Sheets behind a box that stands for several. */
  private drawStack(box: SceneBox, scale: number): void {
    const { ctx } = this;
    ctx.lineWidth = 1 / Math.max(scale, 0.5);
    ctx.beginPath();
    for (const off of [4, 8]) {
      ctx.moveTo(box.x + off, box.y + box.h + off - 4);
      ctx.lineTo(box.x + off, box.y + box.h + off);
      ctx.lineTo(box.x + box.w + off, box.y + box.h + off);
      ctx.lineTo(box.x + box.w + off, box.y + off);
      ctx.lineTo(box.x + box.w + off - 4, box.y + off);
    }
    ctx.stroke();
  }

  private drawWords(box: SceneBox, marks: Marks): void {
    const { ctx, palette } = this;
    const isOp = box.kind === 'op';
    const top = box.y + (isOp ? 13 : box.kind === 'cell' ? 17 : 15);
    this.drawTitle(box, top, box.w - 16, marks);
    ctx.fillStyle = palette.text;
    ctx.font = `11px ${isOp ? palette.codeFont : palette.font}`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    const y = box.y + (isOp ? 28.5 : box.kind === 'cell' ? 38 : 34);
    const inset = 10;
    const chips = listCollectiveCounts(box);
    const room = isOp ? box.w - 2 * inset : this.drawChips(box, chips, y);
    ctx.fillStyle = palette.text;
    ctx.font = `11px ${isOp ? palette.codeFont : palette.font}`;
    ctx.fillText(this.fitter.fit(detailBox(box), room), box.x + inset, y);
    if (box.kind === 'cell') this.drawMeter(box);
  }

  /** Chips at the right end; returns the room that is left of them. */
  private drawChips(box: SceneBox, chips: readonly [string, number][], y: number): number {
    const { ctx, palette } = this;
    let right = box.x + box.w - 8;
    ctx.font = `600 9.5px ${palette.font}`;
    for (const [kind, count] of chips.slice(0, 2)) {
      const text = count > 1 ? `${SHORT_KINDS[kind] ?? kind}×${count}` : (SHORT_KINDS[kind] ?? kind);
      const w = this.fitter.measure(text) + 8;
      ctx.fillStyle = palette.collectives.get(kind) ?? palette.line;
      ctx.fillRect(right - w, y - 7, w, 14);
      ctx.fillStyle = palette.ink;
      ctx.textAlign = 'left';
      ctx.fillText(text, right - w + 4, y + 0.5);
      right -= w + 3;
    }
    return right - box.x - 14;
  }

  /** How long it takes beside the longest of its kind: a bar at the lower rim. */
  private drawMeter(box: SceneBox): void {
    const { ctx, palette } = this;
    const share = (box.part?.seconds ?? 0) / this.longest;
    const w = box.w - 20;
    ctx.fillStyle = palette.soft[stageSlot(box.stage)] ?? palette.ground;
    ctx.fillRect(box.x + 10, box.y + box.h - 10, w, 4);
    ctx.fillStyle = palette.border[stageSlot(box.stage)] ?? palette.line;
    ctx.fillRect(box.x + 10, box.y + box.h - 10, Math.max(1, w * share), 4);
  }

  private longestKnown = 0;

  private get longest(): number {
    if (this.longestKnown === 0) {
      for (const box of this.scene.boxes) {
        if (box.kind === 'cell') this.longestKnown = Math.max(this.longestKnown, box.part?.seconds ?? 0);
      }
    }
    return this.longestKnown || 1;
  }

  /** Triangle, role, name; copies, pin and collective at the right. */
  private drawTitle(box: SceneBox, y: number, width: number, marks: Marks): void {
    const { ctx, palette } = this;
    let [left, right] = [box.x + 9, box.x + 8 + width];
    ctx.textBaseline = 'middle';
    if (box.canOpen) {
      this.drawTriangle(left, y, box.isOpen, palette.text);
      left += 13;
    }
    if (box.kind !== 'module') {
      this.drawRole(box, left + 7, y);
      left += 19;
    }
    if (box.stage !== null && box.kind === 'cell') {
      ctx.font = `700 10px ${palette.font}`;
      const text = String(box.stage);
      const w = Math.max(15, this.fitter.measure(text) + 8);
      ctx.fillStyle = palette.ground;
      ctx.fillRect(left, y - 7.5, w, 15);
      ctx.strokeStyle = palette.border[stageSlot(box.stage)] ?? palette.line;
      ctx.lineWidth = 1;
      ctx.strokeRect(left, y - 7.5, w, 15);
      ctx.fillStyle = palette.text;
      ctx.textAlign = 'center';
      ctx.fillText(text, left + w / 2, y + 0.5);
      left += w + 6;
    }
    right -= this.drawTitleEnd(box, right, y, marks);
    ctx.textAlign = 'left';
    ctx.fillStyle = palette.text;
    ctx.font = `600 12px ${palette.font}`;
    ctx.fillText(this.fitter.fit(nameBox(box, this.indexed), Math.max(0, right - left)), left, y);
  }

  private drawTitleEnd(box: SceneBox, from: number, y: number, marks: Marks): number {
    const { ctx, palette } = this;
    let right = from;
    if (box.copies > 1 && box.kind === 'cell') {
      ctx.font = `700 12px ${palette.font}`;
      ctx.fillStyle = palette.text;
      ctx.textAlign = 'right';
      const text = `×${box.copies}`;
      ctx.fillText(text, right, y);
      right -= this.fitter.measure(text) + 5;
    }
    if (this.countPins(box, marks.pinned) > 0) {
      this.drawPin(right - 6, y);
      right -= 17;
    }
    if (box.kind === 'op' && box.part?.kind === 'op') {
      const kinds = [...box.part.collectives.keys()];
      for (const kind of kinds.slice(0, 2)) {
        ctx.font = `600 9.5px ${palette.font}`;
        const text = SHORT_KINDS[kind] ?? kind;
        const w = this.fitter.measure(text) + 7;
        ctx.fillStyle = palette.collectives.get(kind) ?? palette.line;
        ctx.fillRect(right - w, y - 7, w, 13);
        ctx.fillStyle = palette.ink;
        ctx.textAlign = 'left';
        ctx.fillText(text, right - w + 3.5, y);
        right -= w + 3;
      }
    }
    return from - right;
  }

  private drawTriangle(x: number, y: number, isDown: boolean, colour: string): void {
    const { ctx } = this;
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.6;
    ctx.beginPath();
    if (isDown) {
      ctx.moveTo(x, y - 2);
      ctx.lineTo(x + 4, y + 2.5);
      ctx.lineTo(x + 8, y - 2);
    } else {
      ctx.moveTo(x + 2, y - 4);
      ctx.lineTo(x + 6.5, y);
      ctx.lineTo(x + 2, y + 4);
    }
    ctx.stroke();
  }

  /** F in a ring, B in a disc, U in a dashed ring, as in the list. */
  private drawRole(box: SceneBox, x: number, y: number): void {
    const { ctx, palette } = this;
    const role = box.part?.role;
    if (role === undefined) return;
    ctx.beginPath();
    ctx.arc(x, y, 7, 0, 2 * Math.PI);
    ctx.fillStyle = role === 'backward' ? palette.dim : palette.ground;
    ctx.fill();
    ctx.strokeStyle = palette.dim;
    ctx.lineWidth = 1;
    if (role === 'update') ctx.setLineDash([2, 2]);
    ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillStyle = role === 'backward' ? palette.ground : palette.text;
    ctx.font = `700 9px ${palette.font}`;
    ctx.textAlign = 'center';
    ctx.fillText(ROLE_LETTERS[role], x, y + 0.5);
  }

  private drawPin(x: number, y: number): void {
    const { ctx, palette } = this;
    ctx.fillStyle = palette.accent;
    ctx.strokeStyle = palette.accent;
    ctx.lineWidth = 1.4;
    ctx.beginPath();
    ctx.moveTo(x - 2.5, y - 6.5);
    ctx.lineTo(x + 2.5, y - 6.5);
    ctx.lineTo(x + 2, y - 2);
    ctx.lineTo(x + 5, y + 1);
    ctx.lineTo(x - 5, y + 1);
    ctx.lineTo(x - 2, y - 2);
    ctx.closePath();
    ctx.fill();
    ctx.beginPath();
    ctx.moveTo(x, y + 1);
    ctx.lineTo(x, y + 6.5);
    ctx.stroke();
  }

  private drawRepeat(box: SceneBox, scale: number): void {
    const { ctx, palette } = this;
    const border = palette.border[stageSlot(box.stage)] ?? palette.line;
    const right = box.x + box.w;
    ctx.strokeStyle = border;
    ctx.lineWidth = 2 / Math.max(scale, 0.5);
    ctx.beginPath();
    ctx.moveTo(right + 10, box.y);
    ctx.lineTo(right + 3, box.y);
    ctx.lineTo(right + 3, box.y + box.h);
    ctx.lineTo(right + 10, box.y + box.h);
    ctx.stroke();
    if (scale < WORDS_FROM) return;
    const y = box.y + Math.min(box.h, 62) / 2 - 8;
    this.drawTriangle(box.x + 4, y, box.isOpen, palette.text);
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    ctx.fillStyle = palette.text;
    ctx.font = `700 13px ${palette.font}`;
    ctx.fillText(`×${box.row.count}`, box.x + 18, y);
    ctx.fillStyle = palette.dim;
    ctx.font = `11px ${palette.font}`;
    ctx.fillText(this.fitter.fit(nameBox(box, this.indexed), box.w - 4), box.x + 4, y + 18);
  }

  private drawEdges(found: readonly number[], scale: number, marks: Marks): void {
    const { ctx, palette } = this;
    const focus = this.scene.boxes[marks.focus]?.key;
    const special: SceneEdge[] = [];
    ctx.strokeStyle = palette.line;
    ctx.lineWidth = Math.min(1.2, 1 / scale);
    ctx.globalAlpha = scale < 0.3 ? 0.55 : 0.85;
    ctx.beginPath();
    for (const i of found) {
      const edge = this.scene.edges[i];
      if (edge === undefined) continue;
      if (edge.resharding !== null || edge.from === focus || edge.to === focus) special.push(edge);
      else this.trace(edge.points, scale);
    }
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
    const w = this.fitter.measure(text) + 7;
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
    if (edge === undefined) return;
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
    if (box === undefined || box.kind !== 'cell') return;
    const [w, h] = [box.w * scale, box.h * scale];
    if (w < 34 || h < 16) return;
    const { ctx, palette } = this;
    const size = Math.min(13, Math.max(10, h / 6));
    ctx.font = `600 ${size / scale}px ${palette.font}`;
    const name = `${ROLE_LETTERS[box.part?.role ?? 'forward']} ${nameBox(box, this.indexed)}`;
    const text = this.fitter.fit(name, box.w - 6 / scale);
    if (text.length < 3) return;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    ctx.strokeStyle = palette.ground;
    ctx.lineWidth = 3.5 / scale;
    ctx.lineJoin = 'round';
    const [x, y] = [box.x + box.w / 2, box.y + box.h / 2];
    ctx.strokeText(text, x, y);
    ctx.fillStyle = palette.text;
    ctx.fillText(text, x, y);
  }

  /** Which column is forward, backward, update: stays at the top while the picture moves. */
  private drawHeadings(camera: Camera, frame: Frame): void {
    const { ctx, palette } = this;
    if (this.scene.columns.length === 0) return;
    ctx.fillStyle = palette.ground;
    ctx.globalAlpha = 0.9;
    ctx.fillRect(0, 0, frame.w, HEADING);
    ctx.globalAlpha = 1;
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
