/** As in alpaviz/planner_state.py and alpaviz/plan_diff.py. */
import type { ShardingSpec } from './plan';

export type PlannerState =
  | 'idle'
  | 'solving'
  | 'solved'
  | 'stale'
  | 'infeasible'
  | 'failed'
  | 'cancelled'
  /** Only in the browser: a saved plan without a planner. */
  | 'read-only';

export interface SolveProgress {
  phase: string;
  done: number;
  total: number;
  objective: number | null;
  bound: number | null;
  elapsed_s: number;
  stage_objective: number | null;
  stage_bound: number | null;
}

export interface HistoryEntry {
  label: string;
  time_s: number;
  has_plan: boolean;
}

export interface Status {
  state: PlannerState;
  message: string;
  progress: SolveProgress | null;
  can_undo: boolean;
  can_redo: boolean;
  /** What undo takes back. */
  last_change: string;
  /** Key of the offered variant that the plan is; null for none. */
  variant: string | null;
  /** Oldest first, up to what redo can reach; missing where there is no planner. */
  history?: HistoryEntry[];
  /** Which of `history` is now. */
  history_position?: number;
}

export interface Alternative {
  strategy: string;
  compute_s: number;
  communication_s: number;
  memory_bytes: number;
  delta_s: number;
  is_chosen: boolean;
  is_pinned: boolean;
  input_specs: ShardingSpec[];
  output_specs: ShardingSpec[];
}

export interface DiffRow {
  kind: string;
  subject: string;
  before: string;
  after: string;
}

export interface PlanDiff {
  step_before_s: number;
  step_after_s: number;
  summary: string[];
  rows: DiffRow[];
}

/** Chunks of a recorded step; microbatch 0 for updates, times in s. */
export type Recording = [
  stage: number,
  kind: 'forward' | 'backward' | 'update',
  microbatch: number,
  start: number,
  end: number,
][];

/** Measured seconds by stage number, as text keys. */
export type Measured = Record<string, { forward_s: number; backward_s: number; update_s: number; step_s: number }>;
