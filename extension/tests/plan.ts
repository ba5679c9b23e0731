/** A small plan for the tests: two stages, four layers, a handful of ops. */
import type { OpPlan, Plan, StagePlan } from '../src/model/plan';

export function makeOp(id: number, change: Partial<OpPlan> = {}): OpPlan {
  return {
    id,
    name: `block_${id}/mlp/dot_general.0`,
    primitive: 'dot_general',
    role: 'forward',
    layer: id,
    stage: id < 2 ? 0 : 1,
    scope: `block_${id}/mlp`,
    source: 'gpt.py:62',
    rule: 'b s k, k n -> b s n',
    inputs: [0, 1],
    outputs: [2 + id],
    strategy: 'b:x n:y',
    is_decision: true,
    input_specs: [
      [['x'], [], []],
      [[], ['y']],
    ],
    output_specs: [[['x'], [], ['y']]],
    collectives: [],
    reshardings: [],
    compute_s: 1e-3,
    partial_axes: [],
    ...change,
  };
}

export function makeStage(index: number, change: Partial<StagePlan> = {}): StagePlan {
  return {
    index,
    first_layer: index * 2,
    last_layer: index * 2 + 1,
    submesh: '1x4',
    devices: [0, 1, 2, 3].map((d): [number, number] => [0, index * 4 + d]),
    mesh_shape: [2, 2],
    mesh_axes: ['x', 'y'],
    forward_s: 1,
    backward_s: 2,
    update_s: 0.5,
    compute_s: 10,
    collectives_s: [],
    resharding_s: 0,
    in_flight: 2 - index,
    memory: {
      parameters_bytes: 1e9,
      optimizer_bytes: 2e9,
      gradients_bytes: 1e9,
      activations_bytes: 3e9,
      temporary_bytes: 0,
      capacity_bytes: 16e9,
      batch_bytes: 0,
    },
    objective: 1,
    bound: 1,
    weights_s: 0,
    ...change,
  };
}

export function makePlan(change: Partial<Plan> = {}): Plan {
  const ops = change.ops ?? [0, 1, 2, 3].map((id) => makeOp(id));
  return {
    schema_version: 1,
    program: {
      name: 'tiny',
      fingerprint: 'f',
      num_ops: ops.length,
      num_layers: 4,
      layers: ['block_0', 'block_1', 'block_2', 'block_3'],
      layer_flops: [1, 1, 1, 1],
      flops: 4,
      state_bytes: 1,
      recomputed_layers: [],
    },
    cluster: {
      name: 'p3.16xlarge:1',
      hosts: [
        {
          device_type: {
            name: 'V100',
            memory_bytes: 16e9,
            memory_bandwidth: 9e11,
            flops: [['float32', 1.5e13]],
            measured: null,
          },
          num_devices: 8,
          link: { bandwidth: 1.5e11, latency: 1e-6 },
        },
      ],
      network: { bandwidth: 3e9, latency: 1e-5 },
      is_virtual: false,
    },
    num_microbatches: 2,
    schedule: '1f1b',
    stages: [makeStage(0), makeStage(1)],
    ops,
    values: [],
    transfers: [],
    estimate: {
      step_s: 10,
      compute_s: 5,
      collectives_s: [['all-reduce', 1]],
      resharding_s: 0,
      transfer_s: 1,
      bubble_s: 4,
      bubble_fraction: 0.4,
      model_flops_utilisation: 0.5,
    },
    pins: [],
    solver: {
      solver: 'exact',
      seconds: 1,
      objective: 10,
      bound: 10,
      num_candidates: 1,
      num_solved: 1,
      notes: [],
      tries: [],
    },
    warnings: [],
    ...change,
  };
}
