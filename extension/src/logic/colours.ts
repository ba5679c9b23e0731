/** Colours that the colour-blind can tell apart; a number, name or pattern always goes with them. */

/** Okabe and Ito's palette, for stages; grey instead of black, which themes would swallow. */
export const STAGE_COLOURS = [
  '#56b4e9',
  '#e69f00',
  '#009e73',
  '#cc79a7',
  '#0072b2',
  '#d55e00',
  '#f0e442',
  '#8c8c8c',
] as const;

export function stageColour(stage: number): string {
  return STAGE_COLOURS[stage % STAGE_COLOURS.length] ?? STAGE_COLOURS[0];
}

/** Black or white, whichever is read better on `colour` (`#rrggbb`). */
export function inkOn(colour: string): '#000000' | '#ffffff' {
  const [r, g, b] = [1, 3, 5].map((i) => {
    const c = Number.parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  }) as [number, number, number];
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return luminance > 0.179 ? '#000000' : '#ffffff';
}

/** Mixes two `#rrggbb` colours; `share` is that of the second. */
export function mix(first: string, second: string, share: number): string {
  const part = (i: number): string => {
    const a = Number.parseInt(first.slice(i, i + 2), 16);
    const b = Number.parseInt(second.slice(i, i + 2), 16);
    return Math.round(a + (b - a) * share)
      .toString(16)
      .padStart(2, '0');
  };
  return `#${part(1)}${part(3)}${part(5)}`;
}
