/** What else an op could do: a table of strategies with their quick costs and, on demand, their exact ones. */
import type { Answer } from '../logic/answers';
import { splitMemory, sumParts } from '../logic/costs';
import { formatBytes, formatPercent, formatSeconds, formatSecondsDelta, formatSpec } from '../logic/format';
import {
  type ExactCost,
  formatBytesDelta,
  formatShareDelta,
  measureExcess,
  type RankedAlternative,
  rankAlternatives,
  wordExactCost,
} from '../logic/regrets';
import type { AppState } from '../logic/store';
import type { OpPlan } from '../model/plan';
import type { Alternative } from '../model/planner-state';
import type { Regret } from '../model/variants';
import { button, h, icon, refill, table } from './dom';
import type { View, ViewContext } from './view';

const EXACT =
  'Exact: the best that the stage can do if this op takes the strategy, with all its other decisions free. ' +
  'Layers and other stages stay as they are.';

export class AlternativesView implements View {
  readonly node = h('div', { class: 'ap-alternatives' });

  constructor(private readonly context: ViewContext) {}

  update(state: AppState, before: AppState | null): void {
    if (
      before === null ||
      state.indexed !== before.indexed ||
      state.selection !== before.selection ||
      state.alternatives !== before.alternatives ||
      state.answers.regrets !== before.answers.regrets ||
      state.pins !== before.pins ||
      state.status.state !== before.status.state
    ) {
      this.draw(state);
    }
  }

  private draw(state: AppState): void {
    const { selection, indexed, alternatives, isReadOnly } = state;
    const op = selection?.kind === 'op' ? indexed?.plan.ops[selection.op] : undefined;
    if (op === undefined) {
      refill(this.node);
      return;
    }
    const title = h('h4', {}, 'Alternatives');
    const say = (text: string): void => refill(this.node, title, h('p', { class: 'ap-hint' }, text));
    if (isReadOnly) say('This is a saved plan: alternatives need the planner that made it.');
    else if (alternatives === null || alternatives.op !== op.name || alternatives.state === 'asked')
      say(state.status.state === 'solving' ? 'They are priced when the solve has ended.' : 'Asking the planner …');
    else if (alternatives.state === 'refused') say(alternatives.message);
    else {
      const known = findRegrets(state, op);
      const ranked = rankAlternatives(alternatives.rows, known, indexed?.plan.estimate.step_s ?? 0);
      refill(
        this.node,
        title,
        this.drawQuestion(state, op),
        h('div', { class: 'ap-wide' }, this.makeTable(op, ranked, state, known !== null)),
      );
    }
  }

  /** The button that asks for exact regrets, or how far the answer is. */
  private drawQuestion(state: AppState, op: OpPlan): HTMLElement {
    const asked = findAnswer(state, op);
    const ask = (label: string): HTMLElement =>
      button(label, () => this.context.question('regrets', op.name, { op: op.name }), {
        class: 'ap-small ap-ask-regrets',
        title: EXACT,
        disabled: state.status.state === 'solving',
        'data-focus': 'regrets',
      });
    const row = (...children: (Node | string)[]): HTMLElement =>
      h('div', { class: 'ap-question', role: 'status' }, ...children);
    switch (asked?.state) {
      case undefined:
        return row(
          ask('Exact regrets'),
          h('span', { class: 'ap-dim' }, 'Δ step: with all other decisions as they are'),
        );
      case 'asked':
        return row(
          icon('wait'),
          h('span', {}, 'Solving the stage once for each strategy …'),
          button('Cancel', () => this.context.ask('cancel'), { class: 'ap-small ap-quiet', 'data-focus': 'regrets' }),
        );
      case 'refused':
        return row(h('span', { class: 'ap-bad' }, icon('warn'), ` ${asked.message}`), ask('Ask again'));
      case 'known':
        return row(h('span', { class: 'ap-dim' }, EXACT, describeExcess(state, op, asked.value)));
    }
  }

  private makeTable(op: OpPlan, ranked: readonly RankedAlternative[], state: AppState, isExact: boolean): HTMLElement {
    const stage = state.indexed?.plan.stages[op.stage];
    const capacity = stage?.memory.capacity_bytes ?? Number.POSITIVE_INFINITY;
    const memoryNow = stage === undefined ? 0 : sumParts(splitMemory(stage.memory));
    const now = ranked.find(({ alternative }) => alternative.is_chosen)?.alternative.memory_bytes ?? memoryNow;
    const columns = [
      { title: 'strategy' },
      ...(isExact
        ? [
            { title: 'exact', class: 'ap-number' },
            { title: 'memory', class: 'ap-number' },
            { title: 'quick Δ', class: 'ap-number' },
          ]
        : [{ title: 'Δ step', class: 'ap-number' }]),
      { title: 'compute', class: 'ap-number' },
      { title: 'comm.', class: 'ap-number' },
      ...(isExact ? [] : [{ title: 'memory', class: 'ap-number' }, { title: 'result' }]),
      { title: 'pin' },
    ];
    const cells = ranked.map(({ alternative, exact }, i) => [
      h(
        'span',
        { class: 'ap-code ap-strategy', title: wordSpecs(alternative) },
        alternative.strategy,
        alternative.is_chosen && h('span', { class: 'ap-mark' }, icon('check'), 'chosen'),
      ),
      ...(isExact ? [drawExactTime(exact), drawExactMemory(exact, alternative.is_chosen)] : []),
      h(
        'span',
        { class: isExact ? 'ap-dim' : lookOf(alternative.delta_s) },
        alternative.is_chosen ? '–' : formatSecondsDelta(alternative.delta_s),
      ),
      formatSeconds(alternative.compute_s),
      formatSeconds(alternative.communication_s),
      ...(isExact ? [] : [drawMemory(alternative, now, capacity), drawSpecs(alternative)]),
      this.makePin(op, alternative, exact, state, i),
    ]);
    return table('Alternatives of this op', columns, cells, (i) => ({
      class: ranked[i]?.alternative.is_chosen === true ? 'ap-chosen' : '',
      'data-strategy': ranked[i]?.alternative.strategy,
    }));
  }

