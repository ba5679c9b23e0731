/** What the views show, and how it changes: one immutable state, one reducer. */
import type { WordedPin } from '../model/pin';
import type { Plan } from '../model/plan';
import type { Alternative, Measured, PlanDiff, Recording, Status } from '../model/planner-state';
import { type AnswerAction, type Answers, keepAnswers, NO_ANSWERS } from './answers';
import { type IndexedPlan, indexPlan } from './plan-index';
import { isFiltering, listAncestors, NO_FILTER, type OpFilter } from './program-tree';

export type Selection =
  | { kind: 'op'; op: number }
  | { kind: 'layer'; layer: number }
  | { kind: 'stage'; stage: number }
  | null;

/** Alternatives of the selected op: asked for, refused with a sentence, or here. */
export type Alternatives =
  | { op: string; state: 'asked' }
  | { op: string; state: 'refused'; message: string }
  | { op: string; state: 'known'; rows: Alternative[] }
  | null;

export interface AppState {
  status: Status;
  indexed: IndexedPlan | null;
  pins: WordedPin[];
  changes: PlanDiff | null;
  measured: Measured | null;
  recording: Recording | null;
  isReadOnly: boolean;
  selection: Selection;
  alternatives: Alternatives;
  answers: Answers;
  /** Keys of unfolded rows of the program. */
  open: ReadonlySet<string>;
  filter: OpFilter;
  /** What went wrong with the last request, until the next one. */
  notice: string | null;
}

export type Action =
  | { type: 'status'; status: Status }
  | { type: 'plan'; plan: Plan | null }
  | { type: 'pins'; pins: WordedPin[] }
  | { type: 'changes'; changes: PlanDiff | null }
  | { type: 'measured'; measured: Measured | null }
  | { type: 'recording'; recording: Recording | null }
  | { type: 'select'; selection: Selection; reveal?: boolean }
  | { type: 'toggle'; key: string }
  | { type: 'fold-all' }
  | { type: 'filter'; filter: Partial<OpFilter> }
  | { type: 'alternatives'; alternatives: Alternatives }
  | AnswerAction
  | { type: 'notice'; notice: string | null };

const IDLE: Status = {
  state: 'idle',
  message: '',
  progress: null,
  can_undo: false,
  can_redo: false,
  last_change: '',
  variant: null,
};

export function initialState(isReadOnly: boolean): AppState {
  return {
    status: IDLE,
    indexed: null,
    pins: [],
    changes: null,
    measured: null,
    recording: null,
    isReadOnly,
    selection: null,
    alternatives: null,
    answers: NO_ANSWERS,
    open: new Set(),
    filter: NO_FILTER,
    notice: null,
  };
}

/** The selection that is left when another plan comes: an op is found again by its name, the rest by its number. */
function carrySelection(selection: Selection, before: IndexedPlan | null, after: IndexedPlan): Selection {
  if (selection === null) return null;
  switch (selection.kind) {
    case 'op': {
      const name = before?.plan.ops[selection.op]?.name;
      const op = name === undefined ? undefined : after.opByName.get(name);
      return op === undefined ? null : { kind: 'op', op: op.id };
    }
    case 'layer':
      return selection.layer < after.plan.program.num_layers ? selection : null;
    case 'stage':
      return selection.stage < after.plan.stages.length ? selection : null;
  }
}

function toggled(set: ReadonlySet<string>, key: string): ReadonlySet<string> {
  const next = new Set(set);
  if (!next.delete(key)) next.add(key);
  return next;
}

function select(state: AppState, selection: Selection, reveal: boolean): AppState {
  const op = selection?.kind === 'op' ? state.indexed?.plan.ops[selection.op] : undefined;
  let { open, filter } = state;
  if (reveal && op !== undefined) {
    open = new Set([...(isFiltering(filter) ? [] : open), ...listAncestors(op)]);
    filter = NO_FILTER;
  }
  if (reveal && selection?.kind === 'layer') filter = NO_FILTER;
  const keepsAlternatives = op !== undefined && state.alternatives?.op === op.name;
  const alternatives = keepsAlternatives ? state.alternatives : null;
  const keepsRegrets = op !== undefined && state.answers.regrets?.subject === op.name;
  const answers = keepsRegrets ? state.answers : { ...state.answers, regrets: null };
  return { ...state, selection, open, filter, alternatives, answers };
}

export function reduce(state: AppState, action: Action): AppState {
  switch (action.type) {
    case 'status':
      return { ...state, status: action.status };
    case 'plan': {
      const answers = keepAnswers(state.answers, action.plan === null ? null : state.status.variant);
      if (action.plan === null) return { ...state, indexed: null, selection: null, alternatives: null, answers };
      const indexed = indexPlan(action.plan);
      const selection = carrySelection(state.selection, state.indexed, indexed);
      return { ...state, indexed, selection, alternatives: null, answers };
    }
    case 'pins':
      // Prices stay; the marks of what is pinned are asked for again by the app.
      return { ...state, pins: action.pins };
    case 'changes':
      return { ...state, changes: action.changes };
    case 'measured':
      return { ...state, measured: action.measured };
    case 'recording':
      return { ...state, recording: action.recording };
    case 'select':
      return select(state, action.selection, action.reveal ?? false);
    case 'toggle':
      return { ...state, open: toggled(state.open, action.key) };
    case 'fold-all':
      return { ...state, open: new Set() };
    case 'filter':
      return { ...state, filter: { ...state.filter, ...action.filter }, open: new Set() };
    case 'alternatives':
      return { ...state, alternatives: action.alternatives };
    case 'answer':
      return { ...state, answers: { ...state.answers, [action.topic]: action.answer } };
    case 'notice':
      return { ...state, notice: action.notice };
  }
}

export type Listener = (state: AppState, before: AppState) => void;

/** Holds the state and tells listeners; several views of one widget share one store. */
export class Store {
  private current: AppState;
  private readonly listeners = new Set<Listener>();

  constructor(state: AppState) {
    this.current = state;
  }

  get state(): AppState {
    return this.current;
  }

  dispatch(action: Action): void {
    const before = this.current;
    this.current = reduce(before, action);
    for (const listener of [...this.listeners]) listener(this.current, before);
  }

  subscribe(listener: Listener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
