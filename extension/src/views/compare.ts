/** What changed against the plan before. */
import { formatPercent, formatSeconds, formatSecondsDelta } from '../logic/format';
import type { AppState } from '../logic/store';
import { h, refill, table } from './dom';
import type { View } from './view';

const MOST_ROWS = 200;

export class CompareView implements View {
  readonly node = h('div', { class: 'ap-compare' });

  update(state: AppState, before: AppState | null): void {
    if (before !== null && state.changes === before.changes && state.isReadOnly === before.isReadOnly) return;
    const { changes } = state;
    if (changes === null) {
      refill(this.node, h('p', { class: 'ap-hint' }, 'After a second solve you see here what changed.'));
      return;
    }
    const delta = changes.step_after_s - changes.step_before_s;
    const look = Math.abs(delta) < 1e-9 ? 'ap-dim' : delta > 0 ? 'ap-worse' : 'ap-better';
    const columns = [{ title: 'what' }, { title: 'subject' }, { title: 'before' }, { title: 'now' }];
    const rows = changes.rows
      .slice(0, MOST_ROWS)
      .map((row) => [row.kind, h('span', { class: 'ap-label' }, row.subject), row.before, h('b', {}, row.after)]);
    refill(
      this.node,
      h(
        'p',
        { class: 'ap-delta' },
        h('span', {}, `${formatSeconds(changes.step_before_s)} → `),
        h('b', {}, formatSeconds(changes.step_after_s)),
        h(
          'b',
          { class: look },
          `${formatSecondsDelta(delta)} (${delta >= 0 ? '+' : '−'}${formatPercent(Math.abs(delta) / (changes.step_before_s || 1))})`,
        ),
      ),
      changes.summary.length > 0 &&
        h('ul', { class: 'ap-summary' }, ...changes.summary.map((sentence) => h('li', {}, sentence))),
      rows.length > 0 && h('div', { class: 'ap-scroll' }, table('Changes', columns, rows)),
      changes.rows.length > MOST_ROWS &&
        h('p', { class: 'ap-dim' }, `and ${changes.rows.length - MOST_ROWS} more changes`),
    );
  }
}
