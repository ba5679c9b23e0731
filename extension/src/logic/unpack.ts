/** From what the kernel or a file sends to a `Plan`. The packed form is written by alpaviz/widget/packed_plan.py. */
import type { OpPlan, OpPositions, Plan, ValuePlan } from '../model/plan';

export const PACKED_FORMAT = 'alpaviz.packed-plan.v2';
/** Version 1, in notebooks saved by earlier versions, has the same columns and no positions behind them. */
const READABLE_FORMATS: readonly (string | undefined)[] = [PACKED_FORMAT, 'alpaviz.packed-plan.v1'];
export const PLAN_SCHEMA_VERSION = 1;

/** Stands in names for what the row's other cells say already. */
const STEM = '\u0001';

/** A column is its cells, or a table of distinct cells with an index into it, or the row numbers themselves. */
type Column = { cells: unknown[] } | { table: unknown[]; index: number[] } | { rows: true };

interface Columns {
  count: number;
  columns: Record<string, Column>;
}

function readCell(column: Column, row: number): unknown {
  if ('rows' in column) return row;
  if ('cells' in column) return column.cells[row];
  return column.table[column.index[row] ?? 0];
}

function readRows(columns: Columns): Record<string, unknown>[] {
  const names = Object.entries(columns.columns);
  return Array.from({ length: columns.count }, (_, row) => {
    const record: Record<string, unknown> = {};
    for (const [name, column] of names) record[name] = readCell(column, row);
    return record;
  });
}

/**
 * Undo what packing does beyond columns: names have a mark in place of `scope/primitive`, outputs are relative to the output before them, inputs to the op's first output.
 */
function restoreOps(rows: Record<string, unknown>[]): OpPlan[] {
  let last = 0;
  for (const row of rows) {
    const op = row as unknown as OpPlan;
    op.name = op.name.replace(STEM, `${op.scope === '' ? '' : `${op.scope}/`}${op.primitive}`);
    op.outputs = op.outputs.map((step) => {
      if (step === null) return null;
      last += step;
      return last;
    });
    const base = last;
    op.inputs = op.inputs.map((back) => (back === null ? null : base - back));
  }
  return rows as unknown as OpPlan[];
}

function restoreValues(rows: Record<string, unknown>[]): ValuePlan[] {
  for (const row of rows) {
    if (row.name === STEM) row.name = `v${String(row.id)}`;
  }
  return rows as unknown as ValuePlan[];
}

/** Why `data` is no plan that this version can show; null if it is one. */
export function findFormatFault(data: unknown): string | null {
  if (typeof data !== 'object' || data === null || !('schema_version' in data)) {
    return 'This file is no AlpaViz plan: it has no schema_version.';
  }
  const plan = data as Partial<Plan>;
  if (plan.schema_version !== PLAN_SCHEMA_VERSION) {
    return `This plan has schema version ${String(plan.schema_version)}; this AlpaViz reads version ${PLAN_SCHEMA_VERSION}.`;
  }
  const wanted = ['program', 'cluster', 'stages', 'ops', 'values', 'estimate'] as const;
  const missing = wanted.filter((key) => plan[key] === undefined);
  return missing.length > 0 ? `This plan lacks ${missing.join(', ')}.` : null;
}

/** A plan from parsed JSON, packed or as `save_plan` writes it. Throws an `Error` with a sentence if it is none. */
export function readPlan(data: unknown): Plan {
  const inner =
    typeof data === 'object' && data !== null && 'plan' in data && !('stages' in data)
      ? (data as { plan: unknown }).plan
      : data;
  const fault = findFormatFault(inner);
  if (fault !== null) throw new Error(fault);
  const plan = inner as Plan & { format?: string };
  if (!READABLE_FORMATS.includes(plan.format)) return plan;
  return {
    ...plan,
    ops: restoreOps(readRows(plan.ops as unknown as Columns)),
    values: restoreValues(readRows(plan.values as unknown as Columns)),
  };
}

/** Steps in which positions are sent, POSITION_STEP of packed_plan.py. */
const POSITION_STEP = 0.25;

/** All columns, then all rows, each as the difference to the op before, in 16 bits that may wrap around. */
export function readPositions(buffer: Uint8Array): OpPositions | undefined {
  const count = Math.floor(buffer.byteLength / 4);
  if (count === 0) return undefined;
  const data = new DataView(buffer.buffer, buffer.byteOffset, buffer.byteLength);
  const readAxis = (start: number): Float32Array => {
    const axis = new Float32Array(count);
    let sum = 0;
    for (let i = 0; i < count; i++) {
      sum = (sum + data.getInt16(start + 2 * i, true)) & 0xffff;
      axis[i] = sum * POSITION_STEP;
    }
    return axis;
  };
  return { columns: readAxis(0), rows: readAxis(2 * count) };
}

/** zlib bytes to a plan: JSON text, a zero byte, op positions. */
export async function inflatePlan(bytes: BufferSource): Promise<Plan> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'));
  const data = new Uint8Array(await new Response(stream).arrayBuffer());
  const end = data.indexOf(0);
  const text = new TextDecoder().decode(end < 0 ? data : data.subarray(0, end));
  const plan = readPlan(JSON.parse(text));
  const positions = end < 0 ? undefined : readPositions(data.subarray(end + 1));
  return positions === undefined || positions.rows.length !== plan.ops.length ? plan : { ...plan, positions };
}

/** Bytes to base64, as a notebook keeps them. */
export function encodeBase64(bytes: Uint8Array): string {
  let binary = '';
  // Not one call: a function takes only so many arguments.
  for (let i = 0; i < bytes.length; i += 8192) binary += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(binary);
}

/** Base64, as a notebook keeps it, to bytes. */
export function decodeBase64(text: string): Uint8Array<ArrayBuffer> {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}
