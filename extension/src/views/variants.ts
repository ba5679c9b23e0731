/** What else a stage could be: its front of time against memory and its cheapest choices, each a plan to take. */
import type { Answer } from '../logic/answers';
import { formatBytes, formatPlural, formatSeconds } from '../logic/format';
import { isNow, PRESENT, wordVariant } from '../logic/front';
import { formatShareDelta } from '../logic/regrets';
import type { AppState } from '../logic/store';
import type { DiffRow } from '../model/planner-state';
import type { OfferedVariant, OfferedVariants } from '../model/variants';
import { button, choice, h, icon, refill, table } from './dom';
import { makeFrontChart } from './front-chart';
import { findSelectedStage } from './map';
import { isStale, type View, type ViewContext } from './view';

const HINT =
  'Plans in which one stage takes other decisions and everything else stays. To take one makes it the present plan; Undo goes back.';

export class VariantsView implements View {
  readonly node = h('div', { class: 'ap-variants' });
  private readonly controls = h('div', { class: 'ap-question' });
  private readonly front = h('div', { class: 'ap-variants-front' });
  private readonly cheapest = h('div', { class: 'ap-variants-cheapest' });
  private stage = 0;

  constructor(private readonly context: ViewContext) {
    this.node.append(this.controls, this.front, this.cheapest);
  }

  update(state: AppState, before: AppState | null): void {
    const isNew = before === null || state.indexed !== before.indexed;
    const hasMoved = before !== null && state.status.state !== before.status.state;
    if (isNew || hasMoved || state.selection !== before.selection) {
      const selected = findSelectedStage(state);
      const stages = state.indexed?.plan.stages.length ?? 0;
      if (selected !== null) this.stage = selected;
      this.stage = Math.max(0, Math.min(this.stage, stages - 1));
      this.drawControls(state);
    }
    const isMarked = before !== null && state.status.variant === before.status.variant;
    if (isNew || hasMoved || !isMarked || state.answers.front !== before.answers.front) this.drawFront(state);
    if (isNew || hasMoved || !isMarked || state.answers.cheapest !== before.answers.cheapest) this.drawCheapest(state);
    if (isNew || state.answers.front !== before.answers.front) this.drawControls(state);
  }

  private drawControls(state: AppState): void {
    const stages = state.indexed?.plan.stages ?? [];
    const select = choice(
      'Stage that varies',
      stages.map(({ index }) => ({ value: String(index), label: `stage ${index}` })),
      String(this.stage),
      { 'data-focus': 'variants-stage' },
    );
    select.addEventListener('change', () => {
      this.stage = Number(select.value);
    });
    const ask = (): void => {
      this.context.question('front', this.stage, { stage: this.stage });
      this.context.question('cheapest', this.stage, { stage: this.stage });
    };
    const isKnown = state.answers.front !== null;
    refill(
      this.controls,
      button(isKnown ? 'Find again' : 'Find variants', ask, {
        class: 'ap-small ap-find-variants',
        disabled: isStale(state),
        'data-focus': 'variants-find',
      }),
      h('span', {}, 'of'),
      select,
      h('span', { class: 'ap-dim' }, isStale(state) ? 'Solve first: this plan is not for the present pins.' : HINT),
    );
  }

  private drawFront(state: AppState): void {
    const title = 'Time against memory';
    refill(
      this.front,
      ...this.drawAnswer(
        state.answers.front,
        title,
        'Searching from the least memory to the least time …',
        (offered) => {
          const now = state.status.variant ?? PRESENT;
          return [
            makeFrontChart(offered, now, !isStale(state), (key) => this.take(key)),
            h('div', { class: 'ap-wide' }, this.makeTable(offered, state, 'Time against memory', false)),
          ];
        },
      ),
    );
  }

  private drawCheapest(state: AppState): void {
    const title = 'Cheapest plans';
    refill(
      this.cheapest,
      ...this.drawAnswer(state.answers.cheapest, title, 'Listing the cheapest plans …', (offered) => [
        h('div', { class: 'ap-wide' }, this.makeTable(offered, state, title, true)),
      ]),
    );
  }

