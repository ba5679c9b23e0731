/**
 * Layers, scopes and ops as a tree, or drawn as a graph. Only the rows that are seen are in the page, so thousands of ops
 * scroll quickly.
 */
import { stageColour } from '../logic/colours';
import { formatBytes, formatCount, formatPlural, formatSeconds, formatSpec } from '../logic/format';
import { ROLE_LETTERS, SHORT_KINDS } from '../logic/graph-words';
import { findStage } from '../logic/plan-index';
import {
  buildTree,
  communicates,
  listPinnedOps,
  type OpFilter,
  selectOps,
  type Tree,
  type TreeRow,
} from '../logic/program-tree';
import type { AppState } from '../logic/store';
import type { OpPlan, PlannedCollective } from '../model/plan';
import { button, choice, h, icon } from './dom';
import { GraphView } from './graph';
import { GraphTools } from './graph-tools';
import type { View, ViewContext } from './view';

const ROW = 24;
const MARGIN = 8;

function makeCollectiveChip(collective: PlannedCollective, isResharding: boolean, isShort: boolean): HTMLElement {
  const axes = collective.axes.join('');
  const kind = isShort ? (SHORT_KINDS[collective.kind] ?? collective.kind) : collective.kind;
  return h(
    'span',
    {
      class: `ap-collective ap-edge-${collective.kind}`,
      title: `${isResharding ? 'resharding: ' : ''}${collective.kind} over ${axes}: ${formatBytes(collective.num_bytes)}, ${formatSeconds(collective.time_s)}`,
    },
    `${isResharding ? '↻ ' : ''}${kind} ${axes}`,
  );
}

function listCollectives(op: OpPlan): [PlannedCollective, boolean][] {
  return [
    ...op.collectives.map((c): [PlannedCollective, boolean] => [c, false]),
    ...op.reshardings.flatMap((r) => r.collectives.map((c): [PlannedCollective, boolean] => [c, true])),
  ];
}

/** An op's name without the scope that its rows are under: `dot_general.2` of `backward/block_3/mlp/dot_general.2`. */
function shortenName(op: OpPlan): string {
  const name = op.name.startsWith(`${op.role}/`) ? op.name.slice(op.role.length + 1) : op.name;
  return op.scope !== '' && name.startsWith(`${op.scope}/`) ? name.slice(op.scope.length + 1) : name;
}

export class ProgramView implements View {
  readonly node: HTMLElement;
  readonly tools: HTMLElement;
  private readonly toolbar = h('div', { class: 'ap-toolbar' });
  private readonly search: HTMLInputElement;
  private readonly count = h('span', { class: 'ap-dim ap-count', 'aria-live': 'polite' });
  private readonly list: HTMLElement;
  private readonly spacer = h('div', { class: 'ap-spacer', role: 'presentation' });
  private readonly rows = h('div', { class: 'ap-rows', role: 'presentation' });
  private readonly boxes: { key: keyof OpFilter; input: HTMLInputElement }[] = [];
  private readonly role: HTMLSelectElement;
  private readonly head: HTMLElement;
  private readonly graph: GraphView;
  private readonly graphTools: GraphTools;
  private readonly foldAll: HTMLButtonElement;
  private readonly resize = new ResizeObserver(() => this.drawRows());
  private tree: Tree = { rows: [], matches: 0, isFiltered: false };
  private state: AppState | null = null;
  private active: string | null = null;
  private readonly id = `ap-tree-${Math.random().toString(36).slice(2, 8)}`;

