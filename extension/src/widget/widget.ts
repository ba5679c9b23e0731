/** The anywidget's entry point. */
function render({ el }: { el: HTMLElement }): void {
  el.textContent = 'AlpaViz';
}

export default { render };
