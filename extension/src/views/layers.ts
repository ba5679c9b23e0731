/** All layers as a strip in the colours of their stages, and controls that pin a layer or the number of stages. */
import { stageColour } from '../logic/colours';
import { formatFlop, formatPlural } from '../logic/format';
import { findStage, nameLayer } from '../logic/plan-index';
import type { AppState } from '../logic/store';
import type { WordedPin } from '../model/pin';
import { button, choice, h, icon, refill } from './dom';
import { isStale, type View, type ViewContext } from './view';

function findLayerPin(pins: readonly WordedPin[], layer: number): WordedPin | undefined {
  return pins.find((pin) => pin.kind === 'layer_stage' && Number(pin.subject) === layer);
}

function findSelectedLayer({ selection, indexed }: AppState): number | null {
  if (selection?.kind === 'layer') return selection.layer;
  if (selection?.kind === 'op') return indexed?.plan.ops[selection.op]?.layer ?? null;
  return null;
}

export class LayersView implements View {
  readonly node = h('div', { class: 'ap-layers' });
  private readonly strip = h('div', { class: 'ap-strip', role: 'group', 'aria-label': 'Layers' });
  private readonly controls = h('div', { class: 'ap-controls' });

  constructor(private readonly context: ViewContext) {
    this.node.append(this.strip, this.controls);
    this.strip.addEventListener('keydown', (event) => this.move(event));
  }

  update(state: AppState, before: AppState | null): void {
    const hasChanged =
      before === null ||
      state.indexed !== before.indexed ||
      state.pins !== before.pins ||
      state.selection !== before.selection ||
      state.status.state !== before.status.state;
    if (!hasChanged) return;
    this.strip.classList.toggle('ap-stale', isStale(state));
    this.drawStrip(state);
    this.drawControls(state);
  }

  private move(event: KeyboardEvent): void {
    const step = event.key === 'ArrowRight' ? 1 : event.key === 'ArrowLeft' ? -1 : 0;
    const cells = [...this.strip.querySelectorAll<HTMLElement>('.ap-layer')];
    const next = cells[cells.indexOf(document.activeElement as HTMLElement) + step];
    if (step === 0 || next === undefined) return;
    event.preventDefault();
    next.focus();
    next.click();
  }

  private drawStrip(state: AppState): void {
    const plan = state.indexed?.plan;
    if (plan === undefined) {
      refill(this.strip);
      return;
    }
    const selected = findSelectedLayer(state);
    const focusable = selected !== null && selected >= 0 ? selected : 0;
    const cells = Array.from({ length: plan.program.num_layers }, (_, layer) => {
      const stage = findStage(plan, layer);
      const pin = findLayerPin(state.pins, layer);
      const isFirst = stage?.first_layer === layer;
      const name = nameLayer(plan, layer);
      return h(
        'button',
        {
          type: 'button',
          class: `ap-layer${isFirst ? ' ap-layer-first' : ''}${selected === layer ? ' ap-selected' : ''}`,
          style: `--stage:${stageColour(stage?.index ?? 0)}`,
          'data-layer': layer,
          'data-focus': `layer-${layer}`,
          tabindex: layer === focusable ? 0 : -1,
          'data-lm-suppress-shortcuts': 'true',
          'aria-pressed': String(selected === layer),
          'aria-label': `layer ${layer}, ${name}, stage ${stage?.index ?? '?'}${pin === undefined ? '' : `, pinned to stage ${pin.choice}`}`,
          title: `layer ${layer} (${name}) · stage ${stage?.index ?? '?'} · ${formatFlop(plan.program.layer_flops[layer] ?? 0)} forward`,
          on: {
            click: () => this.context.dispatch({ type: 'select', selection: { kind: 'layer', layer }, reveal: true }),
          },
        },
        isFirst && h('span', { class: 'ap-layer-stage' }, `stage ${stage.index}`),
        h('span', {}, String(layer)),
        pin !== undefined && icon('pin'),
      );
    });
    refill(this.strip, ...cells);
  }

  private drawControls(state: AppState): void {
    const plan = state.indexed?.plan;
    if (plan === undefined) {
      refill(this.controls);
      return;
    }
    const layer = findSelectedLayer(state);
    const parts: HTMLElement[] = [];
    if (!state.isReadOnly) parts.push(this.makeStagesControl(state, plan.stages.length, plan.program.num_layers));
    if (layer !== null && layer >= 0) parts.push(this.makeLayerControl(state, layer));
    else parts.push(h('span', { class: 'ap-dim' }, 'Select a layer to see it in the program or to pin it to a stage.'));
    refill(this.controls, ...parts);
  }

  private makeStagesControl(state: AppState, present: number, numLayers: number): HTMLElement {
    const plan = state.indexed?.plan;
    const devices = plan?.cluster.hosts.reduce((sum, host) => sum + host.num_devices, 0) ?? 1;
    const most = Math.min(numLayers, devices, 64);
    const pin = state.pins.find((p) => p.kind === 'num_stages');
    const options = Array.from({ length: most }, (_, i) => ({
      value: String(i + 1),
      label: formatPlural(i + 1, 'stage'),
    }));
    const select = choice('Number of stages', options, String(pin?.choice ?? present), { 'data-focus': 'num-stages' });
    return h(
      'span',
      { class: 'ap-control', 'data-control': 'num_stages' },
      select,
      button(
        'Pin',
        () => this.context.ask('pin', { kind: 'num_stages', subject: null, choice: Number(select.value) }),
        {
          icon: 'pin',
          class: pin === undefined ? '' : 'ap-on',
          title: pin === undefined ? 'Pin the number of stages' : `Pinned: ${pin.text}`,
          'aria-label': 'Pin the number of stages',
        },
      ),
    );
  }

  private makeLayerControl(state: AppState, layer: number): HTMLElement {
    const plan = state.indexed?.plan;
    if (plan === undefined) return h('span');
    const stage = findStage(plan, layer)?.index ?? 0;
    const pin = findLayerPin(state.pins, layer);
    const ops = state.indexed?.opsByLayer.get(layer)?.length ?? 0;
    const text = h(
      'span',
      {},
      h('b', {}, `Layer ${layer}`),
      h(
        'span',
        { class: 'ap-dim' },
        ` ${nameLayer(plan, layer)} · ${formatPlural(ops, 'op')} · ${formatFlop(plan.program.layer_flops[layer] ?? 0)} forward`,
      ),
    );
    if (state.isReadOnly) return text;
    const options = plan.stages.map((s) => ({ value: String(s.index), label: `stage ${s.index}` }));
    const select = choice(`Stage of layer ${layer}`, options, String(pin?.choice ?? stage), {
      'data-focus': 'layer-stage',
    });
    return h(
      'span',
      { class: 'ap-control', 'data-control': 'layer_stage' },
      text,
      select,
      button(
        'Pin',
        () => this.context.ask('pin', { kind: 'layer_stage', subject: layer, choice: Number(select.value) }),
        {
          icon: 'pin',
          class: pin === undefined ? '' : 'ap-on',
          title: pin === undefined ? 'Pin this layer to the stage' : `Pinned: ${pin.text}`,
          'aria-label': `Pin layer ${layer} to the stage`,
        },
      ),
    );
  }
}
