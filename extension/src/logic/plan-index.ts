/** Look-ups into a plan that views ask for often; built once for each plan. */
import { type OpPlan, type Plan, SHARED_LAYER, type StagePlan } from '../model/plan';

export interface IndexedPlan {
  plan: Plan;
  opsByLayer: Map<number, OpPlan[]>;
  opByName: Map<string, OpPlan>;
  /** The op that makes a value, by value id. */
  producers: Map<number, OpPlan>;
  /** For each layer the first layer whose ops run the same way, if that is another one. */
  twins: Map<number, number>;
}

function describeOp(op: OpPlan): string {
  return `${op.primitive} ${op.role} ${op.strategy} ${op.collectives.length} ${op.reshardings.length}`;
}

/**
 * What two layers must share to be called alike: primitives, roles, strategies and collectives in order. The order of
 * update ops is that of the parameters' names, in which `block_10` comes before `block_9`: it says nothing.
 */
function describeLayer(ops: readonly OpPlan[]): string {
  const inOrder = ops.filter((op) => op.role !== 'update').map(describeOp);
  const updates = ops.filter((op) => op.role === 'update').map(describeOp);
  return [...inOrder, ...updates.sort()].join('|');
}

function findTwins(opsByLayer: Map<number, OpPlan[]>): Map<number, number> {
  const seen = new Map<string, number>();
  const twins = new Map<number, number>();
  for (const [layer, ops] of opsByLayer) {
    if (layer === SHARED_LAYER) continue;
    const key = describeLayer(ops);
    const first = seen.get(key);
    if (first === undefined) seen.set(key, layer);
    else twins.set(layer, first);
  }
  return twins;
}

export function indexPlan(plan: Plan): IndexedPlan {
  const opsByLayer = new Map<number, OpPlan[]>();
  for (let layer = 0; layer < plan.program.num_layers; layer++) opsByLayer.set(layer, []);
  const opByName = new Map<string, OpPlan>();
  const producers = new Map<number, OpPlan>();
  for (const op of plan.ops) {
    const ops = opsByLayer.get(op.layer);
    if (ops === undefined) opsByLayer.set(op.layer, [op]);
    else ops.push(op);
    opByName.set(op.name, op);
    for (const value of op.outputs) if (value !== null) producers.set(value, op);
  }
  return { plan, opsByLayer, opByName, producers, twins: findTwins(opsByLayer) };
}

/** The stage that holds `layer`; undefined for the shared layer. */
export function findStage(plan: Plan, layer: number): StagePlan | undefined {
  return plan.stages.find((stage) => stage.first_layer <= layer && layer <= stage.last_layer);
}

/** Devices along each mesh axis of a stage. */
export function readAxisSizes(stage: StagePlan): Map<string, number> {
  return new Map(stage.mesh_axes.map((axis, i) => [axis, stage.mesh_shape[i] ?? 1]));
}

/** `block_3`, or a stand-in where the program names no layers. */
export function nameLayer(plan: Plan, layer: number): string {
  if (layer === SHARED_LAYER) return 'shared by all stages';
  return plan.program.layers[layer] ?? `layer ${layer}`;
}
