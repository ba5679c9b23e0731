/** Hosts as rows, devices as cells in the colour and with the number of their stage, and how full their memory is. */
import { stageColour } from '../logic/colours';
import { splitMemory, sumParts } from '../logic/costs';
import { formatBandwidth, formatBytes, formatPercent } from '../logic/format';
import type { AppState } from '../logic/store';
import type { Plan, StagePlan } from '../model/plan';
import { h, refill } from './dom';
import { isStale, type View, type ViewContext } from './view';

/** Which stage the selection is in; null if it is in none. */
export function findSelectedStage(state: AppState): number | null {
  const { selection, indexed } = state;
  if (selection === null || indexed === null) return null;
  switch (selection.kind) {
    case 'stage':
      return selection.stage;
    case 'layer':
      return indexed.plan.stages.findIndex((s) => s.first_layer <= selection.layer && selection.layer <= s.last_layer);
    case 'op':
      return indexed.plan.ops[selection.op]?.stage ?? null;
  }
}

/** `x1 y0`: where a device is in its stage's logical mesh. */
export function locateDevice(stage: StagePlan, position: number): string {
  let rest = position;
  const places: string[] = [];
  for (let a = stage.mesh_shape.length - 1; a >= 0; a--) {
    const size = stage.mesh_shape[a] ?? 1;
    places.unshift(`${stage.mesh_axes[a] ?? ''}${rest % size}`);
    rest = Math.floor(rest / size);
  }
  return places.join(' ');
}

export class MapView implements View {
  readonly node = h('div', { class: 'ap-map' });

  constructor(private readonly context: ViewContext) {}

  update(state: AppState, before: AppState | null): void {
    if (before === null || state.indexed !== before.indexed) this.draw(state.indexed?.plan ?? null);
    this.node.classList.toggle('ap-stale', isStale(state));
    const selected = findSelectedStage(state);
    for (const cell of this.node.querySelectorAll<HTMLElement>('.ap-device[data-stage]')) {
      const isSelected = Number(cell.dataset.stage) === selected;
      cell.classList.toggle('ap-selected', isSelected);
      cell.setAttribute('aria-pressed', String(isSelected));
    }
  }

  private draw(plan: Plan | null): void {
    if (plan === null) {
      refill(this.node);
      return;
    }
    const count = plan.cluster.hosts.reduce((sum, host) => sum + host.num_devices, 0);
    this.node.classList.toggle('ap-map-compact', count > 16);
    const owners = new Map<string, { stage: StagePlan; position: number }>();
    for (const stage of plan.stages) {
      for (const [position, [host, device]] of stage.devices.entries())
        owners.set(`${host}:${device}`, { stage, position });
    }
    const isMixed = new Set(plan.cluster.hosts.map((host) => host.device_type.name)).size > 1;
    const rows = plan.cluster.hosts.map((host, hostNumber) =>
      h(
        'div',
        { class: 'ap-host', role: 'group', 'aria-label': `Host ${hostNumber}` },
        h(
          'div',
          { class: 'ap-host-name' },
          h('b', {}, `host ${hostNumber}`),
          isMixed && h('span', { class: 'ap-dim' }, host.device_type.name),
          h(
            'span',
            { class: 'ap-dim', title: 'bandwidth that one device has to the others of its host' },
            formatBandwidth(host.link.bandwidth),
          ),
        ),
        h(
          'div',
          { class: 'ap-devices' },
          ...Array.from({ length: host.num_devices }, (_, device) =>
            this.makeCell(hostNumber, device, owners.get(`${hostNumber}:${device}`)),
          ),
        ),
      ),
    );
    const network =
      plan.cluster.hosts.length > 1 &&
      h('p', { class: 'ap-dim ap-network' }, `${formatBandwidth(plan.cluster.network.bandwidth)} between hosts`);
    refill(this.node, ...rows, network);
  }

  private makeCell(
    host: number,
    device: number,
    owner: { stage: StagePlan; position: number } | undefined,
  ): HTMLElement {
    const name = `${host}:${device}`;
    if (owner === undefined) {
      return h(
        'div',
        { class: 'ap-device ap-device-free', title: `device ${name} is not used` },
        h('span', { class: 'ap-device-name' }, h('span', {}, `${host}:`), String(device)),
        h('span', { class: 'ap-dim' }, 'unused'),
      );
    }
    const { stage, position } = owner;
    const used = sumParts(splitMemory(stage.memory));
    const share = used / stage.memory.capacity_bytes;
    const place = locateDevice(stage, position);
    const memory = `${formatBytes(used)} of ${formatBytes(stage.memory.capacity_bytes)}`;
    return h(
      'button',
      {
        type: 'button',
        class: 'ap-device',
        style: `--stage:${stageColour(stage.index)}`,
        'data-stage': stage.index,
        'data-lm-suppress-shortcuts': 'true',
        'aria-label': `device ${name}, stage ${stage.index}, mesh position ${place}, memory ${memory}`,
        title: `device ${name}: stage ${stage.index}, at ${place} of its logical mesh\nmemory of the stage's fullest device: ${memory}`,
        on: {
          click: () => this.context.dispatch({ type: 'select', selection: { kind: 'stage', stage: stage.index } }),
        },
      },
      h(
        'span',
        { class: 'ap-device-line' },
        h('span', { class: 'ap-badge' }, String(stage.index)),
        h('span', { class: 'ap-device-name' }, h('span', {}, `${host}:`), String(device)),
      ),
      h('span', { class: 'ap-device-place' }, place),
      h(
        'span',
        { class: 'ap-device-memory' },
        h(
          'span',
          { class: 'ap-fill' },
          h('span', { style: `width:${Math.min(100, share * 100).toFixed(1)}%`, class: share > 0.95 ? 'ap-full' : '' }),
        ),
        h('span', {}, formatPercent(share)),
      ),
    );
  }
}
