import { select } from "d3-selection";
import { zoom, zoomIdentity, ZoomTransform } from "d3-zoom";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Graph, report, Step } from "./data";
import { bytes, count, ms, op, plural } from "./format";
import { GraphChoice, Place, Tag } from "./parts";
import { go, href, Route } from "./route";

const WIDTH = 220;
const HEIGHT = 44;
/** Below this scale, names cannot be read and are not drawn. */
const READABLE = 0.45;

interface Filter {
  text: string;
  backend: string;
  /** Only what takes at least this share of the graph's time, in percent. */
  share: number;
  refused: boolean;
}

function matches(filter: Filter, graph: Graph): Uint8Array {
  const text = filter.text.toLowerCase();
  const total = graph.steps.reduce((sum, step) => sum + (step.ms ?? 0), 0) || 1;
  const refused = new Set(graph.refused.flatMap((pair) => [pair.first, pair.second]));
  return Uint8Array.from(graph.steps, (step, i) => {
    const words = `${step.name} ${step.ops.join(" ")} ${step.sources.map((s) => report.sources[s].code).join(" ")}`;
    return Number(
      (!text || words.toLowerCase().includes(text)) &&
        (!filter.backend || step.backend === filter.backend) &&
        (!filter.share || (100 * (step.ms ?? 0)) / total >= filter.share) &&
        (!filter.refused || refused.has(i)),
    );
  });
}

/** Draws what is in sight, at the current zoom; nothing is kept between two frames. */
class Drawing {
  transform: ZoomTransform = zoomIdentity;
  found: Uint8Array;
  selected: number | null = null;
  private waiting = false;
  private readonly users: number[][];

  constructor(
    readonly canvas: HTMLCanvasElement,
    readonly graph: Graph,
  ) {
    this.found = new Uint8Array(graph.steps.length).fill(1);
    this.users = graph.steps.map(() => []);
    graph.steps.forEach((step, i) => step.inputs.forEach((before) => this.users[before].push(i)));
  }

