/** "AlpaViz: Open plan file…" in the command palette. */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { FileDialog } from '@jupyterlab/filebrowser';
import { VIEWER } from './viewer';

const COMMAND = 'alpaviz:open-plan';

const command: JupyterFrontEndPlugin<void> = {
  id: 'alpaviz-lab:open-command',
  description: 'A command that opens a saved plan file.',
  autoStart: true,
  requires: [IDocumentManager],
  optional: [ICommandPalette],
  activate: (app: JupyterFrontEnd, manager: IDocumentManager, palette: ICommandPalette | null) => {
    app.commands.addCommand(COMMAND, {
      label: 'AlpaViz: Open plan file…',
      caption: 'Open a saved plan in a read-only view',
      describedBy: {
        args: {
          type: 'object',
          properties: { path: { type: 'string', description: 'The plan file; without it a dialog asks.' } },
        },
      },
      execute: async (args) => {
        const path = typeof args.path === 'string' ? args.path : await askForPath(manager);
        return path === null ? undefined : manager.openOrReveal(path, VIEWER);
      },
    });
    palette?.addItem({ command: COMMAND, category: 'AlpaViz' });
  },
};

async function askForPath(manager: IDocumentManager): Promise<string | null> {
  const chosen = await FileDialog.getOpenFiles({
    manager,
    title: 'Open an AlpaViz plan',
    filter: (item) => (item.type === 'directory' || item.name.endsWith('.json') ? {} : null),
  });
  return chosen.value?.[0]?.path ?? null;
}

export default command;
