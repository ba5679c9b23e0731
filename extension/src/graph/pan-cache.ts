/** A picture larger than the frame, so that moving it copies pixels instead of drawing thousands of boxes again. */
import type { Camera, Frame } from '../logic/camera';

type Paint = (ctx: CanvasRenderingContext2D, camera: Camera, frame: Frame) => void;

export class PanCache {
  private readonly canvas = document.createElement('canvas');
  private readonly ctx = this.canvas.getContext('2d');
  private kept: { camera: Camera; frame: Frame; ratio: number } | null = null;
  private last: Camera | null = null;

  /** After anything but the camera has changed. Frees the pixels, which are many on fine screens. */
  forget(): void {
    if (this.kept !== null) this.canvas.width = this.canvas.height = 0;
    this.kept = null;
    this.last = null;
  }

  /** Whether the picture was copied, or drawn for copying; false where nothing moves and it had better be drawn as it is. */
  draw(target: CanvasRenderingContext2D, camera: Camera, frame: Frame, ratio: number, paint: Paint): boolean {
    const isMoving = this.last !== null && this.last.scale === camera.scale && this.last !== camera;
    this.last = camera;
    if (!isMoving || this.ctx === null) return false;
    if (!this.covers(camera, frame, ratio)) this.paint(this.ctx, camera, frame, ratio, paint);
    if (this.kept === null) return false;
    // Whole pixels, else all of it would be blurred.
    const x = Math.round((camera.x - this.kept.camera.x) * camera.scale * ratio);
    const y = Math.round((camera.y - this.kept.camera.y) * camera.scale * ratio);
    target.setTransform(1, 0, 0, 1, 0, 0);
    target.drawImage(this.canvas, -x, -y);
    return true;
  }

  private covers(camera: Camera, frame: Frame, ratio: number): boolean {
    const { kept } = this;
    if (kept === null || kept.ratio !== ratio || kept.camera.scale !== camera.scale) return false;
    const [dx, dy] = [(camera.x - kept.camera.x) * camera.scale, (camera.y - kept.camera.y) * camera.scale];
    return dx >= 0 && dy >= 0 && dx + frame.w <= kept.frame.w && dy + frame.h <= kept.frame.h;
  }

  private paint(ctx: CanvasRenderingContext2D, camera: Camera, frame: Frame, ratio: number, paint: Paint): void {
    const wide = { w: 2 * frame.w, h: 2 * frame.h };
    const { scale } = camera;
    const around = { scale, x: camera.x - frame.w / 2 / scale, y: camera.y - frame.h / 2 / scale };
    const [width, height] = [Math.round(wide.w * ratio), Math.round(wide.h * ratio)];
    if (this.canvas.width !== width || this.canvas.height !== height) {
      this.canvas.width = width;
      this.canvas.height = height;
    }
    paint(ctx, around, wide);
    this.kept = { camera: around, frame: wide, ratio };
  }
}
