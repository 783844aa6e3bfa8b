// The JSON form of a report; docs/report.md says what each field means.

export interface Step {
  type: "kernel" | "call" | "fallback";
  name: string;
  kernel: number | null;
  backend: string;
  note: string;
  instead: string;
  nodes: string[];
  ops: string[];
  sources: number[];
  bytes: number;
  flops: number | null;
  ms: number | null;
  inputs: number[];
  writes: string[];
  x: number;
  y: number;
}

export interface Refused {
  first: number;
  second: number;
  nodes: [string, string];
  reason: string;
  bytes: number;
}

export interface Storage {
  buffers: string[];
  bytes: number;
  first: number;
  last: number | null;
}

export interface Phase {
  steps: number;
  storages: Storage[];
  peak: number;
  peak_step: number;
}

export type Memory = Phase & { eager: Phase | { unknown: string } };

export interface Event {
  name: string;
  step: number | null;
  host: [number, number];
  device: [number, number] | null;
}

export interface Timeline {
  us: number;
  calls: number[];
  repeated: number;
  events: Event[];
  unseen: string;
}

export interface Trial {
  candidate: string;
  ms: number | null;
  fault: string;
  chosen: boolean;
}

export interface Tuning {
  subject: string;
  chosen: string;
  reason: string;
  steps: number[];
  trials: Trial[];
}

export interface Decision {
  kind: string;
  first: string;
  second: string;
  reason: string;
  count: number;
}

export interface Graph {
  name: string;
  kind: string;
  eager: string;
  cached: boolean;
  operators: number;
  launches: number;
  distinct: number;
  calls: number;
  fallbacks: { op: string; reason: string }[];
  bytes_before: number;
  bytes_after: number;
  stages: [string, number][];
  rewrites: [string, number][];
  recording: string;
  host: string;
  device: string;
  steps: Step[];
  refused: Refused[];
  decisions: Decision[];
  tuning: Tuning[];
  memory: Memory | null;
  timeline: Timeline | null;
  program: string;
}

export interface Kernel {
  name: string;
  symbol: string;
  backend: string;
  language: string;
  config: string;
  ir: string;
  code: string;
  code_links: number[][];
  source_links: number[][];
}

export interface Times {
  total: number;
  stages: [string, number][];
  frames: number;
  read: number;
  compiled: number;
}

export interface Use {
  name: string;
  backend: string;
  uses: number;
  ms: number | null;
  bytes: number;
}

export interface Comparison {
  old: { title: string; machine: Machine };
  totals: [string, number | null, number | null][];
  kernels: { name: string; backend: string; state: string; old: Use | null; new: Use | null }[];
  fallbacks: { gone: string[]; new: string[] };
  breaks: { gone: string[]; new: string[] };
}

export interface Machine {
  polyfuse: string;
  torch: string;
  python: string;
  system: string;
  cpu: string;
  threads: number;
  devices: string[];
}

export interface Source {
  file: number | null;
  line: number;
  function: string;
  code: string;
}

export interface Ceiling {
  device: string;
  name: string;
  bandwidth: number;
  cache_bandwidth: number | null;
  operations: number;
  how: string;
}

export interface Report {
  format: number;
  title: string;
  status?: number;
  machine: Machine;
  times: { cold: Times; warm: Times | null };
  breaks: { reason: string; source: number | null; count: number }[];
  recompilations: { function: string; compile: string; source: number; reason: string; seconds: number }[];
  failed: { function: string; source: number; reason: string }[];
  ceilings: Ceiling[];
  graphs: Graph[];
  kernels: Kernel[];
  sources: Source[];
  files: { path: string; parts: [number, string][] }[];
  compare?: Comparison;
}

export const report: Report = JSON.parse(document.getElementById("data")!.textContent!);

/** What the page calls a line of the model. */
export function place(number: number | null): string {
  if (number === null) return "";
  const source = report.sources[number];
  if (source.file === null) return source.code;
  const path = report.files[source.file].path;
  return `${path.split("/").pop()}:${source.line}`;
}

/** Whether a graph has something to show beside its name. */
export function isOpen(graph: Graph): boolean {
  return graph.steps.length > 0;
}
