import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

const viewer: JupyterFrontEndPlugin<void> = {
  id: 'alpaviz-lab:viewer',
  autoStart: true,
  activate: () => undefined,
};

export default [viewer];
