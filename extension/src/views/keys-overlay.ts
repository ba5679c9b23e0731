/** The list of all keys, over the widget: `?` opens it, Escape and its button close it. */
import { KEY_GROUPS, takesText } from '../logic/keys';
import { button, h } from './dom';

export class KeysOverlay {
  readonly node: HTMLDialogElement;
  readonly opener: HTMLButtonElement;

  constructor() {
    this.opener = button('Keys', () => this.open(), {
      class: 'ap-quiet ap-keys-open',
      title: 'All keys (?)',
      'aria-keyshortcuts': '?',
      'aria-haspopup': 'dialog',
    });
    const close = button('Close', () => this.node.close(), {
      icon: 'cross',
      showsLabel: false,
      class: 'ap-quiet',
      autofocus: true,
    });
    // Modal: the browser keeps the focus inside, closes on Escape and gives the focus back.
    this.node = h(
      'dialog',
      { class: 'ap-keys', 'aria-label': 'Keys', 'data-lm-suppress-shortcuts': 'true' },
      h('div', { class: 'ap-keys-head' }, h('h3', {}, 'Keys'), close),
      h(
        'div',
        { class: 'ap-keys-groups' },
        ...KEY_GROUPS.map(({ where, keys }) =>
          h(
            'section',
            {},
            h('h4', {}, where),
            h(
              'dl',
              {},
              ...keys.flatMap(([names, act]) => [
                h('dt', {}, ...names.map((name) => h('kbd', {}, name))),
                h('dd', {}, act),
              ]),
            ),
          ),
        ),
      ),
    );
    this.node.addEventListener('click', (event) => {
      if (event.target === this.node) this.node.close();
    });
  }

  /** Opens the list where `root` hears `?`. */
  listen(root: HTMLElement): void {
    root.addEventListener('keydown', (event) => {
      if (event.key !== '?' || event.ctrlKey || event.metaKey || event.altKey) return;
      if (takesText(event.target as HTMLElement | null)) return;
      event.preventDefault();
      this.open();
    });
  }

  private open(): void {
    if (!this.node.open) this.node.showModal();
  }
}
