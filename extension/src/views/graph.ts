/** The op graph: layers folded into blocks on a canvas that is moved, enlarged, unfolded, and walked by keyboard. */
import { Arranger } from '../graph/arranger';
import { HEADING, type Marks, Painter } from '../graph/painter';
import { type Palette, readPalette, watchTheme } from '../graph/palette';
import { PanCache } from '../graph/pan-cache';
import { BoxMarks } from '../logic/box-marks';
import * as cameras from '../logic/camera';
import { findRepeatAbove, layOut, type Scene, type SceneBox, TITLE } from '../logic/graph-scene';
import { explainBox } from '../logic/graph-words';
import { buildOpGraph, cellKey, listGroupsAbove, type OpGraph } from '../logic/op-graph';
import { isFiltering, listPinnedOps, selectOps } from '../logic/program-tree';
import type { AppState, Selection } from '../logic/store';
import { layOutWhole } from '../logic/whole-scene';
import { h } from './dom';
import { GraphMirror } from './graph-mirror';
import { GraphPointer } from './graph-pointer';
import { isStale, type View, type ViewContext } from './view';

let lastHint = 0;

/** What is drawn while nothing is known. */
const NO_SCENE: Scene = { boxes: [], edges: [], byKey: new Map(), columns: [], w: 1, h: 1 };
const NO_CAMERA: cameras.Camera = { x: 0, y: 0, scale: 1 };

/** Scale below which the picture is copied while it is moved. */
const COPIED_BELOW = 0.3;

const ARROWS: Record<string, cameras.Direction> = {
  ArrowUp: 'up',
  ArrowDown: 'down',
  ArrowLeft: 'left',
  ArrowRight: 'right',
};

export class GraphView implements View {
  readonly node: HTMLElement;
  /** What has the keyboard: a tree to screen readers. */
  private readonly tree: HTMLElement;
  private readonly canvas = h('canvas', { class: 'ap-graph-canvas', 'aria-hidden': 'true' });
  private readonly tip = h('div', { class: 'ap-tip ap-graph-tip', hidden: true });
  private readonly mirror = new GraphMirror();
  private readonly arranger = new Arranger();
  private readonly cache = new PanCache();
  private readonly cleanUps: (() => void)[] = [];
  private state: AppState | null = null;
  private graph: OpGraph | null = null;
  private open: ReadonlySet<string> = new Set();
  private isWhole = false;
  private scene: Scene = NO_SCENE;
  private index = new cameras.SceneIndex(NO_SCENE);
  private painter: Painter | null = null;
  private palette: Palette | null = null;
  private camera = NO_CAMERA;
  private marks: Marks = {
    focus: -1,
    selected: -1,
    hovered: -1,
    hasFocus: false,
  };
  private boxMarks: BoxMarks | null = null;
  private frame = 0;
  private layoutTurn = 0;
  /** Whether the picture is where the program began: then a change of size fits it anew. */
  private isFitted = true;
  private isShown = false;
  private isDirty = true;

  constructor(
    private readonly context: ViewContext,
    private readonly tell: (change: { isWhole: boolean }) => void,
  ) {
    const help = 'Arrows move · Enter unfolds and folds · Escape goes to the group · + − 0 enlarge, reduce, fit';
    const hint = h('div', { class: 'ap-graph-hint', id: `ap-graph-hint-${++lastHint}` }, help);
    this.tree = h(
      'div',
      {
        class: 'ap-graph',
        role: 'tree',
        tabindex: 0,
        'aria-label': 'Op graph',
        'aria-describedby': hint.id,
        'data-lm-suppress-shortcuts': 'true',
        on: {
          keydown: (event) => this.handleKey(event),
          focus: () => this.mark({ hasFocus: this.tree.matches(':focus-visible') }),
          blur: () => this.mark({ hasFocus: false }),
        },
      },
      this.canvas,
      this.mirror.node,
    );
    this.node = h('div', { class: 'ap-graph-frame' }, this.tree, this.tip, hint);
    const pointer = new GraphPointer(this.canvas, {
      pan: (dx, dy) => {
        const { scale } = this.camera;
        this.setCamera({ ...this.camera, x: this.camera.x - dx / scale, y: this.camera.y - dy / scale });
      },
      zoom: (factor, x, y) => this.setCamera(cameras.zoom(this.camera, factor, x, y)),
      click: (x, y) => this.choose(this.hit(x, y), x),
      open: (x, y) => this.toggle(this.hit(x, y)),
      hover: (at) => this.hover(at),
    });
    const resize = new ResizeObserver(() => this.fitAgain());
    resize.observe(this.tree);
    const endTheme = watchTheme(() => {
      this.palette = null;
      this.redraw();
    });
    this.cleanUps.push(
      () => pointer.dispose(),
      () => resize.disconnect(),
      endTheme,
      () => this.arranger.dispose(),
    );
  }

