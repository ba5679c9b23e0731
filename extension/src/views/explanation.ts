/** Why this plan: sentences from the kernel, with ops and stages as links. */
import { findTarget, groupSentences } from '../logic/explanation';
import type { IndexedPlan } from '../logic/plan-index';
import type { AppState } from '../logic/store';
import type { Fragment, Sentence } from '../model/explanation';
import { button, h, icon, refill } from './dom';
import { isStale, type View, type ViewContext } from './view';

const SUBJECTS = { plain: 'plan', exact: 'plan and regrets' } as const;

export class ExplanationView implements View {
  readonly node = h('div', { class: 'ap-explanation' });
  private readonly controls = h('div', { class: 'ap-question' });
  private readonly text = h('div', { class: 'ap-chapters' });

  constructor(private readonly context: ViewContext) {
    this.node.append(this.controls, this.text);
  }

  update(state: AppState, before: AppState | null): void {
    const hasMoved = before !== null && state.status.state !== before.status.state;
    const isNew = before === null || state.indexed !== before.indexed;
    if (!isNew && !hasMoved && state.answers.explanation === before.answers.explanation) return;
    this.drawControls(state);
    this.drawText(state);
  }

  private drawControls(state: AppState): void {
    const answer = state.answers.explanation;
    const isSolving = state.status.state === 'solving';
    const ask = (subject: string, label: string): HTMLElement =>
      button(label, () => this.context.question('explanation', subject, { with_regrets: subject === SUBJECTS.exact }), {
        class: 'ap-small ap-explain',
        disabled: isSolving,
        'data-focus': 'explain',
      });
    const hint = (text: string): HTMLElement => h('span', { class: 'ap-dim' }, text);
    switch (answer?.state) {
      case undefined:
        refill(
          this.controls,
          ask(SUBJECTS.plain, 'Explain this plan'),
          hint('Why it is as it is, from its own numbers.'),
        );
        break;
      case 'asked':
        refill(
          this.controls,
          icon('wait'),
          h(
            'span',
            { role: 'status' },
            answer.subject === SUBJECTS.exact
              ? 'Solving for the regrets of the costliest ops …'
              : 'Asking the planner …',
          ),
          button('Cancel', () => this.context.ask('cancel'), { class: 'ap-small ap-quiet', 'data-focus': 'explain' }),
        );
        break;
      case 'refused':
        refill(
          this.controls,
          h('span', { class: 'ap-bad', role: 'status' }, icon('warn'), ` ${answer.message}`),
          ask(SUBJECTS.plain, 'Ask again'),
        );
        break;
      case 'known':
        refill(
          this.controls,
          answer.subject === SUBJECTS.plain && !isStale(state) && ask(SUBJECTS.exact, 'Add exact regrets'),
          hint(
            answer.subject === SUBJECTS.plain
              ? 'Every number is the plan’s.'
              : 'Every number is the plan’s, or an exact regret of it.',
          ),
        );
    }
  }

  private drawText({ answers, indexed }: AppState): void {
    const answer = answers.explanation;
    if (answer === null || indexed === null) {
      refill(this.text);
      return;
    }
    // While regrets are asked for, the sentences without them stay.
    if (answer.state !== 'known') return;
    refill(
      this.text,
      ...groupSentences(answer.value).map(({ stage, sentences }) =>
        h(
          'section',
          { class: 'ap-chapter', 'data-stage': stage },
          h('h4', {}, stage === null ? 'The plan' : `Stage ${stage}`),
          h('ul', { class: 'ap-summary' }, ...sentences.map((sentence) => this.drawSentence(sentence, indexed))),
        ),
      ),
    );
  }

  private drawSentence({ fragments }: Sentence, indexed: IndexedPlan): HTMLElement {
    return h('li', {}, ...fragments.map((fragment) => this.drawFragment(fragment, indexed)));
  }

  private drawFragment(fragment: Fragment, indexed: IndexedPlan): HTMLElement | string {
    const target = findTarget(fragment, indexed);
    if (target !== null) {
      return h(
        'button',
        {
          type: 'button',
          class: fragment.kind === 'op' ? 'ap-link ap-code' : 'ap-link',
          'data-lm-suppress-shortcuts': 'true',
          on: { click: () => this.context.dispatch({ type: 'select', selection: target, reveal: true }) },
        },
        fragment.text,
      );
    }
    if (fragment.kind === 'text') return fragment.text;
    return fragment.kind === 'code' ? h('span', { class: 'ap-code' }, fragment.text) : h('b', {}, fragment.text);
  }
}
