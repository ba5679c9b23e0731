/** The predicted pipeline on a canvas: a row for each stage, microbatches numbered, bubbles hatched. */
import { inkOn, mix, stageColour } from '../logic/colours';
import { formatPercent, formatSeconds } from '../logic/format';
import {
  listTicks,
  measureBusy,
  playSchedule,
  showRecording,
  sumTransfers,
  type TaskKind,
  type Timeline,
  type TimelineEvent,
} from '../logic/schedule';
import type { AppState } from '../logic/store';
import { button, h, refill, table } from './dom';
import { findSelectedStage } from './map';
import { isStale, type View, type ViewContext } from './view';

const ROW = 30;
const GAP = 8;
const AXIS = 22;
const LEFT = 74;
const RIGHT = 12;

interface Theme {
  text: string;
  dim: string;
  line: string;
  ground: string;
  font: string;
}

const ROLE_SHADE: Record<TaskKind, number> = { forward: 0.45, backward: 0, update: 0.3 };

export class TimelineView implements View {
  readonly node: HTMLElement;
  readonly tools: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  private readonly tip = h('div', { class: 'ap-tip', hidden: true });
  private readonly mirror = h('div', { class: 'ap-hidden' });
  private readonly observers: { disconnect(): void }[] = [];
  private rows: { label: string; stage: number; timeline: Timeline; isMeasured: boolean }[] = [];
  private view = { start: 0, end: 1 };
  private makespan = 0;
  private selected: number | null = null;
  private showsMeasured = true;
  private shown: AppState | null = null;
  private readonly toggle: HTMLElement;
  private frame = 0;

  constructor(private readonly context: ViewContext) {
    this.canvas = h('canvas', {
      class: 'ap-canvas',
      tabindex: 0,
      role: 'img',
      'data-lm-suppress-shortcuts': 'true',
      on: {
        pointermove: (event) => this.handleMove(event),
        pointerleave: () => this.showTip(null, 0, 0),
        pointerdown: (event) => this.handleDown(event),
        dblclick: () => this.setView(0, this.makespan),
        keydown: (event) => this.handleKey(event),
      },
    });
    this.canvas.addEventListener('wheel', (event) => this.handleWheel(event), { passive: false });
    const tool = (label: string, name: 'plus' | 'minus' | 'fit', act: () => void) =>
      button(label, act, { icon: name, showsLabel: false, class: 'ap-quiet' });
    this.toggle = button('Measured', () => this.toggleMeasured(), { class: 'ap-quiet ap-toggle-measured' });
    this.toggle.setAttribute('aria-pressed', 'true');
    this.toggle.hidden = true;
    this.tools = h(
      'span',
      {},
      h('span', { class: 'ap-timeline-key' }),
      this.toggle,
      tool('Zoom in', 'plus', () => this.zoom(0.5)),
      tool('Zoom out', 'minus', () => this.zoom(2)),
      tool('Fit', 'fit', () => this.setView(0, this.makespan)),
    );
    this.node = h('div', { class: 'ap-timeline' }, this.canvas, this.tip, this.mirror);
    const resize = new ResizeObserver(() => this.redraw());
    resize.observe(this.node);
    // A canvas does not follow CSS variables by itself.
    const theme = new MutationObserver(() => this.redraw());
    theme.observe(document.body, {
      attributes: true,
      attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name', 'class'],
    });
    theme.observe(document.documentElement, { attributes: true, attributeFilter: ['theme', 'class', 'data-theme'] });
    const scheme = window.matchMedia('(prefers-color-scheme: dark)');
    const follow = (): void => this.redraw();
    scheme.addEventListener('change', follow);
    this.observers.push(resize, theme, { disconnect: () => scheme.removeEventListener('change', follow) });
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    for (const observer of this.observers) observer.disconnect();
  }

  update(state: AppState, before: AppState | null): void {
    const isNew =
      before === null ||
      state.indexed !== before.indexed ||
      state.measured !== before.measured ||
      state.recording !== before.recording;
    this.shown = state;
    if (isNew) this.simulate(state);
    this.node.classList.toggle('ap-stale', isStale(state));
    const selected = findSelectedStage(state);
    if (selected !== this.selected) {
      this.selected = selected;
      this.redraw();
    }
  }

  private toggleMeasured(): void {
    this.showsMeasured = !this.showsMeasured;
    this.toggle.setAttribute('aria-pressed', String(this.showsMeasured));
    if (this.shown !== null) this.simulate(this.shown);
  }

