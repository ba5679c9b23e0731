/**
 * Plans in notebooks. A trusted notebook that is opened again prefers the widget of a kernel that is gone, and shows
 * "model not found". So outputs with a plan get a renderer of ours that outranks the widget's: it shows the live widget
 * where there is one, and the saved plan, read-only, where there is none.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { type IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { Panel, type Widget } from '@lumino/widgets';
import { PLAN_MIME, PlanView, WIDGET_MIME } from './plan-view';

/** Below the widget manager's -10. */
const RANK = -20;
const NOTE = 'Saved with the notebook. Run the cell again to plan.';
/** A widget that has not come by then has no kernel. */
const PATIENCE = 6000;

function readModelId(model: IRenderMime.IMimeModel): string | null {
  const view = model.data[WIDGET_MIME] as { model_id?: string } | undefined;
  return view?.model_id ?? null;
}

class NotebookPlanRenderer extends Panel implements IRenderMime.IRenderer {
  private liveId: string | null = null;
  private live: IRenderMime.IRenderer | null = null;
  private saved: PlanView | null = null;
  private observer: MutationObserver | null = null;
  private timer = 0;

  /** `registry` is the notebook's own, which knows its widget manager; null outside notebooks. */
  constructor(private readonly registry: () => IRenderMimeRegistry | null) {
    super();
    this.addClass('alpaviz-output');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
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
    this.drop();
    const live = registry.createRenderer(WIDGET_MIME);
    this.live = live;
    this.liveId = id;
    this.addWidget(live);
    const giveUp = (): void => {
      if (this.live === live && !this.isDisposed) void this.showSaved(model);
    };
    const isBroken = (): boolean => /Error (displaying|creating) widget/.test(live.node.textContent ?? '');
    const isHere = (): boolean => live.node.querySelector('.alpaviz') !== null;
    const observer = new MutationObserver(() => {
      if (isHere()) this.stopWatching();
      else if (isBroken()) giveUp();
    });
    observer.observe(live.node, { childList: true, subtree: true, characterData: true });
    this.observer = observer;
    this.timer = window.setTimeout(() => {
      if (!isHere()) giveUp();
    }, PATIENCE);
    try {
      await live.renderModel(model);
    } catch {
      giveUp();
    }
    if (isBroken()) giveUp();
  }

  private async showSaved(model: IRenderMime.IMimeModel): Promise<void> {
    this.drop();
    const saved = new PlanView();
    this.saved = saved;
    this.addWidget(saved);
    await saved.open(model.data[PLAN_MIME], NOTE);
  }

  private stopWatching(): void {
    window.clearTimeout(this.timer);
    this.observer?.disconnect();
    this.observer = null;
  }

  private drop(): void {
    this.stopWatching();
    for (const child of [this.live as Widget | null, this.saved]) child?.dispose();
    this.live = null;
    this.saved = null;
    this.liveId = null;
  }

  override dispose(): void {
    if (this.isDisposed) return;
    this.stopWatching();
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
    rendermime.addFactory(makeFactory(() => null), RANK);
    const attach = (panel: NotebookPanel): void => {
      const own = panel.content.rendermime;
      own.removeMimeType(PLAN_MIME);
      own.addFactory(makeFactory(() => own), RANK);
    };
    tracker?.forEach(attach);
    tracker?.widgetAdded.connect((_sender, panel) => attach(panel));
  },
};

export default notebooks;
