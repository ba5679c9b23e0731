/** Written by build.mjs: layout-worker.ts and dagre as the text of one module. */
export const SOURCE: string;