  request(): void {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  next(from: number, forward: boolean): number | undefined {
    return (forward ? this.users[from] : this.graph.steps[from].inputs)[0];
  }

  at(x: number, y: number): number | null {
    const [gx, gy] = this.transform.invert([x, y]);
    const steps = this.graph.steps;
    const found = steps.findIndex((s) => gx >= s.x && gx <= s.x + WIDTH && gy >= s.y && gy <= s.y + HEIGHT);
    return found < 0 ? null : found;
  }

  private draw(): void {
    const { canvas, graph, transform } = this;
    const ratio = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (canvas.width !== width * ratio || canvas.height !== height * ratio) {
      canvas.width = width * ratio;
      canvas.height = height * ratio;
    }
    const pen = canvas.getContext("2d")!;
    const style = getComputedStyle(canvas);
    const color = (name: string) => style.getPropertyValue(`--${name}`).trim();
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.translate(transform.x, transform.y);
    pen.scale(transform.k, transform.k);
    const [left, top] = transform.invert([0, 0]);
    const [right, bottom] = transform.invert([width, height]);
    const inSight = (step: Step) =>
      step.x < right && step.x + WIDTH > left && step.y < bottom && step.y + HEIGHT > top;
    this.drawEdges(pen, color, (a, b) => {
      const [x0, x1] = [Math.min(a.x, b.x), Math.max(a.x, b.x) + WIDTH];
      const [y0, y1] = [Math.min(a.y, b.y), Math.max(a.y, b.y) + HEIGHT];
      return x0 < right && x1 > left && y0 < bottom && y1 > top;
    });
    const most = Math.max(...graph.steps.map((s) => s.ms ?? 0), 1e-12);
    const readable = transform.k > READABLE;
    graph.steps.forEach((step, i) => inSight(step) && this.drawNode(pen, step, i, color, most, readable));
  }

  private drawEdges(
    pen: CanvasRenderingContext2D,
    color: (name: string) => string,
    inSight: (a: Step, b: Step) => boolean,
  ): void {
    const { graph, selected } = this;
    for (const near of [false, true]) {
      pen.beginPath();
      graph.steps.forEach((step, i) =>
        step.inputs.forEach((before) => {
          const from = graph.steps[before];
          if ((selected === i || selected === before) !== near || !inSight(from, step)) return;
          const [x0, y0] = [from.x + WIDTH / 2, from.y + HEIGHT];
          const [x1, y1] = [step.x + WIDTH / 2, step.y];
          const bend = Math.max(16, Math.abs(y1 - y0) / 2.5);
          pen.moveTo(x0, y0);
          pen.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
        }),
      );
      pen.lineWidth = near ? 2 : 1;
      pen.strokeStyle = color(near ? "accent" : "edge");
      pen.stroke();
    }
  }

  private drawNode(
    pen: CanvasRenderingContext2D,
    step: Step,
    i: number,
    color: (name: string) => string,
    most: number,
    readable: boolean,
  ): void {
    pen.globalAlpha = this.found[i] ? 1 : 0.18;
    pen.beginPath();
    pen.roundRect(step.x, step.y, WIDTH, HEIGHT, 7);
    pen.fillStyle = color(readable ? `${step.type}-soft` : step.type);
    pen.fill();
    pen.lineWidth = this.selected === i ? 3 : 1;
    pen.strokeStyle = color(this.selected === i ? "accent" : step.type);
    pen.stroke();
    if (readable && step.ms !== null) {
      pen.fillStyle = color(step.type);
      pen.fillRect(step.x + 8, step.y + HEIGHT - 5, ((WIDTH - 16) * step.ms) / most, 2.5);
    }
    if (readable) {
      pen.fillStyle = color("text");
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(clipped(pen, step.type === "kernel" ? step.name : op(step.name), WIDTH - 20), step.x + 10, step.y + 18);
      pen.fillStyle = color("quiet");
      pen.font = "11px system-ui, sans-serif";
      const about = [step.backend, bytes(step.bytes), step.ms === null ? "" : ms(step.ms)].filter(Boolean);
      pen.fillText(about.join("  ·  "), step.x + 10, step.y + 33);
    }
    pen.globalAlpha = 1;
  }
}

function clipped(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return `${text.slice(0, low)}…`;
}

export function GraphView(props: { route: Route; theme: string }) {
  const { graph: number, step: selected } = props.route;
  const graph = report.graphs[number];
  const canvas = useRef<HTMLCanvasElement>(null);
  const drawing = useRef<Drawing | null>(null);
  const zoomer = useRef<ReturnType<typeof zoom<HTMLCanvasElement, unknown>> | null>(null);
  const [filter, setFilter] = useState<Filter>({ text: "", backend: "", share: 0, refused: false });
  const found = useMemo(() => matches(filter, graph), [filter, graph]);
  const hits = useMemo(() => found.reduce((a, b) => a + b, 0), [found]);
  const backends = useMemo(() => [...new Set(graph.steps.map((s) => s.backend))].sort(), [graph]);

  const fit = () => {
    const element = canvas.current!;
    const right = Math.max(...graph.steps.map((s) => s.x)) + WIDTH;
    const bottom = Math.max(...graph.steps.map((s) => s.y)) + HEIGHT;
    const scale = Math.min(1.2, (element.clientWidth - 40) / right, (element.clientHeight - 40) / bottom);
    const shift = [(element.clientWidth - right * scale) / 2, Math.max(20, (element.clientHeight - bottom * scale) / 2)];
    select(element).call(zoomer.current!.transform, zoomIdentity.translate(shift[0], shift[1]).scale(scale));
  };
  const centre = (i: number) => {
    const step = graph.steps[i];
    const element = canvas.current!;
    const scale = Math.max(drawing.current!.transform.k, 0.8);
    const [x, y] = [element.clientWidth / 2 - (step.x + WIDTH / 2) * scale, element.clientHeight / 2 - step.y * scale];
    select(element).call(zoomer.current!.transform, zoomIdentity.translate(x, y).scale(scale));
  };

  useEffect(() => {
    const element = canvas.current!;
    drawing.current = new Drawing(element, graph);
    zoomer.current = zoom<HTMLCanvasElement, unknown>()
      .scaleExtent([0.01, 4])
      .clickDistance(4)
      .on("zoom", (event) => {
        drawing.current!.transform = event.transform;
        drawing.current!.request();
      });
    select(element).call(zoomer.current).on("dblclick.zoom", null);
    fit();
    if (selected !== null && graph.steps[selected]) centre(selected);
    const watch = new ResizeObserver(() => drawing.current!.request());
    watch.observe(element);
    return () => watch.disconnect();
  }, [graph]);
  useEffect(() => {
    drawing.current!.found = found;
    drawing.current!.selected = selected;
    drawing.current!.request();
  }, [found, selected, graph, props.theme]);

  const choose = (i: number | null | undefined, move = false) => {
    if (i === null || i === undefined) return;
    go("graph", number, i);
    if (move) centre(i);
  };
  const nextHit = (forward: boolean) => {
    const length = graph.steps.length;
    for (let n = 1; n <= length; n++) {
      const i = ((selected ?? (forward ? -1 : 0)) + (forward ? n : -n) + 2 * length) % length;
      if (found[i]) return choose(i, true);
    }
  };
  const keys = (event: KeyboardEvent) => {
    const at = selected ?? 0;
    const moves: Record<string, () => void> = {
      ArrowDown: () => choose(selected === null ? 0 : drawing.current!.next(at, true), true),
      ArrowUp: () => choose(drawing.current!.next(at, false), true),
      ArrowRight: () => choose(Math.min(at + 1, graph.steps.length - 1), true),
      ArrowLeft: () => choose(Math.max(at - 1, 0), true),
      Enter: () => selected !== null && go("kernel", number, selected),
      "+": () => select(canvas.current!).call(zoomer.current!.scaleBy, 1.3),
      "-": () => select(canvas.current!).call(zoomer.current!.scaleBy, 1 / 1.3),
      "0": fit,
      n: () => nextHit(true),
      p: () => nextHit(false),
    };
    if (moves[event.key]) {
      event.preventDefault();
      moves[event.key]();
    }
  };

  return (
    <>
      <div class="toolbar">
        <GraphChoice view="graph" graph={number} />
        <label class="choice">
          Search
          <input
            type="search"
            id="search"
            placeholder="kernel, operator, line of the model"
            value={filter.text}
            onInput={(e) => setFilter({ ...filter, text: e.currentTarget.value })}
            onKeyDown={(e) => e.key === "Enter" && nextHit(!e.shiftKey)}
          />
        </label>
        <label class="choice">
          Backend
          <select value={filter.backend} onChange={(e) => setFilter({ ...filter, backend: e.currentTarget.value })}>
            <option value="">all</option>
            {backends.map((name) => (
              <option>{name}</option>
            ))}
          </select>
        </label>
        <label class="choice">
          Time
          <select
            value={filter.share}
            onChange={(e) => setFilter({ ...filter, share: Number(e.currentTarget.value) })}
          >
            <option value={0}>any</option>
            {[0.1, 1, 5, 10].map((share) => (
              <option value={share}>at least {share}%</option>
            ))}
          </select>
        </label>
        <label class="check">
          <input
            type="checkbox"
            checked={filter.refused}
            onChange={(e) => setFilter({ ...filter, refused: e.currentTarget.checked })}
          />
          with a refused fusion
        </label>
        <output aria-live="polite">
          {count(hits)} of {count(graph.steps.length)}
        </output>
        <span class="buttons">
          <button type="button" onClick={() => nextHit(false)} aria-label="Previous match">
            ‹
          </button>
          <button type="button" onClick={() => nextHit(true)} aria-label="Next match">
            ›
          </button>
          <button type="button" onClick={fit}>
            Fit
          </button>
        </span>
      </div>
      <div class="drawing">
        <canvas
          ref={canvas}
          tabIndex={0}
          role="application"
          aria-label={`Kernels and calls of ${graph.name}. Arrow keys follow dependencies, Enter opens a kernel, plus and minus zoom, 0 shows all.`}
          onKeyDown={keys}
          onClick={(e) => choose(drawing.current!.at(e.offsetX, e.offsetY))}
          onDblClick={(e) => {
            const at = drawing.current!.at(e.offsetX, e.offsetY);
            if (at !== null) go("kernel", number, at);
          }}
        />
        <aside aria-live="polite" aria-label="Selected kernel" tabIndex={0}>
          {selected === null ? <Legend graph={graph} /> : <Selected graph={graph} number={number} step={selected} />}
        </aside>
      </div>
    </>
  );
}

function Legend(props: { graph: Graph }) {
  const of = (type: string) => props.graph.steps.filter((s) => s.type === type).length;
  return (
    <>
      <h2>{props.graph.name}</h2>
      <ul class="legend">
        <li>
          <Tag type="kernel">generated</Tag> {plural(of("kernel"), "launch", "launches")}
        </li>
        <li>
          <Tag type="call">library</Tag> {plural(of("call"), "call")}
        </li>
        <li>
          <Tag type="fallback">eager</Tag> {plural(of("fallback"), "fallback")}
        </li>
      </ul>
      <p class="quiet">
        The line at the bottom of a box is its share of the time. Choose a box for its operators and neighbours;
        double-click it for its code.
      </p>
      <p class="quiet">
        Keys: arrows follow dependencies, <kbd>Enter</kbd> opens, <kbd>+</kbd> <kbd>-</kbd> <kbd>0</kbd> zoom,{" "}
        <kbd>n</kbd> <kbd>p</kbd> next and previous match, <kbd>/</kbd> search.
      </p>
    </>
  );
}

function Selected(props: { graph: Graph; number: number; step: number }) {
  const { graph, number } = props;
  const step = graph.steps[props.step];
  if (!step) return null;
  const refused = graph.refused.filter((r) => r.first === props.step || r.second === props.step);
  return (
    <>
      <h2>{step.name}</h2>
      <p>
        <Tag type={step.type}>{step.backend}</Tag> <a href={href("kernel", number, props.step)}>Open</a>
      </p>
      <dl class="facts">
        <dt>Time</dt>
        <dd>{ms(step.ms)}</dd>
        <dt>Bytes</dt>
        <dd>{bytes(step.bytes)}</dd>
        <dt>Operators</dt>
        <dd>{step.ops.map(op).join(", ") || "–"}</dd>
      </dl>
      {step.note && <p class="quiet">{step.note}</p>}
      <ul class="places">
        {step.sources.slice(0, 6).map((s) => (
          <li>
            <Place source={s} />
          </li>
        ))}
      </ul>
      {refused.length > 0 && <h3>Not fused with</h3>}
      <ul class="places">
        {refused.slice(0, 8).map((r) => {
          const other = r.first === props.step ? r.second : r.first;
          return (
            <li>
              <a href={href("graph", number, other)}>{graph.steps[other].name}</a>
              <br />
              <span class="quiet">{r.reason}</span>
            </li>
          );
        })}
      </ul>
    </>
  );
}
