/** A horizontal bar of parts with a legend that says each in words. */
import { type Part, sumParts } from '../logic/costs';
import { formatPercent } from '../logic/format';
import { h } from './dom';

export interface BarOptions {
  /** What the whole is, for screen readers. */
  label: string;
  format: (value: number) => string;
  /** Full length; by default the sum of the parts. */
  total?: number;
  /** Text for what is left up to `total`. */
  rest?: string;
  hasLegend?: boolean;
}

export function makeSwatch(key: string): HTMLElement {
  return h('span', { class: `ap-swatch ap-part-${key}`, 'aria-hidden': 'true' });
}

export function makeStackedBar(parts: readonly Part[], options: BarOptions): HTMLElement {
  const sum = sumParts(parts);
  const total = Math.max(options.total ?? sum, sum) || 1;
  const text = parts.map((part) => `${part.label} ${options.format(part.value)}`).join(', ');
  const bar = h(
    'div',
    { class: 'ap-bar', role: 'img', 'aria-label': `${options.label}: ${text}` },
    ...parts.map((part) => {
      const share = part.value / total;
      const title = `${part.label}: ${options.format(part.value)} (${formatPercent(share)})`;
      return h(
        'div',
        { class: `ap-bar-part ap-part-${part.key}`, style: `flex-grow:${share}`, title },
        share > 0.09 && h('span', { class: 'ap-bar-label' }, part.label),
      );
    }),
    total - sum > total * 1e-4 &&
      h('div', { class: 'ap-bar-rest', style: `flex-grow:${1 - sum / total}`, title: options.rest ?? '' }),
  );
  if (options.hasLegend === false) return bar;
  const legend = h(
    'ul',
    { class: 'ap-legend' },
    ...parts.map((part) =>
      h(
        'li',
        {},
        makeSwatch(part.key),
        h('span', {}, part.label),
        h('b', {}, options.format(part.value)),
        h('span', { class: 'ap-dim' }, formatPercent(part.value / total)),
      ),
    ),
  );
  return h('div', { class: 'ap-stacked' }, bar, legend);
}
