/** The JupyterLab extension: plan files, plans in saved notebooks, and a command that opens a plan file. */

import notebooks from './notebooks';
import command from './open-command';
import viewer from './viewer';

export default [viewer, notebooks, command];
