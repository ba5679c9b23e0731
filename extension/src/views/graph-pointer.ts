/** Mouse, pen and touch on the op graph: drag to move, Ctrl and wheel to enlarge, click, double click, hover. */

export interface PointerActs {
  pan(dx: number, dy: number): void;
  zoom(factor: number, x: number, y: number): void;
  click(x: number, y: number): void;
  open(x: number, y: number): void;
  hover(at: { x: number; y: number } | null): void;
}

/** Pixels that a hand moves without meaning to. */
const SLIP = 4;

export class GraphPointer {
  private readonly ending = new AbortController();
  private last: { x: number; y: number } | null = null;
  private hasMoved = false;

  constructor(
    private readonly canvas: HTMLCanvasElement,
    private readonly acts: PointerActs,
  ) {
    const { signal } = this.ending;
    canvas.addEventListener('pointerdown', (event) => this.press(event), { signal });
    canvas.addEventListener('pointermove', (event) => this.move(event), { signal });
    canvas.addEventListener('pointerup', (event) => this.release(event), { signal });
    canvas.addEventListener('pointercancel', () => this.drop(), { signal });
    canvas.addEventListener('pointerleave', () => acts.hover(null), { signal });
    canvas.addEventListener('dblclick', (event) => acts.open(event.offsetX, event.offsetY), { signal });
    canvas.addEventListener('wheel', (event) => this.turn(event), { signal, passive: false });
  }

  dispose(): void {
    this.ending.abort();
  }

  private press(event: PointerEvent): void {
    if (event.button !== 0) return;
    this.last = { x: event.clientX, y: event.clientY };
    this.hasMoved = false;
    this.canvas.setPointerCapture(event.pointerId);
  }

  private move(event: PointerEvent): void {
    if (this.last === null) {
      this.acts.hover({ x: event.offsetX, y: event.offsetY });
      return;
    }
    const [dx, dy] = [event.clientX - this.last.x, event.clientY - this.last.y];
    if (!this.hasMoved && Math.hypot(dx, dy) < SLIP) return;
    this.hasMoved = true;
    this.acts.hover(null);
    this.canvas.style.cursor = 'grabbing';
    this.acts.pan(dx, dy);
    this.last = { x: event.clientX, y: event.clientY };
  }

  private release(event: PointerEvent): void {
    const isClick = this.last !== null && !this.hasMoved;
    this.drop();
    if (isClick && event.detail < 2) this.acts.click(event.offsetX, event.offsetY);
  }

  private drop(): void {
    this.last = null;
    this.canvas.style.cursor = '';
  }

  private turn(event: WheelEvent): void {
    // Without a modifier the wheel scrolls the notebook.
    if (!event.ctrlKey && !event.metaKey && !event.altKey) return;
    event.preventDefault();
    this.acts.zoom(2 ** (-Math.max(-100, Math.min(100, event.deltaY)) / 300), event.offsetX, event.offsetY);
  }
}