  constructor(private readonly context: ViewContext) {
    let timer = 0;
    this.search = h('input', {
      type: 'search',
      class: 'ap-search',
      placeholder: 'Search ops',
      'aria-label': 'Search ops',
      title:
        'By name, primitive, strategy, sharding such as [x, -], collective or source line; every word must match. Enter selects the next match',
      'data-lm-suppress-shortcuts': 'true',
      on: {
        input: () => {
          window.clearTimeout(timer);
          timer = window.setTimeout(() => this.filter({ query: this.search.value }), 120);
        },
        keydown: (event) => {
          if (event.key === 'Enter') this.selectNext(event.shiftKey ? -1 : 1);
        },
      },
    });
    const roles = ['all', 'forward', 'backward', 'update'].map((value) => ({
      value,
      label: value === 'all' ? 'all roles' : value,
    }));
    this.role = choice('Role', roles, 'all', {
      on: { change: () => this.filter({ role: this.role.value as OpFilter['role'] }) },
    });
    this.graph = new GraphView(context, ({ isWhole }) => this.graphTools.showWhole(isWhole));
    this.graphTools = new GraphTools(this.graph, (isGraph) => this.showGraph(isGraph));
    this.toolbar.append(
      this.graphTools.choice,
      this.search,
      this.role,
      h(
        'span',
        { class: 'ap-checks', role: 'group', 'aria-label': 'Show only' },
        this.makeBox('withCollectives', 'collectives', 'Only ops that communicate'),
        this.makeBox(
          'decisions',
          'decisions',
          'Only ops whose strategy the solver chose; the others follow a neighbour',
        ),
        this.makeBox('pinned', 'pinned', 'Only ops that are pinned'),
      ),
    );
    this.foldAll = button('Fold all', () => context.dispatch({ type: 'fold-all' }), { class: 'ap-quiet' });
    this.tools = h('span', {}, this.count, this.foldAll, this.graphTools.node);
    this.list = h(
      'div',
      {
        class: 'ap-list',
        role: 'tree',
        tabindex: 0,
        'aria-label': 'Program',
        'data-lm-suppress-shortcuts': 'true',
        on: { scroll: () => this.drawRows(), keydown: (event) => this.handleKey(event) },
      },
      this.spacer,
      this.rows,
    );
    this.head = h(
      'div',
      { class: 'ap-row ap-row-head', 'aria-hidden': 'true' },
      h('span', { class: 'ap-cell-name' }, 'op'),
      h('span', { class: 'ap-cell-spec', title: 'of the outputs' }, 'sharding'),
      h('span', { class: 'ap-cell-collectives' }, 'collectives'),
      h('span', { class: 'ap-cell-time', title: 'of one step, collectives included' }, 'time a step'),
    );
    this.node = h('div', { class: 'ap-program' }, this.toolbar, this.head, this.list, this.graph.node);
    this.resize.observe(this.list);
    this.showGraph(false);
  }

  dispose(): void {
    this.resize.disconnect();
    this.graph.dispose();
  }

  private showGraph(isGraph: boolean): void {
    for (const node of [this.head, this.list, this.foldAll]) node.hidden = isGraph;
    this.graphTools.showGraph(isGraph);
    this.graph.show(isGraph);
    if (!isGraph && this.state !== null) this.scrollTo(this.active);
  }

  update(state: AppState, before: AppState | null): void {
    this.state = state;
    const isNew =
      before === null ||
      state.indexed !== before.indexed ||
      state.filter !== before.filter ||
      state.open !== before.open ||
      state.pins !== before.pins;
    if (isNew) this.rebuild(state);
    if (before === null || state.filter !== before.filter) this.showFilter(state.filter);
    const hasSelection = before === null || state.selection !== before.selection;
    if (hasSelection) {
      this.active = this.findSelectedKey(state) ?? this.active;
      if (state.selection !== null) this.scrollTo(this.active);
    }
    if (isNew || hasSelection) this.drawRows();
    this.graph.update(state, before);
  }

  private makeBox(key: 'withCollectives' | 'decisions' | 'pinned', label: string, title: string): HTMLElement {
    const input = h('input', {
      type: 'checkbox',
      'data-filter': key,
      'data-lm-suppress-shortcuts': 'true',
      on: { change: () => this.filter({ [key]: input.checked }) },
    });
    this.boxes.push({ key, input });
    return h('label', { class: 'ap-check', title }, input, label);
  }

  private filter(change: Partial<OpFilter>): void {
    // What is being typed comes along, else the next drawing would take it back.
    this.context.dispatch({ type: 'filter', filter: { query: this.search.value, ...change } });
  }

