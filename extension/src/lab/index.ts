/** The JupyterLab extension: plan files, plans in saved notebooks, and a command that opens a plan file. */
import command from './open-command';
import notebooks from './notebooks';
import viewer from './viewer';

export default [viewer, notebooks, command];