  private simulate({ indexed, measured, recording }: AppState): void {
    const plan = indexed?.plan;
    this.toggle.hidden = true;
    if (plan === undefined) {
      this.rows = [];
      this.makespan = 0;
      this.redraw();
      return;
    }
    const sends = sumTransfers(plan.transfers);
    const predicted = playSchedule(plan.schedule, plan.stages, plan.num_microbatches, sends);
    const seen = plan.stages.map((stage) => measured?.[String(stage.index)]);
    const isComplete = seen.every((times) => times !== undefined);
    const recorded = recording === null ? null : showRecording(recording, plan.stages.length);
    const played =
      isComplete && seen.length > 0
        ? playSchedule(
            plan.schedule,
            seen.filter((times) => times !== undefined),
            plan.num_microbatches,
          )
        : null;
    const seenAt = recorded ?? played;
    this.toggle.hidden = seenAt === null;
    const observed = this.showsMeasured ? seenAt : null;
    const label = recorded === null ? 'measured' : 'recorded';
    this.rows = plan.stages.flatMap((stage) => [
      { label: `stage ${stage.index}`, stage: stage.index, timeline: predicted, isMeasured: false },
      ...(observed === null ? [] : [{ label, stage: stage.index, timeline: observed, isMeasured: true }]),
    ]);
    const makespan = Math.max(predicted.makespan, observed?.makespan ?? 0);
    this.makespan = makespan;
    this.view = { start: 0, end: makespan || 1 };
    this.describe(predicted, plan.schedule, plan.num_microbatches, observed, label);
    this.redraw();
  }

  private describe(
    timeline: Timeline,
    schedule: string,
    numMicrobatches: number,
    observed: Timeline | null,
    label: string,
  ): void {
    const seen = observed === null ? '' : `; ${label}: ${formatSeconds(observed.makespan)}`;
    const stages = timeline.events.map((events, stage) => ({ stage, busy: measureBusy(timeline, stage), events }));
    const words = stages.map(({ stage, busy }) => `stage ${stage} works ${formatPercent(busy)} of it`).join(', ');
    this.canvas.setAttribute(
      'aria-label',
      `Predicted ${schedule} schedule of ${numMicrobatches} microbatches, ${formatSeconds(timeline.makespan)}: ${words}${seen}`,
    );
    const key = this.tools.querySelector('.ap-timeline-key');
    key?.replaceChildren(
      h('span', { class: 'ap-key ap-key-forward' }, 'forward'),
      h('span', { class: 'ap-key ap-key-backward' }, 'backward'),
      h('span', { class: 'ap-key ap-key-update' }, 'update'),
      h('span', { class: 'ap-key ap-key-bubble' }, 'bubble'),
    );
    const columns = [
      { title: 'stage' },
      { title: 'busy' },
      { title: 'bubble' },
      { title: 'first forward' },
      { title: 'end' },
    ];
    const rows = stages.map(({ stage, busy, events }) => [
      String(stage),
      formatPercent(busy),
      formatPercent(1 - busy),
      formatSeconds(events[0]?.start ?? 0),
      formatSeconds(events[events.length - 1]?.end ?? 0),
    ]);
    refill(this.mirror, table('Schedule by stage', columns, rows));
  }

  private setView(start: number, end: number): void {
    const least = this.makespan / 400;
    const length = Math.min(this.makespan, Math.max(least, end - start));
    const from = Math.max(0, Math.min(this.makespan - length, start));
    this.view = { start: from, end: from + length };
    this.redraw();
  }

  private zoom(factor: number, around?: number): void {
    const { start, end } = this.view;
    const centre = around ?? (start + end) / 2;
    this.setView(centre - (centre - start) * factor, centre + (end - centre) * factor);
  }

  private pan(share: number): void {
    const length = this.view.end - this.view.start;
    this.setView(this.view.start + share * length, this.view.end + share * length);
  }

  private timeAt(x: number): number {
    const width = this.canvas.clientWidth - LEFT - RIGHT;
    return this.view.start + ((x - LEFT) / width) * (this.view.end - this.view.start);
  }

  private handleWheel(event: WheelEvent): void {
    // Without a modifier the wheel scrolls the notebook.
    if (!event.ctrlKey && !event.metaKey && !event.altKey) return;
    event.preventDefault();
    this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
  }