  dispose(): void {
    cancelAnimationFrame(this.frame);
    this.layoutTurn++;
    for (const cleanUp of this.cleanUps) cleanUp();
  }

  /** Nothing is laid out while the list is shown instead. */
  show(isShown: boolean): void {
    this.isShown = isShown;
    this.node.hidden = !isShown;
    if (isShown && this.state !== null) this.follow(this.state, this.isDirty ? null : this.state);
  }

  update(state: AppState, before: AppState | null): void {
    this.state = state;
    if (this.isShown) this.follow(state, this.isDirty ? null : before);
    else this.isDirty = true;
  }

  private follow(state: AppState, before: AppState | null): void {
    this.isDirty = false;
    this.node.classList.toggle('ap-stale', isStale(state));
    const isNew = before === null || state.indexed !== before.indexed;
    if (isNew && state.indexed !== this.graph?.indexed) {
      // Another plan of the same program leaves the picture where it is.
      const known = this.graph?.indexed.plan.program.fingerprint;
      this.isFitted ||= known !== state.indexed?.plan.program.fingerprint;
      this.graph = state.indexed === null ? null : buildOpGraph(state.indexed);
      this.layOut(null).then(() => this.followSelection(state.selection));
    } else if (before === null || state.selection !== before.selection) this.followSelection(state.selection);
    if (isNew || state.filter !== before.filter || state.pins !== before.pins) this.markOps(state);
  }

  /** What pins and the search say. */
  private markOps({ indexed, filter, pins }: AppState): void {
    const pinned = listPinnedOps(pins);
    const matches =
      indexed !== null && isFiltering(filter)
        ? new Set(selectOps(indexed.plan.ops, filter, pinned).map((op) => op.id))
        : null;
    this.boxMarks = indexed === null ? null : new BoxMarks(indexed, matches, pinned);
    this.painter = null;
    this.mirrorBoxes();
    this.redraw();
  }

  // Scenes.

  /** Lays out what is open; `anchor` is the box that stays where it is in the picture. */
  private async layOut(anchor: string | null): Promise<void> {
    const turn = ++this.layoutTurn;
    const { graph } = this;
    if (graph === null) {
      this.takeScene(NO_SCENE, null);
      return;
    }
    const scene = this.isWhole ? layOutWhole(graph) : await layOut(graph, this.open, this.arranger.arrange);
    if (turn === this.layoutTurn) this.takeScene(scene, anchor);
  }

  private takeScene(scene: Scene, anchor: string | null): void {
    const before = anchor === null ? undefined : this.scene.boxes[this.scene.byKey.get(anchor) ?? -1];
    const after = anchor === null ? undefined : scene.boxes[scene.byKey.get(anchor) ?? -1];
    const focused = this.scene.boxes[this.marks.focus]?.key;
    const selected = this.scene.boxes[this.marks.selected]?.key;
    this.scene = scene;
    this.index = new cameras.SceneIndex(scene);
    this.painter = null;
    const find = (key: string | undefined): number => (key === undefined ? -1 : (scene.byKey.get(key) ?? -1));
    this.marks = { ...this.marks, focus: find(focused), selected: find(selected), hovered: -1 };
    if (before !== undefined && after !== undefined) {
      const moved = { ...this.camera, x: this.camera.x + after.x - before.x, y: this.camera.y + after.y - before.y };
      this.camera = this.isFitted ? this.fitCamera() : moved;
      this.isFitted = false;
      if (after.isOpen) this.camera = cameras.reveal(this.camera, after, this.size, this.measureTop(after));
    } else if (this.isFitted) this.camera = this.fitCamera();
    this.mirrorBoxes();
    this.redraw();
  }

  private get size(): cameras.Frame {
    return { w: this.tree.clientWidth, h: this.tree.clientHeight };
  }

  /** Pixels at the top that headings, and titles of the groups around a box, may cover. */
  private measureTop(box: SceneBox): number {
    return HEADING + box.depth * TITLE * this.camera.scale;
  }

  private fitCamera(): cameras.Camera {
    if (this.scene.boxes.length === 0) return NO_CAMERA;
    return cameras.fit({ x: 0, y: 0, w: this.scene.w, h: this.scene.h }, this.size, HEADING, 1.15);
  }

