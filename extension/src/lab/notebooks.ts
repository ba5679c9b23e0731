/**
 * Plans in notebooks. A trusted notebook that is opened again prefers the widget of a kernel that is gone, and shows
 * "model not found". So outputs with a plan get a renderer of ours that outranks the widget's: it shows the live widget
 * where there is one, and the saved plan, read-only, where there is none.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { type IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { ReadonlyPartialJSONObject } from '@lumino/coreutils';
import { Panel, type Widget } from '@lumino/widgets';
import { encodeBase64 } from '../logic/unpack';
import { PLAN_EVENT, type PlanEventDetail } from '../widget/plan-event';
import { PLAN_MIME, PlanView, WIDGET_MIME } from './plan-view';

/** Below the widget manager's -10. */
const RANK = -20;
const NOTE = 'Saved with the notebook. Run the cell again to plan.';
/** A widget that has not come by then has no kernel. */
const PATIENCE = 6000;
/** While a notebook opens, its widget manager replaces the renderer that we got first: then ask for another. */
const RETRY = 500;

function readModelId(model: IRenderMime.IMimeModel): string | null {
  const view = model.data[WIDGET_MIME] as { model_id?: string } | undefined;
  return view?.model_id ?? null;
}

class NotebookPlanRenderer extends Panel implements IRenderMime.IRenderer {
  private model: IRenderMime.IMimeModel | null = null;
  private liveId: string | null = null;
  private live: IRenderMime.IRenderer | null = null;
  private saved: PlanView | null = null;
  private observer: MutationObserver | null = null;

  /** `registry` is the notebook's own, which knows its widget manager; null outside notebooks. */
  constructor(private readonly registry: () => IRenderMimeRegistry | null) {
    super();
    this.addClass('alpaviz-output');
    this.node.addEventListener(PLAN_EVENT, (event) => this.keepPlan((event as CustomEvent<PlanEventDetail>).detail));
  }

  /**
   * A planner that is a cell's last line is output once, before it has a plan: put the plan that is shown now into the
   * output, so that it is saved. Outputs that the kernel keeps up to date itself hold it already.
   */
  private keepPlan({ bytes, fetchBundle }: PlanEventDetail): void {
    const model = this.model;
    const saved = model?.data[PLAN_MIME] as { plan?: string | null; has_ops?: boolean } | undefined;
    if (model === null || saved?.has_ops === false || saved?.plan === encodeBase64(bytes)) return;
    fetchBundle().then(
      (bundle) => {
        const isCurrent = !this.isDisposed && this.model === model;
        if (isCurrent) model.setData({ data: { ...model.data, ...(bundle as ReadonlyPartialJSONObject) } });
      },
      () => undefined,
    );
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    this.model = model;
    const id = readModelId(model);
    const registry = this.registry();
    const canLive = id !== null && id !== '' && registry !== null && model.trusted;
    if (!canLive || !registry.mimeTypes.includes(WIDGET_MIME)) {
      await this.showSaved(model);
      return;
    }
    // The plan has changed, the widget is the same and follows by itself.
    if (this.live !== null && this.liveId === id) return;
    await this.showLive(model, id, registry);
  }

  private async showLive(model: IRenderMime.IMimeModel, id: string, registry: IRenderMimeRegistry): Promise<void> {
    const end = Date.now() + PATIENCE;
    while (!this.isDisposed && Date.now() < end) {
      const outcome = await this.tryLive(model, id, registry);
      if (outcome === 'here' || outcome === 'replaced') return;
      if (outcome === 'broken') break;
    }
    if (!this.isDisposed) await this.showSaved(model);
  }

  /** Puts the widget's renderer in and waits for what becomes of it. */
  private tryLive(
    model: IRenderMime.IMimeModel,
    id: string,
    registry: IRenderMimeRegistry,
  ): Promise<'here' | 'broken' | 'late' | 'replaced'> {
    this.drop();
    const live = registry.createRenderer(WIDGET_MIME);
    this.live = live;
    this.liveId = id;
    this.addWidget(live);
    return new Promise((resolve) => {
      const look = (): void => {
        if (this.live !== live) resolve('replaced');
        else if (live.node.querySelector('.alpaviz') !== null) resolve('here');
        else if (/Error (displaying|creating) widget/.test(live.node.textContent ?? '')) resolve('broken');
        else return;
        observer.disconnect();
      };
      const observer = new MutationObserver(look);
      observer.observe(live.node, { childList: true, subtree: true, characterData: true });
      this.observer = observer;
      live.renderModel(model).then(look, () => resolve('broken'));
      window.setTimeout(() => {
        look();
        observer.disconnect();
        resolve('late');
      }, RETRY);
    });
  }

  private async showSaved(model: IRenderMime.IMimeModel): Promise<void> {
    this.drop();
    const saved = new PlanView();
    this.saved = saved;
    this.addWidget(saved);
    const data = model.data[PLAN_MIME] as { has_ops?: boolean } | undefined;
    await saved.open(data, data?.has_ops === false ? `${NOTE} Its ops were too many to be saved with it.` : NOTE);
  }

  private drop(): void {
    this.observer?.disconnect();
    this.observer = null;
    for (const child of [this.live as Widget | null, this.saved]) child?.dispose();
    this.live = null;
    this.saved = null;
    this.liveId = null;
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.observer?.disconnect();
    super.dispose();
  }
}

function makeFactory(registry: () => IRenderMimeRegistry | null): IRenderMime.IRendererFactory {
  return {
    safe: true,
    mimeTypes: [PLAN_MIME],
    defaultRank: RANK,
    createRenderer: () => new NotebookPlanRenderer(registry),
  };
}

const notebooks: JupyterFrontEndPlugin<void> = {
  id: 'alpaviz-lab:notebooks',
  description: 'Shows plans in notebooks, live or as they were saved.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  optional: [INotebookTracker],
  activate: (_app: JupyterFrontEnd, rendermime: IRenderMimeRegistry, tracker: INotebookTracker | null) => {
    rendermime.addFactory(
      makeFactory(() => null),
      RANK,
    );
    const attach = (panel: NotebookPanel): void => {
      const own = panel.content.rendermime;
      own.removeMimeType(PLAN_MIME);
      own.addFactory(
        makeFactory(() => own),
        RANK,
      );
    };
    tracker?.forEach(attach);
    tracker?.widgetAdded.connect((_sender, panel) => attach(panel));
  },
};

export default notebooks;
