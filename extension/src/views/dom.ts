/** Small helpers to make elements. */

type Child = Node | string | null | undefined | false;

export interface Attributes {
  class?: string | undefined;
  style?: string;
  title?: string;
  role?: string;
  on?: { [K in keyof HTMLElementEventMap]?: (event: HTMLElementEventMap[K]) => void };
  [name: string]: unknown;
}

function applyAttributes(element: Element, attributes: Attributes): void {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') {
      for (const [type, listener] of Object.entries(value as Record<string, EventListener>)) {
        element.addEventListener(type, listener);
      }
    } else if (value === true) element.setAttribute(name, '');
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, String(value));
  }
}

/** `h('div', {class: 'x'}, 'text', child)`; children that are null or false are left out. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  applyAttributes(element, attributes);
  element.append(
    ...children.filter((child): child is Node | string => child !== null && child !== undefined && child !== false),
  );
  return element;
}

const SVG = 'http://www.w3.org/2000/svg';

export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: (Node | string)[]
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(SVG, tag);
  applyAttributes(element, attributes);
  element.append(...children);
  return element;
}

/** Paths on a grid of 16, drawn with strokes of the text's colour. */
const ICONS = {
  play: 'M5 3.2v9.6L12.5 8z',
  stop: 'M4 4h8v8H4z',
  undo: 'M6 3 2.5 6.5 6 10M3 6.5h6.2a3.6 3.6 0 0 1 0 7.2H6.5',
  redo: 'm10 3 3.5 3.5L10 10m3-3.5H6.8a3.6 3.6 0 0 0 0 7.2h2.7',
  check: 'm3 8.5 3.4 3.5L13 4.5',
  cross: 'm4 4 8 8m0-8-8 8',
  warn: 'M8 2.2 14.5 13.5h-13zM8 6.3v3.4m0 1.8v.6',
  pin: 'M6 2h4l-.5 4.5L12 9H4l2.5-2.5zM8 9v5',
  lock: 'M4 7h8v6.5H4zM5.5 7V5a2.5 2.5 0 0 1 5 0v2',
  circle: 'M8 3a5 5 0 1 0 0 10A5 5 0 0 0 8 3z',
  wait: 'M8 2.5a5.5 5.5 0 1 1-5.5 5.5',
  stale: 'M13 5.5A5.6 5.6 0 0 0 3 6.6M3 10.5a5.6 5.6 0 0 0 10-1.1M13 2.5v3h-3M3 13.5v-3h3',
  right: 'm6 3.5 4.5 4.5L6 12.5',
  down: 'M3.5 6 8 10.5 12.5 6',
  plus: 'M8 3.5v9M3.5 8h9',
  minus: 'M3.5 8h9',
  fit: 'M2.5 8h11M5 5.5 2.5 8 5 10.5m6-5L13.5 8 11 10.5',
  wide: 'M9.5 2.5h4v4m0-4L9 7M6.5 13.5h-4v-4m0 4L7 9',
  grid: 'M2.5 2.5h3v3h-3zm4 0h3v3h-3zm4 0h3v3h-3zm-8 4h3v3h-3zm4 0h3v3h-3zm4 0h3v3h-3zm-8 4h3v3h-3zm4 0h3v3h-3zm4 0h3v3h-3z',
} as const;

export type IconName = keyof typeof ICONS;

export function icon(name: IconName): SVGSVGElement {
  return svg(
    'svg',
    { class: `ap-icon ap-icon-${name}`, viewBox: '0 0 16 16', 'aria-hidden': 'true' },
    svg('path', { d: ICONS[name] }),
  );
}

/** A button; `data-lm-suppress-shortcuts` keeps its keys from JupyterLab even before they reach our root. */
export function button(
  label: string,
  onClick: () => void,
  options: Attributes & { icon?: IconName; showsLabel?: boolean; disabled?: boolean } = {},
): HTMLButtonElement {
  const { icon: iconName, showsLabel = true, class: extra = '', ...rest } = options;
  return h(
    'button',
    {
      type: 'button',
      class: `ap-button ${extra}`,
      'data-lm-suppress-shortcuts': 'true',
      ...(showsLabel ? {} : { 'aria-label': label, title: label }),
      ...rest,
      on: { click: onClick },
    },
    iconName !== undefined && icon(iconName),
    showsLabel && h('span', {}, label),
  );
}

/** A labelled drop-down. */
export function choice(
  label: string,
  options: readonly { value: string; label: string }[],
  selected: string,
  attributes: Attributes = {},
): HTMLSelectElement {
  return h(
    'select',
    { class: 'ap-select', 'aria-label': label, 'data-lm-suppress-shortcuts': 'true', ...attributes },
    ...options.map((option) => h('option', { value: option.value, selected: option.value === selected }, option.label)),
  );
}

/** A table with a header row; cells may be text or nodes. */
export function table(
  caption: string,
  columns: readonly { title: string; class?: string }[],
  rows: readonly (readonly (Child | Node)[])[],
  rowAttributes: (index: number) => Attributes = () => ({}),
): HTMLTableElement {
  return h(
    'table',
    { class: 'ap-table' },
    h('caption', { class: 'ap-hidden' }, caption),
    h(
      'thead',
      {},
      h('tr', {}, ...columns.map((column) => h('th', { scope: 'col', class: column.class }, column.title))),
    ),
    h(
      'tbody',
      {},
      ...rows.map((cells, i) =>
        h('tr', rowAttributes(i), ...cells.map((cell, c) => h('td', { class: columns[c]?.class }, cell))),
      ),
    ),
  );
}

/** Replaces children, keeping the focus on the element with the same `data-focus` key. */
export function refill(parent: HTMLElement, ...children: Child[]): void {
  const focused = parent.contains(document.activeElement) ? document.activeElement?.getAttribute('data-focus') : null;
  parent.replaceChildren(...children.filter((c): c is Node | string => c !== null && c !== undefined && c !== false));
  if (focused !== null && focused !== undefined) {
    parent.querySelector<HTMLElement>(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  }
}
