/** The boxes around the keyboard as items of a tree that screen readers read: a canvas says nothing by itself. */
import type { Marks } from '../graph/painter';
import type { BoxMarks } from '../logic/box-marks';
import { listBoxesAbove, type Scene } from '../logic/graph-scene';
import { sayBox } from '../logic/graph-words';
import type { IndexedPlan } from '../logic/plan-index';
import { h } from './dom';

/** Boxes beside the active one that are listed; thousands would make the page slow. */
const MOST_BESIDE = 60;

export class GraphMirror {
  readonly node = h('div', { class: 'ap-hidden', role: 'presentation' });
  private readonly id = `ap-graph-${Math.random().toString(36).slice(2, 8)}`;

  /** Lists groups above the active box, what is beside it and what is in it; returns the active item's id. */
  show(scene: Scene, marks: Marks, indexed: IndexedPlan, boxMarks: BoxMarks): string | null {
    const at = Math.max(0, marks.focus);
    const parent = scene.boxes[at]?.parent ?? -1;
    const beside = listChildren(scene, parent);
    const turn = Math.max(0, beside.indexOf(at) - MOST_BESIDE / 2);
    const listed = [
      ...listBoxesAbove(scene, at).reverse(),
      ...beside
        .slice(turn, turn + MOST_BESIDE)
        .flatMap((i) => (i === at ? [i, ...listChildren(scene, i).slice(0, MOST_BESIDE)] : [i])),
    ];
    this.node.replaceChildren(
      ...listed.flatMap((i) => {
        const box = scene.boxes[i];
        if (box === undefined) return [];
        const siblings = box.parent === parent ? beside : listChildren(scene, box.parent);
        const item = h('div', {
          id: `${this.id}-${box.key}`,
          role: 'treeitem',
          'aria-level': box.depth + 1,
          'aria-setsize': siblings.length,
          'aria-posinset': siblings.indexOf(i) + 1,
          'aria-selected': String(i === marks.selected),
          'aria-expanded': box.canOpen ? String(box.isOpen) : undefined,
          'data-key': box.key,
        });
        item.textContent = sayBox(box, indexed, boxMarks.countPins(box));
        return [item];
      }),
    );
    const active = scene.boxes[marks.focus];
    return active === undefined ? null : `${this.id}-${active.key}`;
  }
}

/** Children of a box, those of -1 at the top. */
function listChildren(scene: Scene, parent: number): number[] {
  return scene.boxes.flatMap((box, i) => (box.parent === parent ? [i] : []));
}