  /** The match after the selected op, or before it, around the end. */
  private selectNext(turn: 1 | -1): void {
    if (this.state === null || this.state.indexed === null) return;
    const { indexed, pins, selection } = this.state;
    const matches = selectOps(
      indexed.plan.ops,
      { ...this.state.filter, query: this.search.value },
      listPinnedOps(pins),
    );
    const at = selection?.kind === 'op' ? matches.findIndex((op) => op.id === selection.op) : -1;
    const next = matches.at(at < 0 ? (turn > 0 ? 0 : -1) : (at + turn) % matches.length);
    if (next !== undefined) this.context.dispatch({ type: 'select', selection: { kind: 'op', op: next.id } });
  }

  private showFilter(filter: OpFilter): void {
    if (document.activeElement !== this.search) this.search.value = filter.query;
    this.role.value = filter.role;
    for (const { key, input } of this.boxes) input.checked = filter[key] === true;
  }

  private rebuild(state: AppState): void {
    if (state.indexed === null) {
      this.tree = { rows: [], matches: 0, isFiltered: false };
      this.count.textContent = '';
    } else {
      this.tree = buildTree(state.indexed, state.filter, state.open, state.pins);
      const all = state.indexed.plan.ops.length;
      this.count.textContent = this.tree.isFiltered
        ? `${formatCount(this.tree.matches)} of ${formatPlural(all, 'op')}`
        : formatPlural(all, 'op');
    }
    this.spacer.style.height = `${this.tree.rows.length * ROW}px`;
  }

  private findSelectedKey({ selection }: AppState): string | null {
    if (selection?.kind === 'op') return `op:${selection.op}`;
    if (selection?.kind === 'layer') return `layer:${selection.layer}`;
    return null;
  }

  private scrollTo(key: string | null): void {
    const index = this.tree.rows.findIndex((row) => row.key === key);
    if (index < 0) return;
    const top = index * ROW;
    const { scrollTop, clientHeight } = this.list;
    if (top < scrollTop) this.list.scrollTop = top - ROW;
    else if (top + ROW > scrollTop + clientHeight) {
      // A layer is brought to the top, so that what unfolds below it is seen.
      const isLayer = key?.startsWith('layer:') === true;
      this.list.scrollTop = isLayer ? top - ROW : top + 2 * ROW - clientHeight;
    }
  }

  private drawRows(): void {
    const first = Math.max(0, Math.floor(this.list.scrollTop / ROW) - MARGIN);
    const last = Math.min(
      this.tree.rows.length,
      Math.ceil((this.list.scrollTop + this.list.clientHeight) / ROW) + MARGIN,
    );
    this.rows.style.transform = `translateY(${first * ROW}px)`;
    this.rows.replaceChildren(...this.tree.rows.slice(first, last).map((row) => this.makeRow(row)));
    if (this.tree.rows.length === 0 && this.state?.indexed !== null && this.tree.isFiltered) {
      this.rows.replaceChildren(h('p', { class: 'ap-empty' }, 'No op matches this search and filter.'));
    }
    const isSeen = this.tree.rows.slice(first, last).some((row) => row.key === this.active);
    if (isSeen) this.list.setAttribute('aria-activedescendant', `${this.id}-${this.active}`);
    else this.list.removeAttribute('aria-activedescendant');
  }

  private makeRow(row: TreeRow): HTMLElement {
    const isActive = row.key === this.active;
    const attributes = {
      id: `${this.id}-${row.key}`,
      role: 'treeitem',
      'aria-level': row.depth + 1,
      'aria-selected': String(isActive),
      'data-key': row.key,
      on: { click: () => this.choose(row) },
    };
    const indent = `padding-left:${6 + row.depth * 16}px`;
    if (row.kind === 'op') return this.makeOpRow(row, attributes, indent, isActive);
    const isLayer = row.kind === 'layer';
    const stage = isLayer && this.state?.indexed ? findStage(this.state.indexed.plan, row.layer)?.index : undefined;
    const twin = isLayer && row.twin !== null ? `like layer ${row.twin}` : '';
    return h(
      'div',
      {
        ...attributes,
        class: `ap-row ap-row-${row.kind}${isActive ? ' ap-active' : ''}`,
        'aria-expanded': String(row.isOpen),
        style: stage === undefined ? '' : `--stage:${stageColour(stage)}`,
      },
      h(
        'span',
        { class: 'ap-cell-name', style: indent },
        icon(row.isOpen ? 'down' : 'right'),
        stage !== undefined && h('span', { class: 'ap-badge', title: `stage ${stage}` }, String(stage)),
        h('span', { class: 'ap-label' }, isLayer && row.layer >= 0 ? `${row.layer} · ${row.label}` : row.label),
        row.pins > 0 && icon('pin'),
        h('span', { class: 'ap-dim' }, formatPlural(row.count, 'op')),
      ),
      h('span', { class: 'ap-cell-spec ap-dim' }, twin),
      h(
        'span',
        { class: 'ap-cell-collectives ap-dim' },
        row.collectives > 0 ? `in ${formatPlural(row.collectives, 'op')}` : '',
      ),
      h('span', { class: 'ap-cell-time' }, formatSeconds(row.seconds)),
    );
  }