  private handleKey(event: KeyboardEvent): void {
    const acts: Record<string, () => void> = {
      ArrowLeft: () => this.pan(-0.2),
      ArrowRight: () => this.pan(0.2),
      '+': () => this.zoom(0.5),
      '=': () => this.zoom(0.5),
      '-': () => this.zoom(2),
      '0': () => this.setView(0, this.makespan),
    };
    const act = acts[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  }

  private handleDown(event: PointerEvent): void {
    const from = event.offsetX;
    const { start, end } = this.view;
    const perPixel = (end - start) / Math.max(1, this.canvas.clientWidth - LEFT - RIGHT);
    let hasMoved = false;
    this.canvas.setPointerCapture(event.pointerId);
    const move = (e: PointerEvent): void => {
      hasMoved ||= Math.abs(e.offsetX - from) > 3;
      if (hasMoved) this.setView(start - (e.offsetX - from) * perPixel, end - (e.offsetX - from) * perPixel);
    };
    const up = (e: PointerEvent): void => {
      this.canvas.removeEventListener('pointermove', move);
      this.canvas.removeEventListener('pointerup', up);
      const row = this.rows[this.rowAt(e.offsetY)];
      if (!hasMoved && row !== undefined)
        this.context.dispatch({ type: 'select', selection: { kind: 'stage', stage: row.stage } });
    };
    this.canvas.addEventListener('pointermove', move);
    this.canvas.addEventListener('pointerup', up);
  }

  private rowAt(y: number): number {
    return Math.floor((y - AXIS) / (ROW + GAP));
  }

  private handleMove(event: PointerEvent): void {
    const row = this.rows[this.rowAt(event.offsetY)];
    const time = this.timeAt(event.offsetX);
    if (row === undefined || event.offsetX < LEFT || time < 0) {
      this.showTip(null, 0, 0);
      return;
    }
    const hit = row.timeline.events[row.stage]?.find((e) => e.start <= time && time < e.end);
    const bubble = row.timeline.bubbles.find((b) => b.stage === row.stage && b.start <= time && time < b.end);
    const what =
      hit === undefined ? bubble && `bubble of ${formatSeconds(bubble.end - bubble.start)}` : this.describeEvent(hit);
    this.showTip(what === undefined ? null : `${row.label}: ${what}`, event.offsetX, event.offsetY);
  }

  private describeEvent(event: TimelineEvent): string {
    const which = event.kind === 'update' ? '' : ` of microbatch ${event.microbatch}`;
    const part = event.part === undefined ? '' : ` (gradients of ${event.part})`;
    return `${event.kind}${part}${which}, ${formatSeconds(event.start)} to ${formatSeconds(event.end)} (${formatSeconds(event.end - event.start)})`;
  }

  private showTip(text: string | null, x: number, y: number): void {
    this.tip.hidden = text === null;
    if (text === null) return;
    this.tip.textContent = text;
    const most = this.node.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(0, Math.min(x + 12, most))}px`;
    this.tip.style.top = `${y + 14}px`;
  }

  private redraw(): void {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private readTheme(): Theme {
    const style = getComputedStyle(this.node);
    const read = (name: string, fallback: string) => style.getPropertyValue(name).trim() || fallback;
    return {
      text: style.color,
      dim: read('--ap-dim-computed', style.color),
      line: getComputedStyle(this.mirror).borderTopColor || '#888',
      ground: getComputedStyle(this.mirror).backgroundColor || '#fff',
      font: style.fontFamily,
    };
  }

  private draw(): void {
    const width = this.node.clientWidth;
    const height = AXIS + this.rows.length * (ROW + GAP);
    if (width === 0) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const ctx = this.canvas.getContext('2d');
    if (ctx === null || this.makespan === 0) return;
    ctx.scale(ratio, ratio);
    const theme = this.readTheme();
    const span = width - LEFT - RIGHT;
    const toX = (time: number): number => LEFT + ((time - this.view.start) / (this.view.end - this.view.start)) * span;
    this.drawAxis(ctx, theme, toX, height);
    ctx.save();
    ctx.beginPath();
    ctx.rect(LEFT, 0, span + 1, height);
    ctx.clip();
    for (const [i, row] of this.rows.entries()) {
      const top = AXIS + i * (ROW + GAP);
      for (const bubble of row.timeline.bubbles) {
        if (bubble.stage === row.stage) this.drawBubble(ctx, theme, toX(bubble.start), toX(bubble.end), top);
      }
      for (const event of row.timeline.events[row.stage] ?? [])
        this.drawEvent(ctx, theme, event, toX, top, row.isMeasured);
    }
    ctx.restore();
    this.drawLabels(ctx, theme);
  }

  private drawAxis(ctx: CanvasRenderingContext2D, theme: Theme, toX: (t: number) => number, height: number): void {
    ctx.font = `11px ${theme.font}`;
    ctx.textBaseline = 'alphabetic';
    const ticks = listTicks(this.view.start, this.view.end, Math.max(2, Math.floor(this.canvas.clientWidth / 110)));
    for (const tick of ticks) {
      const x = Math.round(toX(tick)) + 0.5;
      ctx.strokeStyle = theme.line;
      ctx.globalAlpha = 0.55;
      ctx.beginPath();
      ctx.moveTo(x, AXIS - 6);
      ctx.lineTo(x, height);
      ctx.stroke();
      ctx.globalAlpha = 1;
      ctx.fillStyle = theme.text;
      ctx.textAlign = tick === 0 ? 'left' : x > this.canvas.clientWidth - 40 ? 'right' : 'center';
      ctx.fillText(formatSeconds(tick), x, AXIS - 10);
    }
  }

  private drawBubble(ctx: CanvasRenderingContext2D, theme: Theme, x0: number, x1: number, top: number): void {
    const left = Math.max(LEFT, x0);
    const right = Math.min(this.canvas.clientWidth - RIGHT, x1);
    if (right - left < 1) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(left, top, right - left, ROW);
    ctx.clip();
    ctx.strokeStyle = theme.line;
    ctx.lineWidth = 1;
    ctx.beginPath();
    for (let x = Math.floor(left / 7) * 7 - ROW; x < right; x += 7) {
      ctx.moveTo(x, top + ROW);
      ctx.lineTo(x + ROW, top);
    }
    ctx.stroke();
    ctx.restore();
  }

  private drawEvent(
    ctx: CanvasRenderingContext2D,
    theme: Theme,
    event: TimelineEvent,
    toX: (t: number) => number,
    top: number,
    isMeasured: boolean,
  ): void {
    const x0 = toX(event.start);
    const x1 = toX(event.end);
    if (x1 < LEFT || x0 > this.canvas.clientWidth) return;
    const w = Math.max(1, x1 - x0 - (x1 - x0 > 4 ? 1 : 0));
    const base = stageColour(event.stage);
    const shade = ROLE_SHADE[event.kind];
    const colour = event.kind === 'update' ? mix(base, '#000000', shade) : mix(base, '#ffffff', shade);
    const height = isMeasured ? ROW - 8 : ROW;
    ctx.fillStyle = colour;
    ctx.fillRect(x0, top, w, height);
    if (isMeasured) {
      ctx.strokeStyle = theme.text;
      ctx.strokeRect(x0 + 0.5, top + 0.5, Math.max(0, w - 1), height - 1);
    }
    if (event.kind === 'update' && w > 3) {
      ctx.strokeStyle = inkOn(colour);
      ctx.setLineDash([2, 2]);
      ctx.strokeRect(x0 + 1.5, top + 1.5, Math.max(0, w - 3), height - 3);
      ctx.setLineDash([]);
    }
    const label = event.kind === 'update' ? 'U' : String(event.microbatch);
    if (w < 7 + label.length * 6) return;
    ctx.fillStyle = inkOn(colour);
    ctx.font = `${event.kind === 'forward' ? '' : '600 '}11px ${theme.font}`;
    ctx.textAlign = 'center';
    ctx.textBaseline = 'middle';
    ctx.fillText(
      label,
      Math.max(x0, LEFT) + (Math.min(x1, this.canvas.clientWidth) - Math.max(x0, LEFT)) / 2,
      top + height / 2 + 1,
    );
  }

  private drawLabels(ctx: CanvasRenderingContext2D, theme: Theme): void {
    ctx.textAlign = 'left';
    ctx.textBaseline = 'middle';
    for (const [i, row] of this.rows.entries()) {
      const middle = AXIS + i * (ROW + GAP) + ROW / 2;
      if (!row.isMeasured) {
        ctx.fillStyle = stageColour(row.stage);
        ctx.fillRect(0, middle - 8, 4, 16);
      }
      ctx.fillStyle = theme.text;
      ctx.font = `${row.stage === this.selected && !row.isMeasured ? '600 ' : ''}12px ${theme.font}`;
      ctx.fillText(row.label, 9, middle);
    }
  }
}
