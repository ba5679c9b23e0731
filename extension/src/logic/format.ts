/** Numbers and specs as people read them. */
import type { ShardingSpec } from '../model/plan';

const THIN = '\u202f';

function scale(value: number, units: [number, string][]): string {
  const size = Math.abs(value);
  const [factor, unit] = units.find(([f]) => size >= f) ?? units[units.length - 1] ?? [1, ''];
  return `${formatNumber(value / factor)}${THIN}${unit}`;
}

/** Three significant digits, without exponent: `1.23`, `12.3`, `1234`. */
export function formatNumber(value: number): string {
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 100) return Math.round(value).toString();
  const digits = size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return String(Number(value.toFixed(digits)));
}

export function formatSeconds(seconds: number): string {
  if (seconds === 0) return `0${THIN}s`;
  return scale(seconds, [
    [60, 'min'],
    [1, 's'],
    [1e-3, 'ms'],
    [1e-6, 'µs'],
    [1e-9, 'ns'],
  ]);
}

/** With sign, `+3.2 ms`; `±0` where nothing changes. */
export function formatSecondsDelta(seconds: number): string {
  if (Math.abs(seconds) < 1e-9) return '±0';
  return `${seconds > 0 ? '+' : '\u2212'}${formatSeconds(Math.abs(seconds))}`;
}

export function formatBytes(bytes: number): string {
  return scale(bytes, [
    [1e12, 'TB'],
    [1e9, 'GB'],
    [1e6, 'MB'],
    [1e3, 'kB'],
    [1, 'B'],
  ]);
}

export function formatBandwidth(bytesPerSecond: number): string {
  return `${formatBytes(bytesPerSecond)}/s`;
}

export function formatFlop(flop: number): string {
  return scale(flop, [
    [1e18, 'EFLOP'],
    [1e15, 'PFLOP'],
    [1e12, 'TFLOP'],
    [1e9, 'GFLOP'],
    [1e6, 'MFLOP'],
    [1, 'FLOP'],
  ]);
}

export function formatPercent(fraction: number): string {
  const percent = fraction * 100;
  return `${Math.abs(percent) < 10 ? Number(percent.toFixed(1)) : Math.round(percent)}${THIN}%`;
}

/** `9 012`: thousands apart. */
export function formatCount(count: number): string {
  return count.toString().replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** `1 op`, `9 012 ops`. */
export function formatPlural(count: number, noun: string, plural = `${noun}s`): string {
  return `${formatCount(count)} ${count === 1 ? noun : plural}`;
}

/** `[x, -, xy]`, as `format_spec` in alpaviz/types.py. */
export function formatSpec(spec: ShardingSpec): string {
  return `[${spec.map((axes) => axes.join('') || '-').join(', ')}]`;
}

/** `0–11`, or `3` where both ends are the same. */
export function formatRange(first: number, last: number): string {
  return first === last ? String(first) : `${first}–${last}`;
}

/** `2×4` from a shape or from text such as `2x4`. */
export function formatShape(shape: readonly number[] | string): string {
  return typeof shape === 'string' ? shape.replaceAll('x', '×') : shape.join('×');
}

/** Time of day of `seconds` since 1970, where the reader is: `14:05:09`. */
export function formatClock(seconds: number): string {
  const at = new Date(seconds * 1000);
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}
