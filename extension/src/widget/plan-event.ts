/** What the live widget tells the output around it, so that a saved notebook holds the plan that is shown. */

export const PLAN_EVENT = 'alpaviz-plan';

export interface PlanEventDetail {
  /** The plan as the kernel packed it. */
  bytes: Uint8Array<ArrayBuffer>;
  /** Asks the kernel for the output's data: MIME type to what is saved for it. */
  fetchBundle: () => Promise<Record<string, unknown>>;
}
