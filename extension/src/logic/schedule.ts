/** Plays a pipeline schedule: who does what when, and where the bubbles are. Twin of alpaviz/schedule/. */
import type { StagePlan, Transfer } from '../model/plan';
import type { Recording } from '../model/planner-state';

export type TaskKind = 'forward' | 'backward' | 'update';

export interface Task {
  kind: TaskKind;
  stage: number;
  microbatch: number;
  /** Of a backward that is cut in two: what the stage before waits for, or the rest. */
  part?: 'inputs' | 'weights';
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

export type Durations = Pick<StagePlan, 'forward_s' | 'backward_s' | 'update_s'> &
  Partial<Pick<StagePlan, 'weights_s'>>;

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

/** 1F1B whose stage i puts weight gradients off by i microbatches. Source: Qi et al., ICLR 2024, ZB-H1. */
function orderZeroBubble(stage: number, numStages: number, numMicrobatches: number): Task[] {
  const ahead = Math.min(numStages - stage - 1, numMicrobatches);
  const tasks: Task[] = [];
  for (let m = 0; m < ahead; m++) tasks.push({ kind: 'forward', stage, microbatch: m });
  for (let m = 0; m < numMicrobatches + stage; m++) {
    if (m + ahead < numMicrobatches) tasks.push({ kind: 'forward', stage, microbatch: m + ahead });
    if (m < numMicrobatches) tasks.push({ kind: 'backward', part: 'inputs', stage, microbatch: m });
    if (m >= stage) tasks.push({ kind: 'backward', part: 'weights', stage, microbatch: m - stage });
  }
  return tasks;
}

/** Stages s, s + W, ... take turns on one of W groups of devices. Source: Narayanan et al., SC 2021, section 2.2.2. */
function orderInterleaved(row: number, numRows: number, numChunks: number, numMicrobatches: number): Task[] {
  const turns: [chunk: number, microbatch: number][] = [];
  for (let first = 0; first < numMicrobatches; first += numRows)
    for (let chunk = 0; chunk < numChunks; chunk++) for (let m = 0; m < numRows; m++) turns.push([chunk, first + m]);
  const make = (kind: TaskKind, chunk: number, microbatch: number): Task => ({
    kind,
    stage: chunk * numRows + row,
    microbatch,
  });
  const forwards = turns.map(([chunk, m]) => make('forward', chunk, m));
  const backwards = turns.map(([chunk, m]) => make('backward', numChunks - 1 - chunk, m));
  const ahead = Math.min((numRows - row - 1) * 2 + (numChunks - 1) * numRows, turns.length);
  const both = backwards.flatMap((task, i) => [...forwards.slice(ahead + i, ahead + i + 1), task]);
  const updates = Array.from({ length: numChunks }, (_, chunk) => make('update', chunk, 0));
  return [...forwards.slice(0, ahead), ...both, ...updates];
}

/** Tasks in order, a row for each stage, or for the stages that share devices. */
export function orderTasks(schedule: string, numStages: number, numMicrobatches: number): Task[][] {
  const numChunks = Number(/^interleaved-(\d+)$/.exec(schedule)?.[1] ?? 1);
  if (numChunks > 1) {
    const numRows = numStages / numChunks;
    return Array.from({ length: numRows }, (_, row) => orderInterleaved(row, numRows, numChunks, numMicrobatches));
  }
  return Array.from({ length: numStages }, (_, stage) => {
    if (schedule === 'zero-bubble')
      return [...orderZeroBubble(stage, numStages, numMicrobatches), { kind: 'update', stage, microbatch: 0 } as Task];
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
  /** When the devices of a row are free. */
  private readonly free: number[];
  private readonly rowOf: ReadonlyMap<number, number>;
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
    this.events = durations.map(() => []);
    this.free = order.map(() => 0);
    this.rowOf = new Map(order.flatMap((tasks, row) => tasks.map((task) => [task.stage, row] as const)));
    this.sources = durations.map(() => []);
    this.targets = durations.map((_, source) => {
      const found: [number, number][] = [];
      for (const target of durations.keys()) {
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
    if (task.part === 'weights') return this.ended.get(`backward ${task.stage} ${task.microbatch}`) ?? null;
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

  private measure(task: Task): number {
    const times = this.durations[task.stage];
    const whole = times?.[`${task.kind}_s`] ?? 0;
    if (task.part === undefined) return whole;
    const weights = times?.weights_s ?? 0;
    return task.part === 'weights' ? weights : Math.max(0, whole - weights);
  }

  private run(row: number, task: Task, ready: number): void {
    const start = Math.max(ready, this.free[row] ?? 0);
    const end = start + this.measure(task);
    this.free[row] = end;
    this.events[task.stage]?.push({ ...task, start, end });
    if (task.kind === 'update' || task.part === 'weights') return;
    this.ended.set(`${task.kind} ${task.stage} ${task.microbatch}`, end);
    for (const [target, took] of this.targets[task.stage] ?? []) {
      if (task.stage < target !== (task.kind === 'forward')) continue;
      const link = `${row}>${this.rowOf.get(target)}`;
      const arrival = Math.max(end, this.linkFree.get(link) ?? 0) + took;
      if (took > 0) this.linkFree.set(link, arrival);
      this.arrived.set(`${task.stage}>${target} ${task.microbatch}`, arrival);
    }
  }

  play(): number {
    const position = this.order.map(() => 0);
    let hasMoved = true;
    while (hasMoved) {
      hasMoved = false;
      for (const [row, tasks] of this.order.entries()) {
        for (let next = tasks[position[row] ?? 0]; next !== undefined; next = tasks[position[row] ?? 0]) {
          const ready = this.findReady(next);
          if (ready === null) break;
          this.run(row, next, ready);
          position[row] = (position[row] ?? 0) + 1;
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

/** A recorded step as a timeline of `numStages` stages; null where it is of another plan. */
export function showRecording(recording: Recording, numStages: number): Timeline | null {
  if (new Set(recording.map(([stage]) => stage)).size !== numStages) return null;
  const events: TimelineEvent[][] = Array.from({ length: numStages }, () => []);
  for (const [stage, kind, microbatch, start, end] of recording)
    events[stage]?.push({ stage, kind, microbatch, start, end });
  const makespan = Math.max(0, ...recording.map(([, , , , end]) => end));
  return { events, bubbles: findBubbles(events, makespan), makespan };
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
