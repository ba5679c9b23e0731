/** A plan in a Lumino widget, read-only, drawn by the same views as the live widget. */
import { Widget } from '@lumino/widgets';
import { initialState, Store } from '../logic/store';
import { decodeBase64, inflatePlan, readPlan } from '../logic/unpack';
import type { Plan } from '../model/plan';
import { App } from '../views/app';
import { wordPin } from '../views/pins';

export const PLAN_MIME = 'application/vnd.alpaviz.plan.v1+json';
export const WIDGET_MIME = 'application/vnd.jupyter.widget-view+json';

/** From the MIME bundle (`{plan: base64}`) or a plan file to a plan; null where none had been found yet. */
export async function openPlan(data: unknown): Promise<Plan | null> {
  if (typeof data === 'object' && data !== null && 'plan' in data) {
    const { plan } = data as { plan: unknown };
    if (plan === null) return null;
    if (typeof plan === 'string') return inflatePlan(decodeBase64(plan));
  }
  return readPlan(data);
}

export class PlanView extends Widget {
  private app: App | null = null;

  constructor() {
    super();
    this.addClass('alpaviz-plan-view');
  }

  /** Shows a plan, or a sentence where there is none to show. */
  async open(data: unknown, note: string): Promise<void> {
    let plan: Plan | null;
    try {
      plan = await openPlan(data);
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error));
      return;
    }
    if (plan === null) {
      this.say('AlpaViz planner: no plan had been found when this notebook was saved.');
      return;
    }
    const store = new Store(initialState(true));
    store.dispatch({ type: 'plan', plan });
    store.dispatch({ type: 'pins', pins: plan.pins.map((pin) => ({ ...pin, text: wordPin(pin) })) });
    store.dispatch({
      type: 'status',
      status: { ...initialState(true).status, state: 'read-only', message: note },
    });
    this.app?.dispose();
    this.app = new App(store, null);
    this.node.replaceChildren(this.app.node);
  }

  private say(sentence: string): void {
    this.app?.dispose();
    this.app = null;
    const text = document.createElement('p');
    text.className = 'alpaviz-sentence';
    text.textContent = sentence;
    this.node.replaceChildren(text);
  }

  override dispose(): void {
    this.app?.dispose();
    this.app = null;
    super.dispose();
  }
}
