/** One card for each stage: its layers, devices, logical mesh, times and memory, and what can be pinned of it. */
import { inkOn, stageColour } from '../logic/colours';
import { countRecomputed, splitMemory, sumParts } from '../logic/costs';
import { formatBytes, formatPercent, formatPlural, formatRange, formatSeconds, formatShape } from '../logic/format';
import { listLogicalMeshes, listSubmeshes } from '../logic/shapes';
import type { AppState } from '../logic/store';
import type { PinKind, WordedPin } from '../model/pin';
import type { Plan, StagePlan } from '../model/plan';
import { button, choice, h, icon, refill } from './dom';
import { findSelectedStage } from './map';
import { makeStackedBar } from './stacked-bar';
import { isStale, type View, type ViewContext } from './view';

/** `host 0, devices 0–3` or `hosts 0–1, all devices`. */
function describeDevices(stage: StagePlan): string {
  const hosts = [...new Set(stage.devices.map(([host]) => host))].sort((a, b) => a - b);
  const numbers = [...new Set(stage.devices.map(([, device]) => device))].sort((a, b) => a - b);
  const range = (list: number[]) => {
    const first = list[0] ?? 0;
    const last = list[list.length - 1] ?? 0;
    return last - first === list.length - 1 ? formatRange(first, last) : list.join(', ');
  };
  return `host${hosts.length > 1 ? 's' : ''} ${range(hosts)}, device${numbers.length > 1 ? 's' : ''} ${range(numbers)}`;
}

/** `0:0–0:3`: first and last device, named as on the map. */
function nameEnds(stage: StagePlan): string {
  const names = stage.devices.map((device) => device.join(':'));
  return names.length === 1 ? (names[0] ?? '') : `${names[0] ?? ''}–${names[names.length - 1] ?? ''}`;
}

function findStagePin(pins: readonly WordedPin[], kind: PinKind, stage: number): WordedPin | undefined {
  return pins.find((pin) => pin.kind === kind && (pin.subject === null || Number(pin.subject) === stage));
}

export class StagesView implements View {
  readonly node = h('div', { class: 'ap-stages' });

  constructor(private readonly context: ViewContext) {}

  update(state: AppState, before: AppState | null): void {
    const isNew =
      before === null ||
      state.indexed !== before.indexed ||
      state.pins !== before.pins ||
      state.measured !== before.measured ||
      state.isReadOnly !== before.isReadOnly;
    if (isNew) {
      const plan = state.indexed?.plan;
      refill(this.node, ...(plan?.stages.map((stage) => this.makeCard(plan, stage, state)) ?? []));
    }
    this.node.classList.toggle('ap-stale', isStale(state));
    const selected = findSelectedStage(state);
    for (const [i, card] of [...this.node.children].entries()) card.classList.toggle('ap-selected', i === selected);
  }

  private makeCard(plan: Plan, stage: StagePlan, state: AppState): HTMLElement {
    const colour = stageColour(stage.index);
    const memory = splitMemory(stage.memory);
    const used = sumParts(memory);
    const capacity = stage.memory.capacity_bytes;
    const recomputed = countRecomputed(plan, stage);
    const names = [plan.program.layers[stage.first_layer], plan.program.layers[stage.last_layer]];
    const layers =
      stage.first_layer === stage.last_layer
        ? `layer ${stage.first_layer} (${names[0] ?? ''})`
        : `layers ${formatRange(stage.first_layer, stage.last_layer)} (${names[0] ?? ''} to ${names[1] ?? ''})`;
    const axes = stage.mesh_axes.map((axis, i) => `${axis} = ${stage.mesh_shape[i] ?? 1}`).join(', ');
    return h(
      'article',
      { class: 'ap-card', style: `--stage:${colour};--ink:${inkOn(colour)}`, 'aria-label': `Stage ${stage.index}` },
      h(
        'button',
        {
          type: 'button',
          class: 'ap-card-head',
          'data-focus': `stage-${stage.index}`,
          'data-lm-suppress-shortcuts': 'true',
          on: {
            click: () => this.context.dispatch({ type: 'select', selection: { kind: 'stage', stage: stage.index } }),
          },
        },
        h('span', { class: 'ap-badge' }, String(stage.index)),
        h('b', {}, `Stage ${stage.index}`),
        h('span', {}, layers),
      ),
      h(
        'dl',
        { class: 'ap-facts-list' },
        ...this.makeFact(
          'submesh',
          stage.submesh,
          `on ${nameEnds(stage)}`,
          this.makeSubmeshPin(plan, stage, state),
          describeDevices(stage),
        ),
        ...this.makeFact('logical mesh', stage.mesh_shape.join('x'), axes, this.makeMeshPin(stage, state)),
      ),
      this.makeTimes(stage, state),
      h(
        'div',
        { class: 'ap-card-memory' },
        h(
          'div',
          { class: 'ap-line' },
          h('span', {}, 'memory a device'),
          h('b', { class: used > capacity ? 'ap-bad' : '' }, `${formatBytes(used)} of ${formatBytes(capacity)}`),
          h('span', { class: 'ap-dim' }, `${formatPercent(used / capacity)} · ${stage.in_flight} in flight`),
        ),
        recomputed > 0 &&
          h(
            'div',
            { class: 'ap-dim', title: 'Their activations are made again in the backward pass instead of being kept.' },
            `${recomputed} of ${formatPlural(stage.last_layer - stage.first_layer + 1, 'layer')} recomputed`,
          ),
        makeStackedBar(memory, {
          label: 'Memory',
          format: formatBytes,
          total: capacity,
          rest: `free: ${formatBytes(capacity - used)}`,
        }),
      ),
    );
  }

