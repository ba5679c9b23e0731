/** The switch between list and graph, and the graph's buttons. */
import { button, h } from './dom';
import type { GraphView } from './graph';

export class GraphTools {
  /** List or graph. */
  readonly choice: HTMLElement;
  readonly node: HTMLElement;
  private readonly list: HTMLButtonElement;
  private readonly graph: HTMLButtonElement;
  private readonly whole: HTMLButtonElement;
  private readonly wide: HTMLButtonElement;

  constructor(view: GraphView, choose: (isGraph: boolean) => void) {
    this.list = button('List', () => choose(false), { title: 'Layers and ops as rows' });
    this.graph = button('Graph', () => choose(true), {
      title: 'Layers and ops as boxes, with what flows between them',
    });
    this.choice = h('span', { class: 'ap-switch', role: 'group', 'aria-label': 'Program as' }, this.list, this.graph);
    this.whole = button('All ops', () => view.setWhole(this.whole.getAttribute('aria-pressed') !== 'true'), {
      class: 'ap-quiet',
      title: 'Every op of the program at once; again for folded layers',
      'aria-pressed': 'false',
    });
    this.wide = button('Larger', () => this.widen(), {
      icon: 'wide',
      showsLabel: false,
      class: 'ap-quiet',
      'aria-pressed': 'false',
    });
    const small = (label: string, icon: 'plus' | 'minus' | 'fit', act: () => void): HTMLButtonElement =>
      button(label, act, { icon, showsLabel: false, class: 'ap-quiet' });
    this.node = h(
      'span',
      { class: 'ap-graph-tools' },
      this.whole,
      button('Fold all', () => view.foldAll(), { class: 'ap-quiet' }),
      small('Zoom in', 'plus', () => view.zoom(1.25)),
      small('Zoom out', 'minus', () => view.zoom(0.8)),
      small('Fit', 'fit', () => view.fit()),
      this.wide,
    );
  }

  showGraph(isGraph: boolean): void {
    this.node.hidden = !isGraph;
    for (const [each, isOn] of [
      [this.list, !isGraph],
      [this.graph, isGraph],
    ] as const) {
      each.classList.toggle('ap-on', isOn);
      each.setAttribute('aria-pressed', String(isOn));
    }
    if (!isGraph && this.wide.getAttribute('aria-pressed') === 'true') this.widen();
  }

  showWhole(isWhole: boolean): void {
    this.whole.classList.toggle('ap-on', isWhole);
    this.whole.setAttribute('aria-pressed', String(isWhole));
  }

  /** The graph takes the room of both panes; the op comes below. */
  private widen(): void {
    const isWide = this.node.closest('.ap-columns')?.classList.toggle('ap-wide') ?? false;
    this.wide.classList.toggle('ap-on', isWide);
    this.wide.setAttribute('aria-pressed', String(isWide));
  }
}
