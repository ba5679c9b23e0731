/** Decisions that the person has taken. */
import type { AppState } from '../logic/store';
import type { WordedPin } from '../model/pin';
import { button, h, icon, refill } from './dom';
import type { View, ViewContext } from './view';

export class PinsView implements View {
  readonly node = h('div', { class: 'ap-pins' });

  constructor(private readonly context: ViewContext) {}

  update(state: AppState, before: AppState | null): void {
    if (before !== null && state.pins === before.pins && state.isReadOnly === before.isReadOnly) return;
    if (state.pins.length === 0) {
      const hint = state.isReadOnly
        ? 'This plan was found without pins.'
        : 'No pins: the solver decides everything. Pin an alternative of an op, a layer, a submesh, a mesh or the number of stages; then solve again.';
      refill(this.node, h('p', { class: 'ap-hint' }, hint));
      return;
    }
    refill(
      this.node,
      h('ul', { class: 'ap-pin-list' }, ...state.pins.map((pin) => this.makePin(pin, state.isReadOnly))),
      !state.isReadOnly &&
        state.pins.length > 1 &&
        button('Remove all pins', () => this.context.ask('clear_pins'), { class: 'ap-quiet' }),
    );
  }

  private makePin(pin: WordedPin, isReadOnly: boolean): HTMLElement {
    const remove = (): void => this.context.ask('unpin', { kind: pin.kind, subject: pin.subject, choice: pin.choice });
    return h(
      'li',
      { class: 'ap-pin' },
      icon('pin'),
      h('span', { class: 'ap-pin-text' }, pin.text),
      !isReadOnly &&
        button(`Remove: ${pin.text}`, remove, { icon: 'cross', showsLabel: false, class: 'ap-quiet ap-unpin' }),
    );
  }
}

/** A pin in words, for plans that come without the kernel's wording. Twin of `Pin.__str__` in alpaviz/pins.py. */
export function wordPin({ kind, subject, choice }: Omit<WordedPin, 'text'>): string {
  switch (kind) {
    case 'strategy':
      return `op ${subject} runs as ${choice}`;
    case 'spec':
      return `${subject} is sharded ${choice}`;
    case 'layer_stage':
      return `layer ${subject} is in stage ${choice}`;
    case 'stage_submesh':
      return `stage ${subject} has a ${choice} submesh`;
    case 'num_stages':
      return `there are ${choice} stages`;
    case 'logical_mesh':
      return `${subject === null ? 'every stage' : `stage ${subject}`} has logical mesh ${choice}`;
  }
}
