/** What pins and the search say about boxes, folded ones too: a repeat speaks for all of its layers. */
import type { OpPlan } from '../model/plan';
import type { SceneBox } from './graph-scene';
import type { IndexedPlan } from './plan-index';

export class BoxMarks {
  private readonly pins = new Map<string, number>();
  private readonly faded = new Map<string, boolean>();

  /** `matches` holds the ops that the search leaves; null where it leaves all. */
  constructor(
    private readonly indexed: IndexedPlan,
    private readonly matches: ReadonlySet<number> | null,
    private readonly pinned: ReadonlySet<string>,
  ) {}

  private listOps(box: SceneBox): readonly OpPlan[] {
    const { part, row } = box;
    if (part?.kind === 'op') return [part.op];
    if (part !== null && box.copies === 1) return part.ops;
    return row.layers.flatMap((layer) => {
      const ops = this.indexed.opsByLayer.get(layer) ?? [];
      return part === null ? ops : ops.filter((op) => op.role === part.role);
    });
  }

  countPins(box: SceneBox): number {
    if (this.pinned.size === 0) return 0;
    const key = `${box.key} ${box.copies}`;
    const known = this.pins.get(key);
    if (known !== undefined) return known;
    const count = this.listOps(box).reduce((sum, op) => sum + (this.pinned.has(op.name) ? 1 : 0), 0);
    this.pins.set(key, count);
    return count;
  }

  /** Whether the search leaves nothing of a box. */
  isFaded(box: SceneBox): boolean {
    const { matches } = this;
    if (matches === null) return false;
    if (box.part?.kind === 'op') return !matches.has(box.part.op.id);
    const key = `${box.key} ${box.copies}`;
    const known = this.faded.get(key);
    if (known !== undefined) return known;
    const isFaded = !this.listOps(box).some((op) => matches.has(op.id));
    this.faded.set(key, isFaded);
    return isFaded;
  }
}
