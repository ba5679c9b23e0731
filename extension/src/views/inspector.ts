/** One op: its tensors and how they are cut, what it communicates, and what else it could do. */
import { findCostliest, sumCommunication, sumStepTime } from '../logic/costs';
import { formatBytes, formatPlural, formatSeconds, formatSpec } from '../logic/format';
import { type IndexedPlan, nameLayer, readAxisSizes } from '../logic/plan-index';
import { type DimFactors, readRule, readStrategy } from '../logic/rule';
import type { AppState } from '../logic/store';
import { describeDims } from '../logic/tensor';
import type { OpPlan, PlannedCollective, ShardingSpec, StagePlan } from '../model/plan';
import { AlternativesView } from './alternatives';
import { h, refill, table } from './dom';
import { makeTensor } from './tensor-view';
import type { View, ViewContext } from './view';

const MOST_TENSORS = 6;

export class InspectorView implements View {
  readonly node = h('div', { class: 'ap-inspector' });
  private readonly top = h('div');
  private readonly alternatives: AlternativesView;

  constructor(private readonly context: ViewContext) {
    this.alternatives = new AlternativesView(context);
    this.node.append(this.top, this.alternatives.node);
  }

  update(state: AppState, before: AppState | null): void {
    const isNew = before === null || state.indexed !== before.indexed || state.selection !== before.selection;
    if (isNew) {
      this.drawTop(state);
      this.node.scrollTop = 0;
    }
    this.alternatives.update(state, before);
  }

  private drawTop({ indexed, selection }: AppState): void {
    if (indexed === null) {
      refill(this.top);
      return;
    }
    if (selection?.kind === 'op') {
      const op = indexed.plan.ops[selection.op];
      if (op !== undefined) refill(this.top, ...this.describeOp(op, indexed));
      return;
    }
    const isWanted = (op: OpPlan): boolean => {
      if (selection === null) return true;
      return selection.kind === 'layer' ? op.layer === selection.layer : op.stage === selection.stage;
    };
    const where =
      selection === null
        ? 'in the whole program'
        : selection.kind === 'layer'
          ? `in layer ${selection.layer} (${nameLayer(indexed.plan, selection.layer)})`
          : `in stage ${selection.stage}`;
    refill(
      this.top,
      h('p', { class: 'ap-hint' }, 'Select an op to see its tensors, its collectives and what else it could do.'),
      h('h4', {}, `Ops that take most of a step ${where}`),
      this.makeCostliest(findCostliest(indexed.plan, 10, isWanted), indexed),
    );
  }

  private makeCostliest(ops: readonly OpPlan[], indexed: IndexedPlan): HTMLElement {
    const most = Math.max(1e-30, ...ops.map((op) => sumStepTime(op, indexed.plan)));
    return h(
      'ol',
      { class: 'ap-costliest' },
      ...ops.map((op) => {
        const seconds = sumStepTime(op, indexed.plan);
        return h(
          'li',
          {},
          h(
            'button',
            {
              type: 'button',
              'data-lm-suppress-shortcuts': 'true',
              title: `${op.rule}, strategy ${op.strategy}`,
              on: {
                click: () =>
                  this.context.dispatch({ type: 'select', selection: { kind: 'op', op: op.id }, reveal: true }),
              },
            },
            h('span', { class: 'ap-label' }, op.name),
            h('span', { class: 'ap-dim' }, op.role),
            h('span', { class: 'ap-meter' }, h('span', { style: `width:${((seconds / most) * 100).toFixed(1)}%` })),
            h('b', {}, formatSeconds(seconds)),
          ),
        );
      }),
    );
  }

  private describeOp(op: OpPlan, indexed: IndexedPlan): HTMLElement[] {
    const stage = indexed.plan.stages[op.stage];
    const facts = [
      op.primitive,
      op.role,
      nameLayer(indexed.plan, op.layer),
      `stage ${op.stage}`,
      op.is_decision ? 'decided by the solver' : 'follows a neighbour',
      op.source,
    ].filter((fact) => fact !== '');
    const parts = [
      h('h3', { class: 'ap-op-name' }, op.name),
      h('p', { class: 'ap-dim' }, facts.join(' · ')),
      this.describeStrategy(op),
      this.drawTensors(op, indexed, stage),
    ];
    const communication = this.describeCommunication(op, indexed);
    if (communication !== null) parts.push(communication);
    return parts;
  }

