/** Where time and memory go: parts with a name, ready to be drawn as a stacked bar. */
import type { MemoryEstimate, OpPlan, Plan, StagePlan, StepEstimate } from '../model/plan';

export interface Part {
  /** Names its colour and pattern. */
  key: string;
  label: string;
  value: number;
}

/** Parts of a step that take any time; they add up to it. Waiting for a send is the `transfer` part of the bubble. */
export function splitStep(estimate: StepEstimate): Part[] {
  return [
    { key: 'compute', label: 'compute', value: estimate.compute_s },
    ...estimate.collectives_s.map(([kind, value]) => ({ key: kind, label: kind, value })),
    { key: 'resharding', label: 'resharding', value: estimate.resharding_s },
    { key: 'transfer', label: 'transfer', value: estimate.transfer_s },
    { key: 'bubble', label: 'bubble', value: Math.max(0, estimate.bubble_s - estimate.transfer_s) },
  ].filter((part) => part.value > 0);
}

export function splitMemory(memory: MemoryEstimate): Part[] {
  return [
    { key: 'parameters', label: 'parameters', value: memory.parameters_bytes },
    { key: 'optimizer', label: 'optimizer', value: memory.optimizer_bytes },
    { key: 'gradients', label: 'gradients', value: memory.gradients_bytes },
    { key: 'activations', label: 'activations', value: memory.activations_bytes },
    { key: 'batch', label: 'batch', value: memory.batch_bytes ?? 0 },
    { key: 'temporary', label: 'temporary', value: memory.temporary_bytes },
  ].filter((part) => part.value > 0);
}

export function sumParts(parts: readonly Part[]): number {
  return parts.reduce((sum, part) => sum + part.value, 0);
}

/** Seconds of communication whenever an op runs, without what its partial sums leave for the end of the step. */
export function sumCommunication(op: OpPlan): number {
  let seconds = 0;
  for (const collective of op.collectives) if (!collective.once) seconds += collective.time_s;
  for (const resharding of op.reshardings) for (const c of resharding.collectives) seconds += c.time_s;
  return seconds;
}

/** Seconds of an op in one whole step on its stage: once per microbatch, update ops and deferred reductions once. */
export function sumStepTime(op: OpPlan, plan: Plan): number {
  const deferred = op.collectives.reduce((sum, c) => sum + (c.once ? c.time_s : 0), 0);
  return (op.compute_s + sumCommunication(op)) * (op.role === 'update' ? 1 : plan.num_microbatches) + deferred;
}

/** The `count` ops that take the most time of a step, among those that `isWanted`. */
export function findCostliest(plan: Plan, count: number, isWanted: (op: OpPlan) => boolean = () => true): OpPlan[] {
  return plan.ops
    .filter(isWanted)
    .map((op) => ({ op, seconds: sumStepTime(op, plan) }))
    .sort((a, b) => b.seconds - a.seconds)
    .slice(0, count)
    .map(({ op }) => op);
}

/** How many layers of a stage make their activations again in the backward pass. */
export function countRecomputed(plan: Plan, stage: StagePlan): number {
  const layers = plan.program.recomputed_layers ?? [];
  return layers.filter((layer) => stage.first_layer <= layer && layer <= stage.last_layer).length;
}
