import { useMemo, useState } from "preact/hooks";
import { Chart, Plot } from "./chart";
import { Ceiling, Phase, report, Step, Storage } from "./data";
import { bytes, ms, perSecond, plural, short } from "./format";
import { Empty, GraphChoice, Table, Tag } from "./parts";
import { go, href, Route } from "./route";

const COLORS = { domain: ["kernel", "call", "fallback"], range: ["var(--kernel)", "var(--call)", "var(--fallback)"] };
const NAMES: Record<string, string> = { kernel: "generated kernel", call: "library call", fallback: "eager fallback" };

interface Point {
  graph: number;
  at: number;
  step: Step;
  x: number;
  y: number;
  share: number;
}

export function RooflineView(props: { route: Route }) {
  const [only, setOnly] = useState(-1);
  const device = props.route.step ?? 0;
  const ceiling = report.ceilings[device];
  const { points, missing } = useMemo(() => {
    const found: Point[] = [];
    let left = 0;
    report.graphs.forEach((graph, g) => {
      if (!ceiling || graph.device !== ceiling.device || (only >= 0 && only !== g)) return;
      graph.steps.forEach((step, at) => {
        if (!step.ms || !step.bytes || !step.flops) left += 1;
        else found.push({ graph: g, at, step, x: step.flops / step.bytes, y: (1e3 * step.flops) / step.ms, share: 0 });
      });
    });
    return { points: found, missing: left };
  }, [ceiling, only]);
  if (!ceiling) return <Empty>No graph was compiled, so there is nothing to measure.</Empty>;
  return (
    <>
      <div class="toolbar">
        <label class="choice">
          Device
          <select value={device} onChange={(e) => go("roofline", 0, Number(e.currentTarget.value))}>
            {report.ceilings.map((c, i) => (
              <option value={i}>
                {c.device} ({c.name})
              </option>
            ))}
          </select>
        </label>
        <label class="choice">
          Graph
          <select value={only} onChange={(e) => setOnly(Number(e.currentTarget.value))}>
            <option value={-1}>all</option>
            {report.graphs.map((g, i) => (
              <option value={i}>{g.name}</option>
            ))}
          </select>
        </label>
        <output>{plural(points.length, "launch", "launches")}</output>
      </div>
      <Chart
        label="Roofline: operations in a second of each launch against its operations per byte"
        of={[points, ceiling]}
        pick={(p) => go("kernel", (p as Point).graph, (p as Point).at)}
        draw={(width) => roofline(points, ceiling, width)}
      />
      <Legend />
      <p class="quiet">
        Ceilings are {ceiling.how}: {perSecond(ceiling.bandwidth, "B")} and {perSecond(ceiling.operations, "op")}. Bytes
        count each buffer of a launch once, so a kernel whose data are in a cache may be above the slope
        {ceiling.cache_bandwidth ? `, up to the dashed one (${perSecond(ceiling.cache_bandwidth, "B")}, a small copy)` : ""}. Times are
        medians.{missing ? ` ${plural(missing, "launch or call", "launches or calls")} without a time or a known number of operations are left out.` : ""}
      </p>
      <h2>Farthest below their ceiling</h2>
      <Table
        label="Launches by the time above their ceiling"
        rows={useMemo(() => points.map((p) => ({ ...p, lost: lost(p, ceiling) })).sort((a, b) => b.lost - a.lost), [points])}
        columns={[
          { title: "Kernel or call", cell: (p) => <a href={href("kernel", p.graph, p.at)}>{p.step.name}</a> },
          { title: "", cell: (p) => <Tag type={p.step.type}>{p.step.backend}</Tag> },
          { title: "Time", number: true, cell: (p) => ms(p.step.ms), key: (p) => p.step.ms! },
          { title: "At the ceiling", number: true, cell: (p) => ms(p.step.ms! - p.lost), key: (p) => p.step.ms! - p.lost },
          { title: "Operations per byte", number: true, cell: (p) => p.x.toPrecision(3), key: (p) => p.x },
          { title: "Bytes", number: true, cell: (p) => perSecond((1e3 * p.step.bytes) / p.step.ms!, "B"), key: (p) => p.step.bytes / p.step.ms! },
          { title: "Operations", number: true, cell: (p) => perSecond(p.y, "op"), key: (p) => p.y },
        ]}
      />
    </>
  );
}

/** Milliseconds that a launch takes more than memory and arithmetic allow. */
function lost(p: Point, ceiling: Ceiling): number {
  const least = 1e3 * Math.max(p.step.bytes / ceiling.bandwidth, p.step.flops! / ceiling.operations);
  return Math.max(p.step.ms! - least, 0);
}

