/** Asks dagre, which runs in a worker where the page allows one: a group is laid out once, however often it is drawn. */
import { type Arrange, type Arranged, type ArrangeLater, arrangeLayered } from '../logic/layered-layout';
import { SOURCE } from './layout-worker-source';

/** Layouts that are kept; equal layers have equal ones. */
const MOST_KEPT = 400;
/** A worker that has not answered once by then never will (milliseconds). */
const PATIENCE = 4000;

interface Answer {
  id: number;
  arranged: Arranged;
}

export class Arranger {
  private readonly kept = new Map<string, Promise<Arranged>>();
  private readonly waiting = new Map<number, (arranged: Arranged | null) => void>();
  private worker: Worker | null = null;
  private hasAnswered = false;
  private hasFailed = false;
  private inPage: Promise<Arrange> | null = null;
  private lastId = 0;
  private url = '';

  readonly arrange: ArrangeLater = (sizes, edges, upward) => {
    const key = JSON.stringify([sizes.map(({ w, h }) => [w, h]), edges, upward]);
    const known = this.kept.get(key);
    if (known !== undefined) return known;
    if (this.kept.size >= MOST_KEPT) this.kept.delete(this.kept.keys().next().value ?? '');
    const made = this.ask(sizes, edges, upward);
    this.kept.set(key, made);
    return made;
  };

  dispose(): void {
    this.worker?.terminate();
    this.worker = null;
    if (this.url !== '') URL.revokeObjectURL(this.url);
    this.url = '';
  }

  private async ask(...request: Parameters<ArrangeLater>): Promise<Arranged> {
    const [sizes, edges, upward] = request;
    const worker = this.findWorker();
    if (worker !== null) {
      const id = ++this.lastId;
      const timer = this.hasAnswered ? undefined : setTimeout(() => this.hasAnswered || this.fail(), PATIENCE);
      const arranged = await new Promise<Arranged | null>((resolve) => {
        this.waiting.set(id, resolve);
        worker.postMessage({ id, sizes, edges, upward });
      });
      clearTimeout(timer);
      if (arranged !== null) return arranged;
    }
    this.inPage ??= this.loadInPage();
    const arrange = await this.inPage;
    return arrange(sizes, edges, upward);
  }

  private findUrl(): string {
    if (this.url === '') this.url = URL.createObjectURL(new Blob([SOURCE], { type: 'text/javascript' }));
    return this.url;
  }

  private findWorker(): Worker | null {
    if (this.hasFailed) return null;
    if (this.worker !== null) return this.worker;
    try {
      const worker = new Worker(this.findUrl(), { type: 'module' });
      worker.onmessage = ({ data }: MessageEvent<Answer>) => {
        this.hasAnswered = true;
        this.waiting.get(data.id)?.(data.arranged);
        this.waiting.delete(data.id);
      };
      worker.onerror = (event) => {
        event.preventDefault();
        this.fail();
      };
      this.worker = worker;
    } catch {
      // Content security policies may refuse workers.
      this.fail();
    }
    return this.worker;
  }

  private fail(): void {
    this.hasFailed = true;
    this.worker?.terminate();
    this.worker = null;
    for (const resolve of this.waiting.values()) resolve(null);
    this.waiting.clear();
  }

  private async loadInPage(): Promise<Arrange> {
    try {
      const loaded = (await import(/* webpackIgnore: true */ this.findUrl())) as { arrange: Arrange };
      return loaded.arrange;
    } catch {
      return arrangeLayered;
    }
  }
}
