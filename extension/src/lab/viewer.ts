/** The file type `.alpaplan.json`, opened in a read-only view; any other JSON file by "Open With". */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { MimeDocumentFactory } from '@jupyterlab/docregistry';
import { type IRenderMime, IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { PLAN_MIME, PlanView } from './plan-view';

export const VIEWER = 'AlpaViz plan';

class FileRenderer extends PlanView implements IRenderMime.IRenderer {
  constructor() {
    super();
    this.addClass('alpaviz-document');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    await this.open(model.data[PLAN_MIME], '');
  }
}

const viewer: JupyterFrontEndPlugin<void> = {
  id: 'alpaviz-lab:viewer',
  description: 'Opens .alpaplan.json files in a read-only view of the plan.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate: (app: JupyterFrontEnd, rendermime: IRenderMimeRegistry) => {
    app.docRegistry.addFileType({
      name: 'alpaplan',
      displayName: 'AlpaViz plan',
      extensions: ['.alpaplan.json'],
      mimeTypes: [PLAN_MIME],
      fileFormat: 'json',
      contentType: 'file',
    });
    const renderer = { safe: true, mimeTypes: [PLAN_MIME], defaultRank: 50, createRenderer: () => new FileRenderer() };
    app.docRegistry.addWidgetFactory(
      new MimeDocumentFactory({
        rendermime,
        renderTimeout: 100,
        dataType: 'json',
        name: VIEWER,
        modelName: 'text',
        primaryFileType: app.docRegistry.getFileType('alpaplan'),
        fileTypes: ['alpaplan', 'json'],
        defaultFor: ['alpaplan'],
        readOnly: true,
        factory: renderer,
      }),
    );
  },
};

export default viewer;
