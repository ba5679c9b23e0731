/** As in alpaviz/plan.py: names, order and meaning of every field are those of the Python dataclasses. */
import type { Cluster } from './cluster';
import type { Pin } from './pin';

export type ShardingSpec = string[][];
export type Role = 'forward' | 'backward' | 'update';
export type CollectiveKind = 'all-reduce' | 'all-gather' | 'reduce-scatter' | 'all-to-all' | 'collective-permute';

/** Layer of ops that belong to no layer: every stage repeats them. */
export const SHARED_LAYER = -1;

export interface PlannedCollective {
  kind: CollectiveKind;
  axes: string[];
  num_bytes: number;
  time_s: number;
  once: boolean;
}

export interface PlannedResharding {
  operand: number;
  held: ShardingSpec;
  wanted: ShardingSpec;
  specs: ShardingSpec[];
  collectives: PlannedCollective[];
}

export interface OpPlan {
  id: number;
  name: string;
  primitive: string;
  role: Role;
  layer: number;
  stage: number;
  scope: string;
  source: string;
  rule: string;
  inputs: (number | null)[];
  outputs: (number | null)[];
  strategy: string;
  is_decision: boolean;
  input_specs: ShardingSpec[];
  output_specs: ShardingSpec[];
  collectives: PlannedCollective[];
  reshardings: PlannedResharding[];
  compute_s: number;
  partial_axes: string[];
}

export interface ValuePlan {
  id: number;
  name: string;
  shape: number[];
  dtype: string;
  kind: string;
  stage: number;
  spec: ShardingSpec;
}

export interface MemoryEstimate {
  parameters_bytes: number;
  optimizer_bytes: number;
  gradients_bytes: number;
  activations_bytes: number;
  temporary_bytes: number;
  capacity_bytes: number;
  batch_bytes: number;
}

export interface StagePlan {
  index: number;
  first_layer: number;
  last_layer: number;
  submesh: string;
  devices: [number, number][];
  mesh_shape: number[];
  mesh_axes: string[];
  forward_s: number;
  backward_s: number;
  update_s: number;
  compute_s: number;
  collectives_s: [string, number][];
  resharding_s: number;
  in_flight: number;
  memory: MemoryEstimate;
  objective: number;
  bound: number;
  weights_s: number;
}

export interface Transfer {
  value: number;
  source_stage: number;
  target_stage: number;
  target_spec: ShardingSpec;
  num_bytes: number;
  time_s: number;
  once: boolean;
}

export interface StepEstimate {
  step_s: number;
  compute_s: number;
  collectives_s: [string, number][];
  resharding_s: number;
  transfer_s: number;
  bubble_s: number;
  bubble_fraction: number;
  model_flops_utilisation: number;
}

export interface ProgramSummary {
  name: string;
  fingerprint: string;
  num_ops: number;
  num_layers: number;
  layers: string[];
  layer_flops: number[];
  flops: number;
  state_bytes: number;
  /** Missing in plans that were saved before there was any. */
  recomputed_layers: number[];
}

export interface PlanTry {
  num_microbatches: number;
  schedule: string;
  step_s: number | null;
  memory_bytes: number | null;
  num_stages: number;
  reason: string;
}

export interface SolverReport {
  solver: string;
  seconds: number;
  objective: number;
  bound: number;
  num_candidates: number;
  num_solved: number;
  notes: string[];
  tries: PlanTry[];
}

/** Column and row of each op where the whole program is drawn, in the order of `Plan.ops`. */
export interface OpPositions {
  columns: Float32Array;
  rows: Float32Array;
}

export interface Plan {
  schema_version: number;
  program: ProgramSummary;
  cluster: Cluster;
  num_microbatches: number;
  schedule: string;
  stages: StagePlan[];
  ops: OpPlan[];
  values: ValuePlan[];
  transfers: Transfer[];
  estimate: StepEstimate;
  pins: Pin[];
  solver: SolverReport;
  warnings: string[];
  /** Not the plan's own: comes with the packed form only (alpaviz/widget/op_positions.py). */
  positions?: OpPositions;
}