  private makeOpRow(
    row: Extract<TreeRow, { kind: 'op' }>,
    attributes: Record<string, unknown>,
    indent: string,
    isActive: boolean,
  ): HTMLElement {
    const { op } = row;
    const collectives = communicates(op) ? listCollectives(op) : [];
    const name = shortenName(op);
    return h(
      'div',
      {
        ...attributes,
        class: `ap-row ap-row-op${isActive ? ' ap-active' : ''}`,
        'data-op': op.name,
        title: `${op.name}\n${op.rule}\nstrategy ${op.strategy}`,
      },
      h(
        'span',
        { class: 'ap-cell-name', style: indent },
        h('span', { class: `ap-role ap-role-${op.role}`, title: op.role }, ROLE_LETTERS[op.role]),
        h('span', { class: op.is_decision ? 'ap-label ap-decision' : 'ap-label' }, name),
        row.isPinned && icon('pin'),
      ),
      h('span', { class: 'ap-cell-spec ap-code' }, op.output_specs.map(formatSpec).join(' ')),
      h(
        'span',
        { class: 'ap-cell-collectives' },
        ...collectives.map(([c, isResharding]) => makeCollectiveChip(c, isResharding, collectives.length > 1)),
      ),
      h('span', { class: 'ap-cell-time' }, formatSeconds(row.seconds)),
    );
  }

  private choose(row: TreeRow): void {
    this.active = row.key;
    if (row.kind === 'op') this.context.dispatch({ type: 'select', selection: { kind: 'op', op: row.op.id } });
    else this.context.dispatch({ type: 'toggle', key: row.key });
    this.list.focus({ preventScroll: true });
  }

  private handleKey(event: KeyboardEvent): void {
    const rows = this.tree.rows;
    const index = Math.max(
      0,
      rows.findIndex((row) => row.key === this.active),
    );
    const row = rows[index];
    const page = Math.max(1, Math.floor(this.list.clientHeight / ROW) - 1);
    const targets: Record<string, number> = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      PageDown: index + page,
      PageUp: index - page,
      Home: 0,
      End: rows.length - 1,
    };
    const target = targets[event.key];
    if (target !== undefined) this.moveTo(Math.max(0, Math.min(rows.length - 1, target)));
    else if ((event.key === 'Enter' || event.key === ' ') && row !== undefined) this.choose(row);
    else if (event.key === 'ArrowRight' && row !== undefined && row.kind !== 'op' && !row.isOpen) this.choose(row);
    else if (event.key === 'ArrowLeft' && row !== undefined) {
      if (row.kind !== 'op' && row.isOpen) this.choose(row);
      else this.moveTo(this.findParent(index));
    } else return;
    event.preventDefault();
  }

  private findParent(index: number): number {
    const depth = this.tree.rows[index]?.depth ?? 0;
    for (let i = index - 1; i >= 0; i--) if ((this.tree.rows[i]?.depth ?? 0) < depth) return i;
    return index;
  }

  private moveTo(index: number): void {
    const row = this.tree.rows[index];
    if (row === undefined) return;
    this.active = row.key;
    this.scrollTo(row.key);
    if (row.kind === 'op') this.context.dispatch({ type: 'select', selection: { kind: 'op', op: row.op.id } });
    else this.drawRows();
  }
}
