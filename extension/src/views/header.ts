/** Program, cluster, state, step time, and the buttons that steer the solver. */
import { splitStep } from '../logic/costs';
import { formatBytes, formatCount, formatPercent, formatPlural, formatSeconds } from '../logic/format';
import { listProgressFacts } from '../logic/progress';
import type { AppState } from '../logic/store';
import type { PlannerState, SolveProgress } from '../model/planner-state';
import { button, h, type IconName, icon, refill } from './dom';
import { makeStackedBar } from './stacked-bar';
import type { View, ViewContext } from './view';

const STATES: Record<PlannerState, { label: string; icon: IconName }> = {
  idle: { label: 'not solved yet', icon: 'circle' },
  solving: { label: 'solving', icon: 'wait' },
  solved: { label: 'solved', icon: 'check' },
  stale: { label: 'stale', icon: 'stale' },
  infeasible: { label: 'infeasible', icon: 'cross' },
  failed: { label: 'failed', icon: 'warn' },
  cancelled: { label: 'cancelled', icon: 'stop' },
  'read-only': { label: 'saved plan, read-only', icon: 'lock' },
};

export class HeaderView implements View {
  readonly node: HTMLElement;
  private readonly title = h('div', { class: 'ap-title' });
  private readonly chip = h('span', { class: 'ap-chip', role: 'status', 'aria-live': 'polite' });
  private readonly message = h('p', { class: 'ap-message' });
  private readonly progress = h('div', { class: 'ap-progress' });
  private readonly step = h('div', { class: 'ap-step' });
  private readonly notice = h('div', { class: 'ap-notice', role: 'alert' });
  private readonly solve: HTMLButtonElement;
  private readonly cancel: HTMLButtonElement;
  private readonly undo: HTMLButtonElement;
  private readonly redo: HTMLButtonElement;
  private readonly actions: HTMLElement;
  /** Beside the actions; shown for saved plans too. */
  readonly tools = h('span', { class: 'ap-header-tools' });

  constructor(private readonly context: ViewContext) {
    const ask = (method: string) => () => context.ask(method);
    this.solve = button('Solve', ask('solve'), { icon: 'play', class: 'ap-primary ap-solve' });
    this.cancel = button('Cancel', ask('cancel'), { icon: 'stop', class: 'ap-cancel' });
    this.undo = button('Undo', ask('undo'), { icon: 'undo', class: 'ap-undo', title: 'Undo the last change of pins' });
    this.redo = button('Redo', ask('redo'), { icon: 'redo', class: 'ap-redo', title: 'Take back an undo' });
    this.actions = h(
      'div',
      { class: 'ap-actions', role: 'toolbar', 'aria-label': 'Planner' },
      this.solve,
      this.cancel,
      this.undo,
      this.redo,
    );
    this.node = h(
      'div',
      { class: 'ap-header' },
      h('div', { class: 'ap-headline' }, this.title, this.chip, this.actions, this.tools),
      this.message,
      this.notice,
      this.progress,
      this.step,
    );
  }

  update(state: AppState, before: AppState | null): void {
    const { status } = state;
    if (before === null || state.indexed !== before.indexed) this.drawPlan(state);
    if (before === null || status !== before.status || state.isReadOnly !== before.isReadOnly) this.drawStatus(state);
    if (before === null || state.notice !== before.notice) this.drawNotice(state.notice);
  }

  private drawPlan({ indexed }: AppState): void {
    if (indexed === null) {
      refill(this.title, h('strong', {}, 'AlpaViz'));
      refill(this.step);
      return;
    }
    const { program, cluster, estimate, num_microbatches, schedule, stages, warnings } = indexed.plan;
    const device = cluster.hosts[0]?.device_type;
    const names = [...new Set(cluster.hosts.map((host) => host.device_type.name))];
    const count = cluster.hosts.reduce((sum, host) => sum + host.num_devices, 0);
    refill(
      this.title,
      h('strong', {}, program.name),
      h(
        'span',
        { class: 'ap-dim' },
        `on ${cluster.name}${cluster.is_virtual ? ' (virtual devices)' : ''} · ${formatPlural(cluster.hosts.length, 'host')}, ` +
          `${formatCount(count)} × ${names.join(' and ') || 'device'} · ${formatPlural(program.num_ops, 'op')}, ${formatPlural(program.num_layers, 'layer')}`,
      ),
    );
    const measured = device?.measured ?? null;
    const facts = [
      ...(measured === null ? [] : [`measured costs (${measured.source})`]),
      formatPlural(stages.length, 'stage'),
      `${formatPlural(num_microbatches, 'microbatch', 'microbatches')} (${schedule})`,
      `model FLOP utilisation ${formatPercent(estimate.model_flops_utilisation)}`,
      `state ${formatBytes(program.state_bytes)}`,
    ];
    refill(
      this.step,
      h(
        'div',
        { class: 'ap-step-line' },
        h('span', { class: 'ap-figure' }, formatSeconds(estimate.step_s)),
        h('span', {}, 'a step'),
        h('span', { class: 'ap-dim ap-facts' }, facts.join(' · ')),
      ),
      makeStackedBar(splitStep(estimate), { label: 'Step time', format: formatSeconds, total: estimate.step_s }),
      ...warnings.map((text) => h('p', { class: 'ap-warning' }, icon('warn'), text)),
    );
  }

  private drawStatus({ status, isReadOnly }: AppState): void {
    const look = STATES[isReadOnly ? 'read-only' : status.state];
    this.chip.className = `ap-chip ap-chip-${isReadOnly ? 'read-only' : status.state}`;
    if (this.chip.textContent !== look.label) refill(this.chip, icon(look.icon), h('span', {}, look.label));
    this.message.textContent = status.message;
    this.message.hidden = status.message === '';
    const isSolving = status.state === 'solving';
    this.actions.hidden = isReadOnly;
    this.solve.disabled = isSolving;
    this.solve.classList.toggle('ap-urgent', status.state === 'stale' || status.state === 'idle');
    this.cancel.disabled = !isSolving;
    this.undo.disabled = !status.can_undo || isSolving;
    this.undo.title = status.can_undo ? `Undo: ${status.last_change}` : 'Nothing to undo';
    this.redo.disabled = !status.can_redo || isSolving;
    this.drawProgress(isSolving ? status.progress : null);
  }

  private drawProgress(progress: SolveProgress | null): void {
    this.progress.hidden = progress === null;
    if (progress === null) return;
    const share = progress.total > 0 ? progress.done / progress.total : 0;
    const facts = listProgressFacts(progress);
    refill(
      this.progress,
      h('span', { class: 'ap-phase' }, progress.phase),
      h(
        'div',
        {
          class: 'ap-progress-bar',
          role: 'progressbar',
          'aria-label': progress.phase,
          'aria-valuemin': 0,
          'aria-valuemax': progress.total,
          'aria-valuenow': progress.done,
        },
        h('div', { style: `width:${(share * 100).toFixed(1)}%` }),
      ),
      h('span', { class: 'ap-dim' }, facts.join(' · ')),
    );
  }

  private drawNotice(notice: string | null): void {
    this.notice.hidden = notice === null;
    if (notice === null) {
      refill(this.notice);
      return;
    }
    const close = button('Dismiss', () => this.context.dispatch({ type: 'notice', notice: null }), {
      icon: 'cross',
      showsLabel: false,
      class: 'ap-quiet',
    });
    refill(this.notice, icon('warn'), h('span', {}, notice), close);
  }
}
