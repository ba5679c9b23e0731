/** What was done, oldest first: a click on a row goes there, as undo and redo do step by step. */
import { formatClock } from '../logic/format';
import type { AppState } from '../logic/store';
import type { HistoryEntry } from '../model/planner-state';
import { h, refill } from './dom';
import type { View, ViewContext } from './view';

export class HistoryView implements View {
  readonly node = h('div', { class: 'ap-history' });

  constructor(private readonly context: ViewContext) {}

  update(state: AppState, before: AppState | null): void {
    if (before !== null && state.status === before.status && state.isReadOnly === before.isReadOnly) return;
    const { history = [], history_position: position = 0 } = state.status;
    this.node.hidden = state.isReadOnly || history.length < 2;
    if (this.node.hidden) return;
    const isSolving = state.status.state === 'solving';
    refill(
      this.node,
      h('h4', {}, 'History'),
      h('ol', {}, ...history.map((entry, i) => this.makeRow(entry, i, position, isSolving))),
    );
  }

  private makeRow(entry: HistoryEntry, index: number, position: number, isSolving: boolean): HTMLElement {
    const isNow = index === position;
    return h(
      'li',
      {},
      h(
        'button',
        {
          type: 'button',
          class: `ap-history-row ${isNow ? 'ap-on' : ''} ${index > position ? 'ap-undone' : ''}`,
          'aria-current': isNow ? 'step' : undefined,
          'data-focus': `history-${index}`,
          'data-lm-suppress-shortcuts': 'true',
          disabled: isSolving,
          title: isNow ? 'Where the planner is' : index < position ? 'Go back here' : 'Go forth here',
          on: { click: () => !isNow && this.context.ask('go_to', { position: index }) },
        },
        h('time', { datetime: new Date(entry.time_s * 1000).toISOString() }, formatClock(entry.time_s)),
        h('span', { class: 'ap-history-label' }, entry.label),
        entry.has_plan && h('span', { class: 'ap-dim' }, 'solved'),
      ),
    );
  }
}
