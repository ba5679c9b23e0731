/** Colours of the page's theme as a canvas takes them. They are read again when the theme changes. */
import { STAGE_COLOURS } from '../logic/colours';
import type { Role } from '../model/plan';

export interface Palette {
  text: string;
  dim: string;
  ground: string;
  line: string;
  accent: string;
  font: string;
  codeFont: string;
  /** By stage: the fill of what is folded, the fill of what is open, the border. The last one is for no stage. */
  fill: string[];
  /** For what is too small for a border; by role within a stage. */
  strong: Record<Role, string>[];
  soft: string[];
  border: string[];
  collectives: Map<string, string>;
  /** Ink on `collectives`. */
  ink: string;
}

const KINDS = ['all-reduce', 'all-gather', 'reduce-scatter', 'all-to-all', 'collective-permute'];

/** Resolves CSS expressions, variables and `color-mix` too, as of the element `node`. */
export function readPalette(node: HTMLElement): Palette {
  const probe = document.createElement('span');
  probe.style.display = 'none';
  node.append(probe);
  const resolve = (css: string): string => {
    probe.style.color = css;
    return getComputedStyle(probe).color;
  };
  const own = getComputedStyle(node);
  const stages = [...STAGE_COLOURS, '#8c8c8c'];
  const palette: Palette = {
    text: resolve('var(--ap-text)'),
    dim: resolve('var(--ap-text-dim)'),
    ground: resolve('var(--ap-bg)'),
    line: resolve('color-mix(in srgb, var(--ap-text) 45%, var(--ap-bg))'),
    accent: resolve('var(--ap-accent)'),
    font: own.fontFamily,
    codeFont: own.getPropertyValue('--ap-code-font').trim() || 'monospace',
    fill: stages.map((colour) => resolve(`color-mix(in srgb, ${colour} 26%, var(--ap-bg))`)),
    strong: stages.map((colour) => ({
      forward: resolve(`color-mix(in srgb, ${colour} 50%, var(--ap-bg))`),
      backward: resolve(`color-mix(in srgb, ${colour} 85%, var(--ap-bg))`),
      update: resolve(`color-mix(in srgb, ${colour} 55%, var(--ap-text))`),
    })),
    soft: stages.map((colour) => resolve(`color-mix(in srgb, ${colour} 9%, var(--ap-bg))`)),
    border: stages.map((colour) => resolve(`color-mix(in srgb, ${colour} 82%, var(--ap-text))`)),
    collectives: new Map(KINDS.map((kind) => [kind, readEdgeColour(node, kind)])),
    ink: '#111111',
  };
  probe.remove();
  return palette;
}

/** The colour that the style sheet gives chips of a collective. */
function readEdgeColour(node: HTMLElement, kind: string): string {
  const chip = document.createElement('span');
  chip.className = `ap-edge-${kind}`;
  chip.style.display = 'none';
  node.append(chip);
  const colour = getComputedStyle(chip).getPropertyValue('--edge').trim() || '#888888';
  chip.remove();
  return colour;
}

/** Position in the lists of `Palette` for a stage; null is the one that every stage has. */
export function stageSlot(stage: number | null): number {
  return stage === null ? STAGE_COLOURS.length : stage % STAGE_COLOURS.length;
}

/** Calls `act` whenever the page's colours may have changed; returns what ends that. */
export function watchTheme(act: () => void): () => void {
  const observer = new MutationObserver(act);
  const names = ['data-jp-theme-light', 'data-jp-theme-name', 'class'];
  observer.observe(document.body, { attributes: true, attributeFilter: names });
  observer.observe(document.documentElement, { attributes: true, attributeFilter: ['theme', 'class', 'data-theme'] });
  const scheme = window.matchMedia('(prefers-color-scheme: dark)');
  scheme.addEventListener('change', act);
  return () => {
    observer.disconnect();
    scheme.removeEventListener('change', act);
  };
}
