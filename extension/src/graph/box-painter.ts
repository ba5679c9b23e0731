/** What is written and drawn on one box: name, badges, chips, pin, meter. Units are those of the plane. */
import type { BoxMarks } from '../logic/box-marks';
import type { Scene, SceneBox } from '../logic/graph-scene';
import {
  detailBox,
  listCollectiveCounts,
  nameBox,
  numberLayers,
  ROLE_LETTERS,
  SHORT_KINDS,
} from '../logic/graph-words';
import type { IndexedPlan } from '../logic/plan-index';
import { type Palette, stageSlot } from './palette';
import { TextFitter } from './text-fitter';

/** Scale from which words are legible. */
export const WORDS_FROM = 0.58;

export class BoxPainter {
  readonly fitter: TextFitter;

  constructor(
    private readonly ctx: CanvasRenderingContext2D,
    private readonly palette: Palette,
    private readonly scene: Scene,
    private readonly indexed: IndexedPlan,
    private readonly marks: BoxMarks,
  ) {
    this.fitter = new TextFitter(ctx);
  }

  /** Sheets behind a box that stands for several. */
  drawStack(box: SceneBox, scale: number): void {
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

  drawWords(box: SceneBox): void {
    const { ctx, palette } = this;
    const isOp = box.kind === 'op';
    const top = box.y + (isOp ? 13 : 15);
    this.drawTitle(box, top, box.w - 16);
    ctx.fillStyle = palette.text;
    ctx.font = `11px ${isOp ? palette.codeFont : palette.font}`;
    ctx.textBaseline = 'middle';
    ctx.textAlign = 'left';
    const y = box.y + (isOp ? 28.5 : 34);
    const inset = 10;
    const chips = listCollectiveCounts(box);
    const room = isOp ? box.w - 2 * inset : this.drawChips(box, chips, y);
    ctx.fillStyle = palette.text;
    ctx.font = `11px ${isOp ? palette.codeFont : palette.font}`;
    const details = detailBox(box);
    const fitting = details.find((detail) => this.fitter.measure(detail) <= room) ?? details[0] ?? '';
    ctx.fillText(this.fitter.fit(fitting, room), box.x + inset, y);
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
    ctx.fillRect(box.x + 10, box.y + box.h - 9, w, 4);
    ctx.fillStyle = palette.border[stageSlot(box.stage)] ?? palette.line;
    ctx.fillRect(box.x + 10, box.y + box.h - 9, Math.max(1, w * share), 4);
  }

  /** Triangle, role, name; copies, pin and collective at the right. */
  drawTitle(box: SceneBox, y: number, width: number): void {
    const { ctx, palette } = this;
    let [left, right] = [box.x + 9, box.x + 8 + width];
    ctx.textBaseline = 'middle';
    if (box.canOpen) {
      this.drawTriangle(left, y, box.isOpen, palette.text);
      left += 13;
    }
    // Where columns have headings these say it.
    if (box.kind === 'cell' && this.scene.columns.length === 0) {
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
    right -= this.drawTitleEnd(box, right, y);
    ctx.textAlign = 'left';
    ctx.fillStyle = palette.text;
    ctx.font = `600 12px ${palette.font}`;
    ctx.fillText(this.fitter.fit(nameBox(box, this.indexed), Math.max(0, right - left)), left, y);
  }

  private drawTitleEnd(box: SceneBox, from: number, y: number): number {
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
    if (this.marks.countPins(box) > 0) {
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

  drawRepeat(box: SceneBox, scale: number): void {
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
    const y = box.y + Math.min(box.h, 56) / 2 - 9;
    this.drawTriangle(box.x + 4, y, box.isOpen, palette.text);
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    ctx.fillStyle = palette.text;
    ctx.font = `700 13px ${palette.font}`;
    ctx.fillText(`×${box.row.count}`, box.x + 18, y);
    ctx.fillStyle = palette.dim;
    ctx.font = `11px ${palette.font}`;
    ctx.fillText(numberLayers(box.row.layers), box.x + 18, y + 17);
  }

  /** Collectives of a group that is too small for chips. */
  drawStripes(box: SceneBox, scale: number): void {
    const w = 4 / scale;
    for (const [i, [kind]] of listCollectiveCounts(box).slice(0, 3).entries()) {
      this.ctx.fillStyle = this.palette.collectives.get(kind) ?? this.palette.line;
      this.ctx.fillRect(box.x + box.w - (i + 1) * w, box.y, w, box.h);
    }
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
}