  private describeStrategy(op: OpPlan): HTMLElement {
    const axes = readStrategy(op.strategy);
    const words = op.rule.split(/([\s(),]+|->)/).map((word) => {
      const names = axes.get(word);
      if (names === undefined) return word;
      return h('span', { class: `ap-axis ap-axis-${names[0] ?? ''}`, title: `${word} is split over ${names}` }, word);
    });
    const seconds = [`compute ${formatSeconds(op.compute_s)}`, `communication ${formatSeconds(sumCommunication(op))}`];
    return h(
      'dl',
      { class: 'ap-facts-list' },
      h('dt', {}, 'rule'),
      h('dd', { class: 'ap-code' }, ...words),
      h('dt', {}, 'strategy'),
      h('dd', { class: 'ap-code' }, op.strategy),
      h('dt', {}, op.role === 'update' ? 'once a step' : 'each microbatch'),
      h('dd', {}, seconds.join(' · ')),
    );
  }

  private drawTensors(op: OpPlan, indexed: IndexedPlan, stage: StagePlan | undefined): HTMLElement {
    const sizes = stage === undefined ? new Map<string, number>() : readAxisSizes(stage);
    const terms = readRule(op.rule);
    const make = (
      value: number | null,
      spec: ShardingSpec | undefined,
      factors: DimFactors[] | undefined,
      role: string,
    ) => {
      const made = value === null ? undefined : indexed.plan.values[value];
      if (made === undefined) return null;
      const isNamed = made.kind !== 'intermediate';
      return makeTensor({
        title: isNamed ? made.name : role,
        dtype: made.dtype,
        dims: describeDims(made.shape, spec ?? made.spec, sizes, factors ?? []),
      });
    };
    const operands = op.inputs
      .map((value, i) => make(value, op.input_specs[i], terms.operands[i], `operand ${i}`))
      .filter((node): node is HTMLElement => node !== null);
    const results = op.outputs
      .map((value, i) =>
        make(value, op.output_specs[i], terms.results[i], op.outputs.length > 1 ? `result ${i}` : 'result'),
      )
      .filter((node): node is HTMLElement => node !== null);
    const shown = operands.slice(0, MOST_TENSORS);
    const left = operands.length - shown.length;
    return h(
      'div',
      { class: 'ap-tensors' },
      ...shown,
      left > 0 && h('span', { class: 'ap-dim' }, `and ${formatPlural(left, 'more operand')}`),
      h(
        'div',
        { class: 'ap-results' },
        h('span', { class: 'ap-arrow', role: 'img', 'aria-label': 'gives' }, '→'),
        ...results.slice(0, MOST_TENSORS),
      ),
    );
  }

  private describeCommunication(op: OpPlan, indexed: IndexedPlan): HTMLElement | null {
    const row = (why: string | HTMLElement, c: PlannedCollective): (string | HTMLElement)[] => [
      why,
      h('span', { class: `ap-collective ap-edge-${c.kind}` }, c.kind),
      h('span', {}, ...c.axes.map((axis) => h('span', { class: `ap-axis ap-axis-${axis}` }, axis))),
      formatBytes(c.num_bytes),
      formatSeconds(c.time_s),
    ];
    const rows = op.collectives.map((c) => row(c.once ? 'of the result, once a step' : 'of the result', c));
    for (const resharding of op.reshardings) {
      const { operand, held, wanted } = resharding;
      const value = operand < 0 ? op.outputs[-1 - operand] : op.inputs[operand];
      const producer = value === null || value === undefined ? undefined : indexed.producers.get(value);
      const title = producer === undefined || operand < 0 ? '' : `made by ${producer.name}`;
      const why = h(
        'span',
        { title },
        operand < 0 ? `result ${-1 - operand} back to ` : `operand ${operand}: `,
        h('span', { class: 'ap-code' }, `${formatSpec(held)} → ${formatSpec(wanted)}`),
      );
      if (resharding.collectives.length === 0)
        rows.push([why, h('span', { class: 'ap-dim' }, 'paid by another op or free'), '', '', '']);
      for (const [i, c] of resharding.collectives.entries()) rows.push(row(i === 0 ? why : 'then', c));
    }
    if (rows.length === 0) return null;
    const columns = [
      { title: 'why' },
      { title: 'collective' },
      { title: 'axes' },
      { title: 'bytes', class: 'ap-number' },
      { title: 'time', class: 'ap-number' },
    ];
    return h('div', {}, h('h4', {}, 'Communication'), table('Communication of this op', columns, rows));
  }
}