  private drawAnswer(
    answer: Answer<OfferedVariants> | null,
    title: string,
    waiting: string,
    draw: (offered: OfferedVariants) => Node[],
  ): Node[] {
    if (answer === null) return [];
    const head = h('h4', {}, `${title} of stage ${answer.subject}`);
    switch (answer.state) {
      case 'asked': {
        const cancel = button('Cancel', () => this.context.ask('cancel'), { class: 'ap-small ap-quiet' });
        return [head, h('p', { class: 'ap-question', role: 'status' }, icon('wait'), waiting, cancel)];
      }
      case 'refused':
        return [head, h('p', { class: 'ap-bad', role: 'status' }, icon('warn'), ` ${answer.message}`)];
      case 'known':
        return [head, ...draw(answer.value)];
    }
  }

  private makeTable(offered: OfferedVariants, state: AppState, caption: string, isRanked: boolean): HTMLElement {
    const now = state.status.variant ?? PRESENT;
    const { variants, present } = offered;
    const columns = [
      ...(isRanked ? [{ title: '#', class: 'ap-number' }] : []),
      { title: 'step', class: 'ap-number' },
      { title: 'Δ step', class: 'ap-number' },
      { title: 'microbatch', class: 'ap-number' },
      { title: 'memory', class: 'ap-number' },
      { title: 'differs in' },
      { title: 'take' },
    ];
    const rows = variants.map((variant, i) => [
      ...(isRanked ? [String(i + 1)] : []),
      h('b', {}, formatSeconds(variant.step_s)),
      drawDelta(variant.step_s / (present.step_s || 1) - 1),
      h(
        'span',
        {},
        formatSeconds(variant.stage_s),
        !isRanked &&
          !variant.is_optimal &&
          h('span', { class: 'ap-dim ap-gap', title: 'Something between its neighbours may be better.' }, 'not proven'),
      ),
      h('span', { class: variant.fits ? '' : 'ap-bad' }, formatBytes(variant.stage_bytes)),
      this.drawDifferences(variant, state),
      this.drawTake(variant, present, now, isStale(state)),
    ]);
    return table(`${caption} of stage ${offered.stage}`, columns, rows, (i) => {
      const variant = variants[i];
      return {
        class: variant !== undefined && isNow(variant, now) ? 'ap-chosen' : '',
        'data-variant': variant?.key,
      };
    });
  }

  private drawTake(variant: OfferedVariant, present: OfferedVariant, now: string, isClosed: boolean): HTMLElement {
    if (isNow(variant, now)) return h('span', { class: 'ap-mark' }, icon('check'), 'now');
    if (!variant.fits)
      return h('span', { class: 'ap-bad', title: 'It needs more than a plan may use of a device.' }, 'too large');
    return button('Take', () => this.take(variant.key), {
      class: 'ap-small',
      disabled: isClosed,
      'aria-label': `Take: ${wordVariant(variant, present)}`,
      'data-focus': `take-${variant.key}`,
    });
  }

  private drawDifferences({ num_differences, differences }: OfferedVariant, state: AppState): HTMLElement {
    if (num_differences === 0) return h('span', { class: 'ap-dim' }, 'no op, no state');
    const left = num_differences - differences.length;
    return h(
      'details',
      { class: 'ap-differences' },
      h('summary', { 'data-lm-suppress-shortcuts': 'true' }, formatPlural(num_differences, 'decision')),
      h(
        'ul',
        {},
        ...differences.map((row) => h('li', {}, this.drawDifference(row, state))),
        left > 0 && h('li', { class: 'ap-dim' }, `and ${formatPlural(left, 'more decision')}`),
      ),
    );
  }

  private drawDifference({ kind, subject, before, after }: DiffRow, { indexed }: AppState): HTMLElement {
    const op = kind === 'op' ? indexed?.opByName.get(subject) : undefined;
    const name =
      op === undefined
        ? h('span', { class: 'ap-label' }, subject)
        : h(
            'button',
            {
              type: 'button',
              class: 'ap-link',
              'data-lm-suppress-shortcuts': 'true',
              on: {
                click: () =>
                  this.context.dispatch({ type: 'select', selection: { kind: 'op', op: op.id }, reveal: true }),
              },
            },
            subject,
          );
    return h('span', {}, name, ' ', h('span', { class: 'ap-code' }, `${before} → ${after}`));
  }

  private take(key: string): void {
    this.context.ask('take', { variant: key });
  }
}

function drawDelta(share: number): HTMLElement {
  const text = formatShareDelta(share);
  return h('span', { class: text === '±0' ? 'ap-dim' : share > 0 ? 'ap-worse' : 'ap-better' }, text);
}