  /** The control shows the shape; where it shows a pinned one that the plan does not have yet, the present one is said. */
  private makeFact(term: string, shape: string, text: string, control: HTMLElement | null, title = ''): HTMLElement[] {
    const wanted = control?.querySelector('select')?.value;
    const note = wanted === undefined ? formatShape(shape) : wanted === shape ? '' : `(now ${formatShape(shape)})`;
    return [h('dt', {}, term), h('dd', {}, control, note !== '' && h('b', {}, note), h('span', { title }, text))];
  }

  private makeTimes(stage: StagePlan, { measured }: AppState): HTMLElement {
    const seen = measured?.[String(stage.index)];
    const row = (label: string, note: string, key: 'forward_s' | 'backward_s' | 'update_s') =>
      h(
        'div',
        { class: 'ap-time' },
        h('span', { class: 'ap-dim', title: note }, label),
        h('b', {}, formatSeconds(stage[key])),
        seen !== undefined && h('span', { class: 'ap-measured' }, `measured ${formatSeconds(seen[key])}`),
      );
    return h(
      'div',
      { class: 'ap-times' },
      row('forward', 'of one microbatch', 'forward_s'),
      row('backward', 'of one microbatch', 'backward_s'),
      row('update', 'once a step', 'update_s'),
    );
  }

  private makePinControl(
    stage: StagePlan,
    kind: PinKind,
    label: string,
    shapes: readonly string[],
    present: string,
    state: AppState,
  ): HTMLElement | null {
    if (state.isReadOnly) return null;
    const pin = findStagePin(state.pins, kind, stage.index);
    const selected = String(pin?.choice ?? present);
    const all = shapes.includes(selected) ? shapes : [selected, ...shapes];
    const select = choice(
      `${label} of stage ${stage.index}`,
      all.map((shape) => ({ value: shape, label: formatShape(shape) })),
      selected,
      { 'data-focus': `${kind}-${stage.index}` },
    );
    return h(
      'span',
      { class: 'ap-control', 'data-control': kind },
      select,
      button('Pin', () => this.context.ask('pin', { kind, subject: stage.index, choice: select.value }), {
        icon: 'pin',
        showsLabel: false,
        class: pin === undefined ? 'ap-quiet' : 'ap-quiet ap-on',
        title: pin === undefined ? `Pin the ${label} of stage ${stage.index}` : `Pinned: ${pin.text}`,
        'aria-label': `Pin the ${label} of stage ${stage.index}`,
        'data-focus': `${kind}-pin-${stage.index}`,
      }),
    );
  }

  private makeSubmeshPin(plan: Plan, stage: StagePlan, state: AppState): HTMLElement | null {
    return this.makePinControl(stage, 'stage_submesh', 'submesh', listSubmeshes(plan.cluster), stage.submesh, state);
  }

  private makeMeshPin(stage: StagePlan, state: AppState): HTMLElement | null {
    const submesh = findStagePin(state.pins, 'stage_submesh', stage.index)?.choice ?? stage.submesh;
    const shapes = listLogicalMeshes(String(submesh));
    return this.makePinControl(stage, 'logical_mesh', 'logical mesh', shapes, stage.mesh_shape.join('x'), state);
  }
}

export function makeStaleNote(state: AppState): HTMLElement | null {
  if (!isStale(state)) return null;
  return h(
    'p',
    { class: 'ap-stale-note' },
    icon('stale'),
    'This is the last plan; it was not made for the present pins.',
  );
}
