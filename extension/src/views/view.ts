/** What views have in common: a node, and an update from state to state. */
import type { Topic } from '../logic/answers';
import type { Action, AppState } from '../logic/store';

/** What the views can ask of a planner; a saved plan has none. */
export interface PlannerHost {
  /** Resolves with the kernel's answer; rejects with an `Error` whose message is a sentence. */
  request(method: string, params?: Record<string, unknown>): Promise<unknown>;
}

export interface ViewContext {
  dispatch(action: Action): void;
  /** Asks the kernel; a refusal is shown as a notice. */
  ask(method: string, params?: Record<string, unknown>): void;
  /** Asks what takes the solver seconds; how it goes is in the state's `answers`, under `topic`. */
  question(topic: Topic, subject: string | number, params: Record<string, unknown>): void;
}

export interface View {
  readonly node: HTMLElement;
  update(state: AppState, before: AppState | null): void;
  dispose?(): void;
}

/** Whether the plan that is shown no longer belongs to the pins. */
export function isStale(state: AppState): boolean {
  return (
    state.indexed !== null && ['stale', 'infeasible', 'failed', 'cancelled', 'solving'].includes(state.status.state)
  );
}
