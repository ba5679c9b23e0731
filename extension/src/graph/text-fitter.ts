/** Words cut to the room that they have. What was measured once is kept: measuring takes longer than drawing. */

const MOST_KEPT = 20_000;

export class TextFitter {
  private readonly fitted = new Map<string, string>();
  private readonly widths = new Map<string, number>();

  constructor(private readonly ctx: CanvasRenderingContext2D) {}

  /** Width in the font that is set. */
  measure(text: string): number {
    const key = `${this.ctx.font}\n${text}`;
    const known = this.widths.get(key);
    if (known !== undefined) return known;
    if (this.widths.size > MOST_KEPT) this.widths.clear();
    const { width } = this.ctx.measureText(text);
    this.widths.set(key, width);
    return width;
  }

  /** `text`, or as much of its beginning as `width` has room for, with an ellipsis. */
  fit(text: string, width: number): string {
    if (this.measure(text) <= width) return text;
    const key = `${this.ctx.font}\n${Math.round(width)}\n${text}`;
    const known = this.fitted.get(key);
    if (known !== undefined) return known;
    let [least, most] = [0, text.length];
    while (least < most) {
      const middle = Math.ceil((least + most) / 2);
      if (this.ctx.measureText(`${text.slice(0, middle)}…`).width <= width) least = middle;
      else most = middle - 1;
    }
    const fitted = least === 0 ? '' : `${text.slice(0, least)}…`;
    if (this.fitted.size > MOST_KEPT) this.fitted.clear();
    this.fitted.set(key, fitted);
    return fitted;
  }
}
