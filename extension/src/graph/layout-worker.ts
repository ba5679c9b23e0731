/** dagre behind messages. Bundled as text (build.mjs) and run in a worker made from a blob, else in the page itself. */
import type { Arrange, Size } from '../logic/layered-layout';
import { arrangeByDagre } from './dagre-arrange';

export interface LayoutRequest {
  id: number;
  sizes: readonly Size[];
  edges: readonly [number, number][];
  upward: boolean;
}

export const arrange: Arrange = arrangeByDagre;

// In a page `window` is there, and the page calls `arrange` itself.
if (typeof window === 'undefined') {
  self.addEventListener('message', ({ data }: MessageEvent<LayoutRequest>) => {
    self.postMessage({ id: data.id, arranged: arrangeByDagre(data.sizes, data.edges, data.upward) });
  });
}