  private fitAgain(): void {
    if (this.isFitted) this.camera = this.fitCamera();
    this.redraw();
  }

  /** All of it in the picture. */
  fit(): void {
    this.isFitted = true;
    this.fitAgain();
  }

  zoom(factor: number): void {
    this.setCamera(cameras.zoom(this.camera, factor, this.size.w / 2, this.size.h / 2));
  }

  foldAll(): void {
    this.open = new Set();
    this.setWhole(false);
  }

  /** Every op of the program at once, or folded blocks. */
  setWhole(isWhole: boolean): void {
    this.isWhole = isWhole;
    this.isFitted = true;
    this.tell({ isWhole });
    void this.layOut(null);
  }

  private setCamera(camera: cameras.Camera): void {
    this.isFitted = false;
    this.camera = cameras.keepInSight(camera, this.scene, this.size);
    this.redraw(true);
  }

  // Selection.

  private findKey(selection: Selection): string | null {
    if (selection?.kind === 'op') return `op:${selection.op}`;
    if (selection?.kind !== 'layer') return null;
    const roles = ['forward', 'backward', 'update'] as const;
    const found = roles.map((role) => cellKey(selection.layer, role)).find((key) => this.scene.byKey.has(key));
    const row = this.graph?.rows.find((candidate) => candidate.layers.includes(selection.layer));
    return found ?? row?.key ?? null;
  }

  /** Something was selected, here or elsewhere: it is unfolded if need be, and brought into sight. */
  private followSelection(selection: Selection): void {
    const { graph } = this;
    if (graph === null) return;
    const op = selection?.kind === 'op' ? graph.indexed.plan.ops[selection.op] : undefined;
    if (op !== undefined && !this.isWhole && !this.scene.byKey.has(`op:${op.id}`)) {
      const repeat = findRepeatAbove(graph, op, this.open);
      const above = [...listGroupsAbove(graph, op), ...(repeat === null ? [] : [repeat])];
      this.open = new Set([...this.open, ...above]);
      this.layOut(null).then(() => this.showSelected(selection));
      return;
    }
    this.showSelected(selection);
  }

  private showSelected(selection: Selection): void {
    const key = this.findKey(selection);
    const selected = key === null ? -1 : (this.scene.byKey.get(key) ?? -1);
    const focused = this.scene.boxes[this.marks.focus];
    const isOwn = selected >= 0 && (selected === this.marks.focus || this.isSameLayer(selection, focused));
    const focus = isOwn || selected < 0 ? this.marks.focus : selected;
    this.mark({ selected: isOwn ? this.marks.focus : selected, focus });
    const box = this.scene.boxes[focus];
    if (selected >= 0 && box !== undefined) {
      this.isFitted = false;
      const isSeen = isOwn || this.isInSight(box);
      const camera = isSeen ? this.camera : cameras.centre(this.camera, box, this.size);
      this.camera = cameras.reveal(camera, box, this.size, this.measureTop(box));
    }
    this.mirrorBoxes();
  }

  private isSameLayer(selection: Selection, box: SceneBox | undefined): boolean {
    return selection?.kind === 'layer' && box !== undefined && box.kind !== 'op' && getLayer(box) === selection.layer;
  }

  private isInSight(box: SceneBox): boolean {
    const { x, y, scale } = this.camera;
    const { w, h } = this.size;
    const isInside = box.x >= x && box.y >= y && box.x + box.w <= x + w / scale && box.y + box.h <= y + h / scale;
    return isInside && scale >= 0.5;
  }

  /** A click or key on a box: the keyboard goes there, and what it stands for is selected. */
  private choose(index: number, x?: number): void {
    this.tree.focus({ preventScroll: true });
    const box = this.scene.boxes[index];
    if (box === undefined) return;
    this.mark({ focus: index });
    this.mirrorBoxes();
    const onTriangle = x !== undefined && (x / this.camera.scale + this.camera.x - box.x) * this.camera.scale < 22;
    if (onTriangle && box.canOpen && this.camera.scale >= 0.5) this.toggle(index);
    this.select(box);
  }

  private select(box: SceneBox): void {
    const { part } = box;
    if (part?.kind === 'op') this.context.dispatch({ type: 'select', selection: { kind: 'op', op: part.op.id } });
    else if (getLayer(box) >= 0) {
      this.context.dispatch({ type: 'select', selection: { kind: 'layer', layer: getLayer(box) } });
    }
  }