/** 1, 10, 100 and so on, with 2 and 5 between them where there is room. */
function ticks(low: number, high: number): number[] {
  const found: number[] = [];
  const steps = high / low > 2e3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    found.push(...steps.map((s) => s * 10 ** power).filter((t) => t >= low && t <= high));
  }
  return found;
}

function roofline(points: Point[], ceiling: Ceiling, width: number): Plot.PlotOptions {
  const ridge = ceiling.operations / ceiling.bandwidth;
  const left = Math.min(ridge / 8, (ceiling.operations / (ceiling.cache_bandwidth ?? Infinity)) / 2 || ridge / 8, ...points.map((p) => p.x / 2));
  const right = Math.max(ridge * 8, ...points.map((p) => p.x * 2));
  const heights = points.map((p) => p.y);
  const bottom = Math.min(left * ceiling.bandwidth, ...heights) / 1.6;
  const top = Math.max(ceiling.operations, ...heights) * 1.8;
  const roof = [
    { x: left, y: left * ceiling.bandwidth },
    { x: ridge, y: ceiling.operations },
    { x: right, y: ceiling.operations },
  ];
  return {
    height: Math.min(520, Math.max(320, width * 0.5)),
    marginLeft: 64,
    marginRight: 24,
    marginTop: 28,
    marginBottom: 46,
    x: { type: "log", domain: [left, right] },
    y: { type: "log", domain: [bottom, top] },
    r: { range: [2.5, 14] },
    color: COLORS,
    marks: [
      // the axis of a logarithmic scale leaves out labels of its own choice
      Plot.gridX(ticks(left, right)),
      Plot.gridY(ticks(bottom, top)),
      Plot.axisX(ticks(left, right), { text: (x: number) => Number(x.toPrecision(3)).toString(),
        label: "Operations per byte",
        labelAnchor: "center",
        labelArrow: "none",
      }),
      Plot.axisY(ticks(bottom, top), { text: short, label: "Operations in a second" }),
      Plot.line(roof, { x: "x", y: "y", stroke: "var(--text)", strokeWidth: 1.5 }),
      Plot.text([{ x: right, y: ceiling.operations }], {
        x: "x",
        y: "y",
        text: () => perSecond(ceiling.operations, "op"),
        dy: -8,
        textAnchor: "end",
        fill: "var(--quiet)",
      }),
      Plot.text([{ x: left, y: left * ceiling.bandwidth }], {
        x: "x",
        y: "y",
        text: () => perSecond(ceiling.bandwidth, "B"),
        dx: 6,
        dy: -22,
        textAnchor: "start",
        fill: "var(--quiet)",
      }),
      ceiling.cache_bandwidth === null
        ? null
        : Plot.line(
            [left, ceiling.operations / ceiling.cache_bandwidth, ridge].map((x) => ({
              x,
              y: Math.min(x * ceiling.cache_bandwidth!, ceiling.operations),
            })),
            { x: "x", y: "y", stroke: "var(--quiet)", strokeDasharray: "4 3" },
          ),
      Plot.dot(points, {
        x: "x",
        y: "y",
        r: (p: Point) => p.step.ms,
        fill: (p: Point) => p.step.type,
        fillOpacity: 0.55,
        stroke: (p: Point) => p.step.type,
      }),
      Plot.tip(
        points,
        Plot.pointer({
          x: "x",
          y: "y",
          fill: "var(--raised)",
          stroke: "var(--edge)",
          title: (p: Point) =>
            `${p.step.name}\n${ms(p.step.ms)}, ${bytes(p.step.bytes)}\n${perSecond((1e3 * p.step.bytes) / p.step.ms!, "B")}, ${perSecond(p.y, "op")}`,
        }),
      ),
    ],
  };
}

function Legend() {
  return (
    <ul class="legend row">
      {COLORS.domain.map((type) => (
        <li>
          <i class={`dot ${type}`} /> {NAMES[type]}
        </li>
      ))}
    </ul>
  );
}

interface Block extends Storage {
  low: number;
  end: number;
}

/** Puts storages above each other, each as low as it fits while it lives. */
function stacked(phase: Phase): Block[] {
  const live: Block[] = [];
  return phase.storages.map((storage) => {
    const end = storage.last === null ? phase.steps : storage.last + 1;
    for (let i = live.length - 1; i >= 0; i--) if (live[i].end <= storage.first) live.splice(i, 1);
    live.sort((a, b) => a.low - b.low);
    let low = 0;
    for (const other of live) {
      if (other.low - low >= storage.bytes) break;
      low = Math.max(low, other.low + other.bytes);
    }
    const block = { ...storage, low, end };
    live.push(block);
    return block;
  });
}