  private makePin(
    op: OpPlan,
    { strategy }: Alternative,
    exact: ExactCost | null,
    state: AppState,
    row: number,
  ): HTMLElement {
    const pin = state.pins.find((p) => p.kind === 'strategy' && p.subject === op.name);
    const isPinned = pin?.choice === strategy;
    const toggle =
      isPinned && pin !== undefined
        ? () => this.context.ask('unpin', { kind: pin.kind, subject: pin.subject, choice: pin.choice })
        : () => this.context.ask('pin', { kind: 'strategy', subject: op.name, choice: strategy });
    const cost = exact === null ? '' : `: ${wordExactCost(exact)}`;
    return button(isPinned ? 'Unpin' : 'Pin', toggle, {
      icon: 'pin',
      class: isPinned ? 'ap-small ap-on' : 'ap-small',
      title: exact === null ? '' : `Pin this${cost}`,
      'aria-label': `${isPinned ? 'Unpin' : 'Pin'} ${strategy}${cost}`,
      'data-focus': `alternative-${row}`,
    });
  }
}

function findAnswer({ answers }: AppState, op: OpPlan): Answer<Regret[]> | null {
  return answers.regrets?.subject === op.name ? answers.regrets : null;
}

function findRegrets(state: AppState, op: OpPlan): Regret[] | null {
  const answer = findAnswer(state, op);
  return answer?.state === 'known' ? answer.value : null;
}

function describeExcess(state: AppState, op: OpPlan, regrets: readonly Regret[]): string {
  const stage = state.indexed?.plan.stages[op.stage];
  const excess = stage === undefined ? 0 : measureExcess(regrets, stage.objective);
  if (excess < 5e-4) return '';
  return ` They are against the best of the stage, which the present plan misses by ${formatPercent(excess)}.`;
}

function lookOf(delta: number): string {
  return delta > 1e-9 ? 'ap-worse' : delta < -1e-9 ? 'ap-better' : 'ap-dim';
}

function drawExactTime(exact: ExactCost | null): HTMLElement {
  if (exact === null) return h('span', { class: 'ap-dim' }, '–');
  if (exact.share === null) return h('span', { class: 'ap-bad' }, 'does not fit');
  const isNothing = formatShareDelta(exact.share) === '±0';
  return h(
    'span',
    { class: isNothing ? 'ap-dim' : lookOf(exact.share), title: formatSecondsDelta(exact.delta_s ?? 0) },
    h('b', {}, formatShareDelta(exact.share)),
    exact.gap > 0 &&
      h(
        'span',
        { class: 'ap-dim ap-gap', title: 'The proof was not finished: the optimum may be lower by this share.' },
        ` gap ${formatPercent(exact.gap)}`,
      ),
  );
}

function drawExactMemory(exact: ExactCost | null, isChosen: boolean): HTMLElement {
  if (exact === null || exact.delta_bytes === null) return h('span', { class: 'ap-dim' }, '–');
  const title =
    exact.stage_bytes === null ? '' : `${formatBytes(exact.stage_bytes)} on each device, without the working set`;
  return h(
    'span',
    { title, class: Math.abs(exact.delta_bytes) < 1 ? 'ap-dim' : '' },
    isChosen && exact.stage_bytes !== null ? formatBytes(exact.stage_bytes) : formatBytesDelta(exact.delta_bytes),
  );
}

function drawMemory({ memory_bytes, is_chosen }: Alternative, now: number, capacity: number): HTMLElement {
  const isOver = memory_bytes > capacity;
  const delta = memory_bytes - now;
  return h(
    'span',
    {
      class: isOver ? 'ap-bad' : '',
      title: `${formatBytes(memory_bytes)} on each device${isOver ? ': over its capacity' : ''}`,
    },
    is_chosen || Math.abs(delta) < 1 ? formatBytes(memory_bytes) : formatBytesDelta(delta),
  );
}

function drawSpecs(alternative: Alternative): HTMLElement {
  const results = alternative.output_specs.map(formatSpec).join(', ');
  return h('span', { class: 'ap-code', title: wordSpecs(alternative) }, results);
}

function wordSpecs({ input_specs, output_specs }: Alternative): string {
  return `${input_specs.map(formatSpec).join(', ')} → ${output_specs.map(formatSpec).join(', ')}`;
}