  private toggle(index: number): void {
    const box = this.scene.boxes[index];
    if (box === undefined) return;
    if (!box.canOpen) {
      this.select(box);
      return;
    }
    const open = new Set(this.open);
    if (!open.delete(box.key)) open.add(box.key);
    this.open = open;
    this.mark({ focus: index });
    void this.layOut(box.key);
  }

  // Pointer and keys.

  private hit(x: number, y: number): number {
    if (y < HEADING && this.scene.columns.length > 0) return -1;
    return this.index.hit(x / this.camera.scale + this.camera.x, y / this.camera.scale + this.camera.y);
  }

  private hover(at: { x: number; y: number } | null): void {
    const hovered = at === null ? -1 : this.hit(at.x, at.y);
    const box = this.scene.boxes[hovered];
    this.canvas.style.cursor = box === undefined ? '' : 'pointer';
    if (hovered !== this.marks.hovered) this.mark({ hovered });
    this.tip.hidden = box === undefined || this.graph === null;
    if (box === undefined || at === null || this.graph === null) return;
    this.tip.textContent = explainBox(box, this.graph.indexed, this.graph.bytes).join('\n');
    const { w, h: height } = this.size;
    const isLow = at.y + 16 + this.tip.offsetHeight > height;
    this.tip.style.left = `${Math.max(0, Math.min(at.x + 12, w - this.tip.offsetWidth - 4))}px`;
    this.tip.style.top = `${Math.max(0, isLow ? at.y - this.tip.offsetHeight - 8 : at.y + 16)}px`;
  }

  private handleKey(event: KeyboardEvent): void {
    const direction = ARROWS[event.key];
    const acts: Record<string, () => void> = {
      Enter: () => this.toggle(this.marks.focus),
      ' ': () => this.choose(this.marks.focus),
      '+': () => this.zoom(1.25),
      '=': () => this.zoom(1.25),
      '-': () => this.zoom(0.8),
      '0': () => this.fit(),
      Home: () => this.walk(0),
      Escape: () => this.walk(this.scene.boxes[this.marks.focus]?.parent ?? -1),
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (direction !== undefined) this.walk(cameras.step(this.scene, this.marks.focus, direction));
    else if (acts[event.key] !== undefined) acts[event.key]?.();
    else return;
    event.preventDefault();
  }

  private walk(index: number): void {
    const box = this.scene.boxes[index];
    if (box === undefined) return;
    this.isFitted = false;
    this.mark({ focus: index, hasFocus: true });
    this.camera = cameras.reveal(this.camera, box, this.size, this.measureTop(box));
    this.mirrorBoxes();
    this.select(box);
  }

  // Drawing.

  private mark(change: Partial<Marks>): void {
    this.marks = { ...this.marks, ...change };
    this.redraw();
  }

  private mirrorBoxes(): void {
    if (this.graph === null || this.boxMarks === null) return;
    const active = this.mirror.show(this.scene, this.marks, this.graph.indexed, this.boxMarks);
    if (active === null) this.tree.removeAttribute('aria-activedescendant');
    else this.tree.setAttribute('aria-activedescendant', active);
  }

  /** Draws with the next frame; `hasMoved` where nothing but the camera has changed. */
  private redraw(hasMoved = false): void {
    if (!hasMoved) this.cache.forget();
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  private draw(): void {
    const { w, h: height } = this.size;
    const ctx = this.canvas.getContext('2d');
    if (w === 0 || height === 0 || ctx === null || this.graph === null || this.boxMarks === null) return;
    const ratio = window.devicePixelRatio || 1;
    const [width, tall] = [Math.round(w * ratio), Math.round(height * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== tall) {
      this.canvas.width = width;
      this.canvas.height = tall;
    }
    if (this.palette === null) {
      this.palette = readPalette(this.node);
      this.painter = null;
    }
    const { palette, scene, index, boxMarks, camera, marks } = this;
    const { indexed } = this.graph;
    this.painter ??= new Painter(ctx, palette, scene, index, indexed, boxMarks);
    const frame = { w, h: height };
    // Legible boxes are few, and quicker drawn than kept.
    const isCopied =
      camera.scale < COPIED_BELOW &&
      this.cache.draw(ctx, camera, frame, ratio, (copy, around, wide) =>
        new Painter(copy, palette, scene, index, indexed, boxMarks).draw(around, wide, ratio, marks),
      );
    if (!isCopied) this.painter.draw(camera, frame, ratio, marks);
    this.painter.drawHeadings(camera, frame, ratio);
    this.tree.dataset.boxes = String(this.scene.boxes.length);
  }
}

function getLayer(box: SceneBox): number {
  return box.part?.layer ?? box.row.layers[0] ?? -1;
}
