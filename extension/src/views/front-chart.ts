/** A front of time against memory as a chart: a click or Enter on a point takes its plan. */
import { type FrontPoint, layoutFront, wordVariant } from '../logic/front';
import type { OfferedVariants } from '../model/variants';
import { svg } from './dom';

const WIDTH = 520;
const HEIGHT = 226;
const FRAME = { left: 62, top: 12, right: WIDTH - 14, bottom: HEIGHT - 40 };
const NEXT: Record<string, number> = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

export function makeFrontChart(
  offered: OfferedVariants,
  now: string,
  canTake: boolean,
  take: (key: string) => void,
): SVGSVGElement {
  const layout = layoutFront(offered, now, FRAME);
  const chart = svg(
    'svg',
    {
      class: 'ap-pareto',
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: 'group',
      'aria-label': `Time against memory of stage ${offered.stage}: ${layout.points.length} points, arrow keys go from one to the next, Enter takes its plan`,
    },
    ...layout.ticksX.flatMap(({ at, text }) => [
      svg('line', { class: 'ap-grid', x1: at, x2: at, y1: FRAME.top, y2: FRAME.bottom }),
      svg('text', { class: 'ap-tick', x: at, y: FRAME.bottom + 15, 'text-anchor': 'middle' }, text),
    ]),
    ...layout.ticksY.flatMap(({ at, text }) => [
      svg('line', { class: 'ap-grid', x1: FRAME.left, x2: FRAME.right, y1: at, y2: at }),
      svg('text', { class: 'ap-tick', x: FRAME.left - 6, y: at + 4, 'text-anchor': 'end' }, text),
    ]),
    svg('text', { class: 'ap-tick', x: FRAME.right, y: HEIGHT - 6, 'text-anchor': 'end' }, 'memory of each device →'),
    svg('text', { class: 'ap-tick', x: 4, y: HEIGHT - 6 }, '↑ time of a microbatch in the stage'),
    svg('path', { class: 'ap-pareto-line', d: layout.steps }),
  );
  if (layout.limitX !== null) {
    const x = layout.limitX;
    chart.append(
      svg('rect', { class: 'ap-over', x, y: FRAME.top, width: FRAME.right - x, height: FRAME.bottom - FRAME.top }),
      svg('line', { class: 'ap-limit', x1: x, x2: x, y1: FRAME.top, y2: FRAME.bottom }),
      svg(
        'text',
        { class: 'ap-tick ap-limit-label', x: x - 5, y: FRAME.top + 10, 'text-anchor': 'end' },
        'limit of a plan',
      ),
    );
  }
  if (!layout.points.some((point) => point.isNow)) {
    const { x, y } = layout.present;
    chart.append(
      svg(
        'path',
        { class: 'ap-pareto-present', d: `M${x - 6} ${y}l6 -6l6 6l-6 6z` },
        svg('title', {}, `The plan that was asked about: ${wordVariant(offered.present, offered.present)}`),
      ),
    );
  }
  const nodes = layout.points.map((point) => makePoint(point, offered, canTake, take));
  const first = Math.max(
    0,
    layout.points.findIndex((point) => point.isNow),
  );
  nodes[first]?.setAttribute('tabindex', '0');
  chart.addEventListener('keydown', (event) => {
    const at = nodes.indexOf(event.target as SVGGElement);
    const next = nodes[at + (NEXT[event.key] ?? 0)];
    if (at < 0 || !(event.key in NEXT) || next === undefined) return;
    event.preventDefault();
    for (const node of nodes) node.setAttribute('tabindex', node === next ? '0' : '-1');
    next.focus();
  });
  chart.append(...nodes);
  return chart;
}

function makePoint(
  { variant, x, y, isNow }: FrontPoint,
  offered: OfferedVariants,
  canTake: boolean,
  take: (key: string) => void,
): SVGGElement {
  const isOpen = canTake && variant.fits && !isNow;
  const act = (): void => {
    if (isOpen) take(variant.key);
  };
  const words = `${wordVariant(variant, offered.present)}${variant.is_optimal ? '' : ', not proven'}${isNow ? ', the present plan' : ''}`;
  const classes = [
    'ap-point',
    isNow && 'ap-point-now',
    !variant.fits && 'ap-point-over',
    !variant.is_optimal && 'ap-point-open',
  ];
  return svg(
    'g',
    {
      class: classes.filter(Boolean).join(' '),
      tabindex: -1,
      role: 'button',
      'aria-label': words,
      'aria-disabled': String(!isOpen),
      'aria-current': isNow ? 'true' : undefined,
      'data-variant': variant.key,
      'data-focus': `point-${variant.key}`,
      'data-lm-suppress-shortcuts': 'true',
      on: {
        click: act,
        keydown: (event) => {
          if (event.key !== 'Enter' && event.key !== ' ') return;
          event.preventDefault();
          act();
        },
      },
    },
    svg('title', {}, words),
    svg('circle', { class: 'ap-point-reach', cx: x, cy: y, r: 12 }),
    ...(isNow ? [svg('circle', { class: 'ap-point-ring', cx: x, cy: y, r: 9 })] : []),
    svg('circle', { class: 'ap-point-dot', cx: x, cy: y, r: 5 }),
    ...(isNow ? [svg('text', { class: 'ap-tick ap-now', x, y: y - 13, 'text-anchor': 'middle' }, 'now')] : []),
  );
}