function liveBytes(phase: Phase): { at: number; bytes: number }[] {
  const change = new Float64Array(phase.steps + 2);
  for (const s of phase.storages) {
    change[s.first] += s.bytes;
    change[s.last === null ? phase.steps : s.last + 1] -= s.bytes;
  }
  let live = 0;
  const found = Array.from({ length: phase.steps }, (_, at) => ({ at, bytes: (live += change[at]) }));
  return found.length ? [...found, { at: phase.steps, bytes: found[found.length - 1].bytes }] : found;
}

function MemoryMap(props: { name: string; phase: Phase; most: number; unit: string; steps?: Step[] }) {
  const { phase, most } = props;
  const blocks = useMemo(() => stacked(phase), [phase]);
  const live = useMemo(() => liveBytes(phase), [phase]);
  const top = Math.max(most, ...blocks.map((b) => b.low + b.bytes));
  return (
    <figure class="memory">
      <figcaption>
        <b>{props.name}</b> peak {bytes(phase.peak)} at {props.unit} {phase.peak_step + 1} of {phase.steps}
      </figcaption>
      <Chart
        label={`${props.name}: lifetimes of buffers, and bytes in use, by ${props.unit}`}
        of={[phase, most]}
        draw={() => ({
          height: 350,
          marginBottom: 44,
          marginLeft: 64,
          marginRight: 16,
          marginTop: 24,
          x: { label: props.unit, labelAnchor: "center", labelArrow: "none", domain: [0, Math.max(phase.steps, 1)] },
          y: { label: "Bytes", domain: [0, top], tickFormat: "~s", grid: true },
          marks: [
            Plot.rect(blocks, {
              x1: "first",
              x2: "end",
              y1: "low",
              y2: (b: Block) => b.low + b.bytes,
              fill: "var(--kernel-soft)",
              stroke: "var(--kernel)",
              strokeWidth: blocks.length > 600 ? 0.2 : 0.6,
            }),
            Plot.line(live, { x: "at", y: "bytes", stroke: "var(--text)", strokeWidth: 1.5, curve: "step-after" }),
            Plot.ruleX([phase.peak_step + 0.5], { stroke: "var(--fallback)", strokeDasharray: "4 3" }),
            Plot.dot([phase], { x: (d) => d.peak_step + 0.5, y: "peak", fill: "var(--fallback)", r: 4 }),
            Plot.tip(
              blocks,
              Plot.pointer({
                x: (b: Block) => (b.first + b.end) / 2,
                y: (b: Block) => b.low + b.bytes / 2,
                fill: "var(--raised)",
                stroke: "var(--edge)",
                title: (b: Block) =>
                  `${b.buffers.join(" → ")}\n${bytes(b.bytes)}, ${props.unit} ${b.first + 1} to ${b.end}`,
              }),
            ),
          ],
        })}
      />
    </figure>
  );
}

export function MemoryView(props: { route: Route }) {
  const graph = report.graphs[props.route.graph];
  const memory = graph.memory;
  if (!memory) return <Empty>Nothing is known of this graph's memory.</Empty>;
  const eager = "peak" in memory.eager ? memory.eager : null;
  const most = Math.max(memory.peak, eager?.peak ?? 0);
  const largest = [...memory.storages].sort((a, b) => b.bytes - a.bytes);
  return (
    <>
      <div class="toolbar">
        <GraphChoice view="memory" graph={props.route.graph} />
        {eager && (
          <output>
            {bytes(memory.peak)} compiled, {bytes(eager.peak)} eager
          </output>
        )}
      </div>
      <div class="columns even">
        <MemoryMap name="Compiled" phase={memory} most={most} unit="launch" />
        {eager ? (
          <MemoryMap name="Eager mode" phase={eager} most={most} unit="operator" />
        ) : (
          <Empty>Eager mode: {"unknown" in memory.eager ? memory.eager.unknown : ""}</Empty>
        )}
      </div>
      <p class="quiet">
        Each box is a storage: as high as its bytes, as long as it lives. The line is what is in use, the dashed line
        where that is most. Parameters and inputs that the caller keeps are left out; in a backward, what the forward
        saved is there from the start. Eager mode is the captured graph, run operator by operator on fake tensors.
      </p>
      <h2>Largest storages</h2>
      <Table
        label="Largest storages"
        rows={largest}
        columns={[
          { title: "Buffers, one after the other", cell: (s) => <code>{s.buffers.join(" → ")}</code> },
          { title: "Size", number: true, cell: (s) => bytes(s.bytes), key: (s) => s.bytes },
          { title: "From", number: true, cell: (s) => s.first + 1, key: (s) => s.first },
          { title: "To", number: true, cell: (s) => (s.last === null ? "end" : s.last + 1), key: (s) => s.last ?? 1e9 },
        ]}
      />
    </>
  );
}

