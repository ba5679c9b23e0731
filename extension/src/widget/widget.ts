/** The anywidget: traits of alpaviz/widget/planner_widget.py to actions, requests of the views to messages. */

import { initialState, Store } from '../logic/store';
import { inflatePlan } from '../logic/unpack';
import type { WordedPin } from '../model/pin';
import type { Measured, PlanDiff, Recording, Status } from '../model/planner-state';
import { App } from '../views/app';
import type { PlannerHost } from '../views/view';
import { PLAN_EVENT, type PlanEventDetail } from './plan-event';

interface Model {
  get(name: string): unknown;
  send(content: unknown): void;
  on(event: string, callback: (...args: never[]) => void): void;
  off(event: string, callback: (...args: never[]) => void): void;
}

interface Reply {
  id: number;
  result?: unknown;
  error?: string;
}

/** After this many milliseconds without an answer the page says so; the request still waits. */
const PATIENCE = 2500;

class KernelHost implements PlannerHost {
  private lastId = 0;
  private readonly waiting = new Map<number, { resolve: (result: unknown) => void; reject: (error: Error) => void }>();

  constructor(
    private readonly model: Model,
    private readonly sayBusy: () => void,
    private readonly sayAnswered: () => void,
  ) {
    model.on('msg:custom', (reply: Reply) => this.receive(reply));
  }

  request(method: string, params: Record<string, unknown> = {}): Promise<unknown> {
    const id = ++this.lastId;
    window.setTimeout(() => {
      if (this.waiting.has(id)) this.sayBusy();
    }, PATIENCE);
    return new Promise((resolve, reject) => {
      this.waiting.set(id, { resolve, reject });
      this.model.send({ id, method, params });
    });
  }

  private receive(reply: Reply): void {
    const waiting = this.waiting.get(reply.id);
    if (waiting === undefined) return;
    this.waiting.delete(reply.id);
    if (this.waiting.size === 0) this.sayAnswered();
    if (reply.error !== undefined) waiting.reject(new Error(reply.error));
    else waiting.resolve(reply.result);
  }
}

interface Session {
  store: Store;
  host: PlannerHost | null;
  /** What the shown plan was read from. */
  bytes: Uint8Array<ArrayBuffer> | null;
}

const BUSY = 'The kernel has not answered yet: it may be running a cell. The request waits.';

function toBytes(data: unknown): Uint8Array<ArrayBuffer> | null {
  if (data instanceof DataView) return new Uint8Array(data.buffer as ArrayBuffer, data.byteOffset, data.byteLength);
  if (data instanceof ArrayBuffer) return new Uint8Array(data);
  if (data instanceof Uint8Array) return new Uint8Array(data);
  return null;
}

/** One store for each model, so that two views of one planner stay in step and a redrawn output keeps its place. */
function makeSession(model: Model): Session {
  const isReadOnly = model.get('is_read_only') === true;
  const store = new Store(initialState(isReadOnly));
  const host = isReadOnly
    ? null
    : new KernelHost(
        model,
        () => store.dispatch({ type: 'notice', notice: BUSY }),
        () => {
          if (store.state.notice === BUSY) store.dispatch({ type: 'notice', notice: null });
        },
      );
  const follow = (name: string, take: () => void): void => {
    model.on(`change:${name}`, take);
    take();
  };
  const session: Session = { store, host, bytes: null };
  let latest = 0;
  follow('plan_data', () => {
    const bytes = toBytes(model.get('plan_data'));
    const turn = ++latest;
    if (bytes === null || bytes.byteLength === 0) {
      store.dispatch({ type: 'plan', plan: null });
      return;
    }
    inflatePlan(bytes).then(
      (plan) => {
        if (turn !== latest) return;
        session.bytes = bytes;
        store.dispatch({ type: 'plan', plan });
      },
      (error: Error) => store.dispatch({ type: 'notice', notice: error.message }),
    );
  });
  follow('status', () => store.dispatch({ type: 'status', status: model.get('status') as Status }));
  follow('pins', () => store.dispatch({ type: 'pins', pins: model.get('pins') as WordedPin[] }));
  follow('changes', () => store.dispatch({ type: 'changes', changes: model.get('changes') as PlanDiff | null }));
  follow('measured', () => store.dispatch({ type: 'measured', measured: model.get('measured') as Measured | null }));
  follow('recording', () =>
    store.dispatch({ type: 'recording', recording: (model.get('recording') ?? null) as Recording | null }),
  );
  return session;
}

// Keyed by the kernel's id of the model: anywidget hands out a new proxy object to each hook.
const sessions = new WeakMap<object, Session>();
const sessionsById = new Map<string, Session>();

function findSession(model: Model): Session {
  const id = model.get('session_id');
  const known = typeof id === 'string' && id !== '' ? sessionsById.get(id) : sessions.get(model);
  if (known !== undefined) return known;
  const session = makeSession(model);
  if (typeof id === 'string' && id !== '') sessionsById.set(id, session);
  else sessions.set(model, session);
  return session;
}

function initialize({ model }: { model: Model }): () => void {
  const id = model.get('session_id');
  // A model that comes back (page reload, kernel restart) has a new connection: the old session is over.
  if (typeof id === 'string') sessionsById.delete(id);
  findSession(model);
  return () => {
    if (typeof id === 'string') sessionsById.delete(id);
  };
}

/** Tells the output around `el` which plan is shown, once it is in the page. */
function announcePlan(session: Session, el: HTMLElement): void {
  const { bytes, host } = session;
  if (bytes === null || host === null) return;
  const fetchBundle = () => host.request('bundle') as Promise<Record<string, unknown>>;
  const detail: PlanEventDetail = { bytes, fetchBundle };
  requestAnimationFrame(() => el.dispatchEvent(new CustomEvent(PLAN_EVENT, { bubbles: true, detail })));
}

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const session = findSession(model);
  const app = new App(session.store, session.host);
  el.replaceChildren(app.node);
  announcePlan(session, el);
  const unsubscribe = session.store.subscribe((state, before) => {
    if (state.indexed !== before.indexed) announcePlan(session, el);
  });
  return () => {
    unsubscribe();
    app.dispose();
  };
}

export default { initialize, render };
