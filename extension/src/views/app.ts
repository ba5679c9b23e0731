/** All views around one store, in one element. */
import type { Answer, AnswerAction, Topic } from '../logic/answers';
import type { Action, AppState, Store } from '../logic/store';
import type { Alternative } from '../model/planner-state';
import { CompareView } from './compare';
import { h } from './dom';
import { ExplanationView } from './explanation';
import { HeaderView } from './header';
import { HistoryView } from './history';
import { InspectorView } from './inspector';
import { KeysOverlay } from './keys-overlay';
import { LayersView } from './layers';
import { MapView } from './map';
import { makePanel } from './panel';
import { PinsView } from './pins';
import { ProgramView } from './program';
import { StagesView } from './stages';
import { TimelineView } from './timeline';
import { VariantsView } from './variants';
import type { PlannerHost, View, ViewContext } from './view';

/** What an element of ours keeps from the notebook around it: keys would cut cells, shift-click would select them. */
function guard(root: HTMLElement): void {
  root.addEventListener('keydown', (event) => event.stopPropagation());
  root.addEventListener('keypress', (event) => event.stopPropagation());
  root.addEventListener('mousedown', (event) => {
    if (event.shiftKey) event.stopPropagation();
  });
}

const EMPTY = {
  idle: 'Press Solve to find a plan.',
  solving: 'The first plan is being searched for; it appears here.',
} as const;

export class App implements ViewContext {
  readonly node: HTMLElement;
  private readonly views: View[];
  private readonly workspace: HTMLElement;
  private readonly empty = h('p', { class: 'ap-empty ap-empty-plan' });
  private readonly unsubscribe: () => void;

  /** `host` is null where there is no planner to ask. */
  constructor(
    private readonly store: Store,
    private readonly host: PlannerHost | null,
  ) {
    const header = new HeaderView(this);
    const keys = new KeysOverlay();
    const timeline = new TimelineView(this);
    const map = new MapView(this);
    const stages = new StagesView(this);
    const layers = new LayersView(this);
    const program = new ProgramView(this);
    const inspector = new InspectorView(this);
    const pins = new PinsView(this);
    const history = new HistoryView(this);
    const compare = new CompareView();
    const variants = new VariantsView(this);
    const explanation = new ExplanationView(this);
    this.views = [
      header,
      map,
      stages,
      layers,
      program,
      inspector,
      timeline,
      variants,
      explanation,
      pins,
      history,
      compare,
    ];

    const mapPanel = makePanel('map', 'Map');
    mapPanel.body.append(h('div', { class: 'ap-map-grid' }, map.node, stages.node), layers.node);
    const programPanel = makePanel('program', 'Program');
    programPanel.body.append(program.node);
    programPanel.tools.append(program.tools);
    const inspectorPanel = makePanel('inspector', 'Op');
    inspectorPanel.body.append(inspector.node);
    const timelinePanel = makePanel('timeline', 'Timeline');
    timelinePanel.body.append(timeline.node);
    timelinePanel.tools.append(timeline.tools);
    const variantsPanel = makePanel('variants', 'Variants');
    variantsPanel.body.append(variants.node);
    const explanationPanel = makePanel('explanation', 'Why this plan');
    explanationPanel.body.append(explanation.node);
    // Only a planner finds variants and explains.
    variantsPanel.node.hidden = explanationPanel.node.hidden = host === null;
    const pinsPanel = makePanel('pins', 'Decisions');
    pinsPanel.body.append(pins.node, history.node);
    const comparePanel = makePanel('compare', 'Compared with the plan before');
    comparePanel.body.append(compare.node);
    // A plan alone has nothing to be compared with.
    comparePanel.node.hidden = host === null;

    this.workspace = h(
      'div',
      { class: 'ap-workspace' },
      mapPanel.node,
      h('div', { class: 'ap-columns' }, programPanel.node, inspectorPanel.node),
      timelinePanel.node,
      variantsPanel.node,
      explanationPanel.node,
      h('div', { class: 'ap-columns ap-columns-even' }, pinsPanel.node, comparePanel.node),
    );
    this.node = h(
      'div',
      { class: 'alpaviz', 'data-lm-suppress-shortcuts': 'true' },
      h('div', { class: 'ap-frame' }, header.node, this.empty, this.workspace),
      keys.node,
    );
    header.tools.append(keys.opener);
    keys.listen(this.node);
    guard(this.node);
    this.unsubscribe = store.subscribe((state, before) => this.update(state, before));
    this.update(store.state, null);
  }

  dispose(): void {
    this.unsubscribe();
    for (const view of this.views) view.dispose?.();
  }

  dispatch(action: Action): void {
    this.store.dispatch(action);
  }

  ask(method: string, params: Record<string, unknown> = {}): void {
    if (this.host === null) return;
    this.dispatch({ type: 'notice', notice: null });
    this.host.request(method, params).catch((error: Error) => this.dispatch({ type: 'notice', notice: error.message }));
  }

  question(topic: Topic, subject: string | number, params: Record<string, unknown>): void {
    if (this.host === null) return;
    const asked: Answer<never> = { subject, state: 'asked' };
    const put = (answer: Answer<unknown>): void => {
      // Another question, op or plan may have come meanwhile: then nobody waits for this answer.
      const isAwaited = this.store.state.answers[topic] === asked || answer === asked;
      if (isAwaited) this.dispatch({ type: 'answer', topic, answer } as AnswerAction);
    };
    put(asked);
    this.host.request(topic, params).then(
      (value) => put({ subject, state: 'known', value }),
      (error: Error) => put({ subject, state: 'refused', message: error.message }),
    );
  }

  private update(state: AppState, before: AppState | null): void {
    this.workspace.hidden = state.indexed === null;
    this.empty.hidden = state.indexed !== null;
    this.empty.textContent = EMPTY[state.status.state as keyof typeof EMPTY] ?? 'There is no plan yet.';
    for (const view of this.views) view.update(state, before);
    this.node.dataset.state = state.isReadOnly ? 'read-only' : state.status.state;
    this.wantAlternatives(state, before);
  }

  /** Alternatives are asked for when another op is selected, and again when pins or the plan have changed. */
  private wantAlternatives(state: AppState, before: AppState | null): void {
    const op = state.selection?.kind === 'op' ? state.indexed?.plan.ops[state.selection.op] : undefined;
    if (this.host === null || op === undefined || state.status.state === 'solving') return;
    const hasChanged = before !== null && (state.pins !== before.pins || before.status.state === 'solving');
    if (state.alternatives?.op === op.name && !hasChanged) return;
    const known = state.alternatives?.op === op.name && state.alternatives.state === 'known';
    if (!known) this.dispatch({ type: 'alternatives', alternatives: { op: op.name, state: 'asked' } });
    const isWanted = (): boolean => this.store.state.alternatives?.op === op.name;
    this.host.request('alternatives', { op: op.name }).then(
      (rows) => {
        if (isWanted())
          this.dispatch({
            type: 'alternatives',
            alternatives: { op: op.name, state: 'known', rows: rows as Alternative[] },
          });
      },
      (error: Error) => {
        if (isWanted())
          this.dispatch({
            type: 'alternatives',
            alternatives: { op: op.name, state: 'refused', message: error.message },
          });
      },
    );
  }
}