interface Span {
  lane: string;
  from: number;
  to: number;
  type: string;
  name: string;
  step: number | null;
}

export function TimelineView(props: { route: Route }) {
  const graph = report.graphs[props.route.graph];
  const timeline = graph.timeline;
  const [range, setRange] = useState<[number, number] | null>(null);
  const spans = useMemo(() => {
    const found: Span[] = [];
    for (const event of timeline?.events ?? []) {
      const type = event.step === null ? "call" : graph.steps[event.step].type;
      const add = (lane: string, [from, to]: [number, number]) =>
        found.push({ lane, from, to, type, name: event.step === null ? event.name : graph.steps[event.step].name, step: event.step });
      add("host", event.host);
      if (event.device) add("device", event.device);
    }
    return found;
  }, [graph]);
  if (!timeline) return <Empty>No call of this graph was measured.</Empty>;
  const whole: [number, number] = [0, Math.max(timeline.us, ...spans.map((s) => s.to))];
  const [low, high] = range ?? whole;
  const move = (by: number, scale: number) => {
    const size = (high - low) * scale;
    const middle = (low + high) / 2 + by * (high - low);
    const start = Math.min(Math.max(middle - size / 2, 0), Math.max(whole[1] - size, 0));
    setRange([start, Math.min(start + size, whole[1])]);
  };
  const shown = spans.filter((s) => s.to >= low && s.from <= high);
  const busy = spans.filter((s) => s.lane === "host").reduce((sum, s) => sum + s.to - s.from, 0);
  return (
    <>
      <div class="toolbar">
        <GraphChoice view="timeline" graph={props.route.graph} />
        <span class="buttons" role="group" aria-label="Part of the time that is shown">
          <button type="button" onClick={() => move(-0.25, 1)} aria-label="Earlier">‹</button>
          <button type="button" onClick={() => move(0, 0.5)}>Zoom in</button>
          <button type="button" onClick={() => move(0, 2)}>Zoom out</button>
          <button type="button" onClick={() => move(0.25, 1)} aria-label="Later">›</button>
          <button type="button" onClick={() => setRange(null)}>All</button>
        </span>
        <output>
          {ms(timeline.us / 1e3)} for the call, {ms(Math.max(timeline.us - busy, 0) / 1e3)} of it between launches
        </output>
      </div>
      <Chart
        label="When each launch and call begins and ends"
        of={[spans, low, high]}
        pick={(s) => (s as Span).step !== null && go("kernel", props.route.graph, (s as Span).step)}
        draw={() => ({
          height: spans.some((s) => s.lane === "device") ? 230 : 150,
          marginBottom: 44,
          marginLeft: 64,
          marginRight: 24,
          x: { label: "Microseconds since the call began", labelAnchor: "center", labelArrow: "none", domain: [low, high] },
          y: { label: null, domain: spans.some((s) => s.lane === "device") ? ["host", "device"] : ["host"], padding: 0.25 },
          color: COLORS,
          marks: [
            Plot.barX(shown, {
              x1: (s: Span) => Math.max(s.from, low),
              x2: (s: Span) => Math.min(s.to, high),
              y: "lane",
              fill: "type",
              stroke: "var(--page)",
              strokeWidth: 0.4,
            }),
            Plot.tip(
              shown,
              Plot.pointerX({
                x: (s: Span) => (s.from + s.to) / 2,
                y: "lane",
                fill: "var(--raised)",
                stroke: "var(--edge)",
                title: (s: Span) => `${s.name}\n${ms((s.to - s.from) / 1e3)} from ${ms(s.from / 1e3)}`,
              }),
            ),
          ],
        })}
      />
      <Legend />
      <p class="quiet">
        The last of {plural(timeline.calls.length, "measured call")}
        {timeline.repeated ? `, of which ${timeline.repeated} were repeated for their times alone` : ""}.
        {timeline.unseen ? ` Note: ${timeline.unseen}.` : ""} Measuring makes each launch slower by about a microsecond.
      </p>
      <h2>Launches and calls</h2>
      <Table
        label="Launches and calls in order"
        rows={spans}
        columns={[
          {
            title: "Name",
            cell: (s) => (s.step === null ? s.name : <a href={href("kernel", props.route.graph, s.step)}>{s.name}</a>),
            key: (s) => s.name,
          },
          { title: "Where", cell: (s) => s.lane, key: (s) => s.lane },
          { title: "Begins", number: true, cell: (s) => ms(s.from / 1e3), key: (s) => s.from },
          { title: "Takes", number: true, cell: (s) => ms((s.to - s.from) / 1e3), key: (s) => s.to - s.from },
        ]}
      />
    </>
  );
}
