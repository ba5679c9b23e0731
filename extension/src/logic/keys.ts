/** All keys, by where they work: what the help overlay lists. */

export interface KeyGroup {
  where: string;
  keys: readonly (readonly [keys: readonly string[], act: string])[];
}

export const KEY_GROUPS: readonly KeyGroup[] = [
  {
    where: 'Everywhere in the planner',
    keys: [
      [['?'], 'this list'],
      [['Tab', 'Shift+Tab'], 'next and previous control'],
      [['Enter', 'Space'], 'press the button that has the focus'],
    ],
  },
  {
    where: 'Program as list',
    keys: [
      [['↑', '↓'], 'row before and after'],
      [['→', '←'], 'unfold and fold, or go to what the row is in'],
      [['Home', 'End'], 'first and last row'],
      [['Enter', 'Space'], 'select an op, fold or unfold a layer'],
    ],
  },
  { where: 'Search', keys: [[['Enter', 'Shift+Enter'], 'next and previous hit']] },
  {
    where: 'Program as graph',
    keys: [
      [['↑', '↓', '←', '→'], 'box beside'],
      [['Enter'], 'unfold or fold'],
      [['Space'], 'select'],
      [['Escape'], 'box around'],
      [['Home'], 'first box'],
      [['+', '-', '0'], 'zoom in, zoom out, fit'],
    ],
  },
  { where: 'Layers', keys: [[['←', '→'], 'layer before and after']] },
  {
    where: 'Timeline',
    keys: [
      [['←', '→'], 'move along'],
      [['+', '-', '0'], 'zoom in, zoom out, fit'],
    ],
  },
  {
    where: 'Time against memory',
    keys: [
      [['←', '→'], 'point before and after'],
      [['Enter', 'Space'], 'take its plan'],
    ],
  },
];

/** Whether a `?` typed at `target` is text, not the key. */
export function takesText(target: { tagName?: string; type?: string; isContentEditable?: boolean } | null): boolean {
  if (target === null) return false;
  if (target.isContentEditable === true || target.tagName === 'TEXTAREA') return true;
  return target.tagName === 'INPUT' && !['checkbox', 'radio', 'button', 'range'].includes(target.type ?? 'text');
}
