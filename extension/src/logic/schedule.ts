/** Plays a pipeline schedule: who does what when, and where the bubbles are. Twin of alpaviz/schedule/. */
import type { StagePlan, Transfer } from '../model/plan';

export type TaskKind = 'forward' | 'backward' | 'update';

export interface Task {
  kind: TaskKind;
  stage: number;
  microbatch: number;
}

export interface TimelineEvent extends Task {
  start: number;
  end: number;
}

export interface Bubble {
  stage: number;
  start: number;
  end: number;
}

export interface Timeline {
  events: TimelineEvent[][];
  bubbles: Bubble[];
  makespan: number;
}

export type Durations = Pick<StagePlan, 'forward_s' | 'backward_s' | 'update_s'>;

/** Stage i runs S - i - 1 forwards ahead, then alternates. Source: Narayanan et al., SC 2021, section 2.2. */
function order1f1b(stage: number, numStages: number, numMicrobatches: number): Task[] {
  const ahead = Math.min(numStages - stage - 1, numMicrobatches);
  const tasks: Task[] = [];
  for (let m = 0; m < ahead; m++) tasks.push({ kind: 'forward', stage, microbatch: m });
  for (let m = 0; m < numMicrobatches; m++) {
    if (m + ahead < numMicrobatches) tasks.push({ kind: 'forward', stage, microbatch: m + ahead });
    tasks.push({ kind: 'backward', stage, microbatch: m });
  }
  return tasks;
}

/** All forwards, then all backwards, the last microbatch first. Source: Huang et al., NeurIPS 2019. */
function orderGpipe(stage: number, numMicrobatches: number): Task[] {
  const numbers = Array.from({ length: numMicrobatches }, (_, m) => m);
  return [
    ...numbers.map((microbatch): Task => ({ kind: 'forward', stage, microbatch })),
    ...numbers.reverse().map((microbatch): Task => ({ kind: 'backward', stage, microbatch })),
  ];
}

export function orderTasks(schedule: string, numStages: number, numMicrobatches: number): Task[][] {
  return Array.from({ length: numStages }, (_, stage) => {
    const tasks =
      schedule === 'gpipe' ? orderGpipe(stage, numMicrobatches) : order1f1b(stage, numStages, numMicrobatches);
    return [...tasks, { kind: 'update', stage, microbatch: 0 } as Task];
  });
}

/** Seconds that a microbatch's values take from one stage to another, by `source>target`. */
export function sumTransfers(transfers: readonly Transfer[]): Map<string, number> {
  const seconds = new Map<string, number>();
  for (const transfer of transfers) {
    if (transfer.once) continue;
    const key = `${transfer.source_stage}>${transfer.target_stage}`;
    seconds.set(key, (seconds.get(key) ?? 0) + transfer.time_s);
  }
  return seconds;
}

class Player {
  readonly events: TimelineEvent[][];
  private readonly ended = new Map<string, number>();
  private readonly free: number[];
  private readonly sources: number[][];
  private readonly targets: [stage: number, seconds: number][][];
  /** When a value is there, by `source>target microbatch`; sends from one stage to another queue. */
  private readonly arrived = new Map<string, number>();
  private readonly linkFree = new Map<string, number>();

  constructor(
    private readonly order: readonly Task[][],
    private readonly durations: readonly Durations[],
    sends: ReadonlyMap<string, number>,
  ) {
    this.events = order.map(() => []);
    this.free = order.map(() => 0);
    this.sources = order.map(() => []);
    this.targets = order.map((_, source) => {
      const found: [number, number][] = [];
      for (const target of order.keys()) {
        const seconds = sends.get(`${source}>${target}`);
        if (seconds === undefined && Math.abs(source - target) !== 1) continue;
        found.push([target, seconds ?? 0]);
        this.sources[target]?.push(source);
      }
      return found;
    });
  }

  /** When what `task` needs is there; null while something of it has not run. */
  private findReady(task: Task): number | null {
    if (task.kind === 'update') return 0;
    let ready = 0;
    if (task.kind === 'backward') {
      const own = this.ended.get(`forward ${task.stage} ${task.microbatch}`);
      if (own === undefined) return null;
      ready = own;
    }
    for (const source of this.sources[task.stage] ?? []) {
      if (source < task.stage !== (task.kind === 'forward')) continue;
      const arrived = this.arrived.get(`${source}>${task.stage} ${task.microbatch}`);
      if (arrived === undefined) return null;
      ready = Math.max(ready, arrived);
    }
    return ready;
  }

  private run(task: Task, ready: number): void {
    const times = this.durations[task.stage];
    const seconds = times?.[`${task.kind}_s`] ?? 0;
    const start = Math.max(ready, this.free[task.stage] ?? 0);
    const end = start + seconds;
    this.free[task.stage] = end;
    this.ended.set(`${task.kind} ${task.stage} ${task.microbatch}`, end);
    this.events[task.stage]?.push({ ...task, start, end });
    if (task.kind === 'update') return;
    for (const [target, took] of this.targets[task.stage] ?? []) {
      if (task.stage < target !== (task.kind === 'forward')) continue;
      const link = `${task.stage}>${target}`;
      const arrival = Math.max(end, this.linkFree.get(link) ?? 0) + took;
      this.linkFree.set(link, arrival);
      this.arrived.set(`${link} ${task.microbatch}`, arrival);
    }
  }

  play(): number {
    const position = this.order.map(() => 0);
    let hasMoved = true;
    while (hasMoved) {
      hasMoved = false;
      for (const [stage, tasks] of this.order.entries()) {
        for (let next = tasks[position[stage] ?? 0]; next !== undefined; next = tasks[position[stage] ?? 0]) {
          const ready = this.findReady(next);
          if (ready === null) break;
          this.run(next, ready);
          position[stage] = (position[stage] ?? 0) + 1;
          hasMoved = true;
        }
      }
    }
    return Math.max(0, ...this.free);
  }
}

function findBubbles(events: readonly TimelineEvent[][], makespan: number): Bubble[] {
  const least = makespan * 1e-6;
  const bubbles: Bubble[] = [];
  for (const [stage, row] of events.entries()) {
    let at = 0;
    for (const event of row) {
      if (event.start - at > least) bubbles.push({ stage, start: at, end: event.start });
      at = event.end;
    }
    if (makespan - at > least) bubbles.push({ stage, start: at, end: makespan });
  }
  return bubbles;
}

/** Sends overlap with the sender's next work; work of a stage happens in the schedule's order. */
export function playSchedule(
  schedule: string,
  durations: readonly Durations[],
  numMicrobatches: number,
  sends: ReadonlyMap<string, number> = new Map(),
): Timeline {
  const player = new Player(orderTasks(schedule, durations.length, numMicrobatches), durations, sends);
  const makespan = player.play();
  return { events: player.events, bubbles: findBubbles(player.events, makespan), makespan };
}

/** Share of a step in which `stage` works. */
export function measureBusy(timeline: Timeline, stage: number): number {
  if (timeline.makespan === 0) return 0;
  const busy = (timeline.events[stage] ?? []).reduce((sum, event) => sum + event.end - event.start, 0);
  return busy / timeline.makespan;
}

/** Round numbers for a time axis from 0 to `end` with about `count` ticks. */
export function listTicks(start: number, end: number, count: number): number[] {
  const raw = (end - start) / Math.max(1, count);
  if (!(raw > 0)) return [start];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= raw) ?? 10);
  const ticks: number[] = [];
  for (let i = Math.ceil(start / step - 1e-9) + 0; i * step <= end * (1 + 1e-9); i++) ticks.push(i * step);
  return ticks;
}
