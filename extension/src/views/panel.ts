/** A titled section that can be folded. */
import { h, icon } from './dom';

export interface Panel {
  node: HTMLElement;
  body: HTMLElement;
  /** Beside the title, for small controls and figures. */
  tools: HTMLElement;
}

let lastId = 0;

export function makePanel(name: string, title: string, isOpen = true): Panel {
  const body = h('div', { class: 'ap-panel-body', id: `ap-panel-${++lastId}` });
  const tools = h('div', { class: 'ap-panel-tools' });
  const toggle = h(
    'button',
    {
      type: 'button',
      class: 'ap-panel-title',
      'aria-expanded': String(isOpen),
      'aria-controls': body.id,
      'data-lm-suppress-shortcuts': 'true',
    },
    icon('down'),
    h('span', {}, title),
  );
  const node = h(
    'section',
    { class: `ap-panel ap-panel-${name}`, 'aria-label': title },
    h('div', { class: 'ap-panel-head' }, toggle, tools),
    body,
  );
  const show = (open: boolean): void => {
    toggle.setAttribute('aria-expanded', String(open));
    node.classList.toggle('ap-folded', !open);
    body.hidden = !open;
  };
  toggle.addEventListener('click', () => show(body.hidden));
  show(isOpen);
  return { node, body, tools };
}
