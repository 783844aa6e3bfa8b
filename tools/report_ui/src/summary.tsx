import { Graph, isOpen, report, Times } from "./data";
import { bytes, count, ms, op, plural, seconds } from "./format";
import { Place, Table, Tag } from "./parts";
import { href } from "./route";

function Figure(props: { value: string; name: string; note?: string }) {
  return (
    <div class="figure">
      <dt>{props.name}</dt>
      <dd>
        <strong>{props.value}</strong>
        {props.note && <span>{props.note}</span>}
      </dd>
    </div>
  );
}

const sum = (numbers: number[]): number => numbers.reduce((a, b) => a + b, 0);

function Figures() {
  const graphs = report.graphs;
  const steps = graphs.flatMap((g) => g.steps);
  const fallbacks = sum(graphs.map((g) => g.fallbacks.length));
  const before = sum(graphs.map((g) => g.bytes_before));
  const after = sum(graphs.map((g) => g.bytes_after));
  const { cold, warm } = report.times;
  const peaks = graphs.filter((g) => g.memory).map((g) => g.memory!);
  const largest = peaks.length ? peaks.reduce((a, b) => (b.peak > a.peak ? b : a)) : null;
  const eager = largest && "peak" in largest.eager ? largest.eager.peak : null;
  const breaks = sum(report.breaks.map((b) => b.count));
  return (
    <dl class="figures">
      <Figure
        name="Graphs"
        value={count(graphs.length)}
        note={`${plural(breaks, "break")}, ${plural(report.recompilations.length, "recompilation")}`}
      />
      <Figure
        name="Kernels"
        value={count(report.kernels.length)}
        note={`${plural(sum(graphs.map((g) => g.launches)), "launch", "launches")}, ${plural(
          steps.filter((s) => s.type === "call").length,
          "library call",
        )}`}
      />
      <Figure name="Fallbacks" value={count(fallbacks)} note="operators in eager mode" />
      <Figure
        name="Compile, cold"
        value={seconds(cold.total)}
        note={warm ? `${seconds(warm.total)} warm` : "a warm compile was not timed"}
      />
      <Figure
        name="Memory traffic"
        value={bytes(after)}
        note={before ? `${((1 - after / before) * 100).toFixed(0)}% less than unfused` : ""}
      />
      <Figure
        name="Peak memory"
        value={largest ? bytes(largest.peak) : "–"}
        note={eager === null ? "" : `eager ${bytes(eager)}`}
      />
    </dl>
  );
}

function Stages() {
  const { cold, warm } = report.times;
  const names = [...new Set([...cold.stages, ...(warm?.stages ?? [])].map(([name]) => name))];
  const most = Math.max(...cold.stages.map(([, s]) => s), ...(warm?.stages ?? []).map(([, s]) => s), 1e-9);
  const of = (times: Times | null, name: string) => times?.stages.find(([n]) => n === name)?.[1] ?? 0;
  const bar = (times: Times | null, name: string, kind: string) => (
    <span class="bar">
      {of(times, name) > 0 && <i class={kind} style={{ width: `${(100 * of(times, name)) / most}%` }} />}
      <span>{of(times, name) ? seconds(of(times, name)) : "–"}</span>
    </span>
  );
  return (
    <table class="stages">
      <thead>
        <tr>
          <th scope="col">Stage</th>
          <th scope="col">Cold</th>
          <th scope="col">Warm</th>
        </tr>
      </thead>
      <tbody>
        {names
          .filter((name) => of(cold, name) + of(warm, name) > 0)
          .map((name) => (
            <tr>
              <th scope="row">{name}</th>
              <td>{bar(cold, name, "cold")}</td>
              <td>{bar(warm, name, "warm")}</td>
            </tr>
          ))}
      </tbody>
      <tfoot>
        <tr>
          <th scope="row">total</th>
          <td>{seconds(cold.total)}</td>
          <td>{warm ? seconds(warm.total) : "–"}</td>
        </tr>
      </tfoot>
    </table>
  );
}

function state(graph: Graph): string {
  if (graph.eager) return `eager mode: ${graph.eager}`;
  return graph.cached ? "read from the graph cache" : "compiled";
}

interface Cost {
  name: string;
  graph: number;
  step: number;
  uses: number;
  ms: number;
}

/** Equal kernels, and calls of one operator at one line of the model, together. */
function costs(): Cost[] {
  const found = new Map<string, Cost>();
  report.graphs.forEach((graph, g) =>
    graph.steps.forEach((step, s) => {
      if (step.ms === null) return;
      const key = step.kernel === null ? `${step.name} ${step.sources.join()}` : String(step.kernel);
      const cost = found.get(key) ?? { name: step.name, graph: g, step: s, uses: 0, ms: 0 };
      found.set(key, { ...cost, uses: cost.uses + 1, ms: cost.ms + step.ms });
    }),
  );
  return [...found.values()].sort((a, b) => b.ms - a.ms);
}

function Costliest() {
  const rows = costs();
  const total = sum(rows.map((row) => row.ms));
  const first = (row: Cost) => report.graphs[row.graph].steps[row.step];
  return (
    <Table
      label="Costliest kernels and calls"
      rows={rows.slice(0, 10)}
      empty="No launch was measured."
      columns={[
        {
          title: "Kernel or call",
          cell: (row) => (
            <a class="clip" href={href("kernel", row.graph, row.step)} title={row.name}>
              {op(row.name)}
            </a>
          ),
        },
        { title: "", cell: (row) => <Tag type={first(row).type}>{first(row).backend}</Tag> },
        { title: "Launches", number: true, cell: (row) => count(row.uses) },
        { title: "Time", number: true, cell: (row) => ms(row.ms) },
        { title: "Share", number: true, cell: (row) => `${((100 * row.ms) / total).toFixed(1)}%` },
        {
          title: "Model",
          cell: (row) => (
            <span class="clip">
              <Place source={first(row).sources[0] ?? null} />
            </span>
          ),
        },
      ]}
    />
  );
}

export function Summary() {
  return (
    <>
      {report.status ? (
        <p class="alert" role="note">
          The program ended with status {report.status}. What was compiled until then is shown.
        </p>
      ) : null}
      <Figures />
      <div class="columns">
        <section>
          <h2>Compile time</h2>
          <Stages />
        </section>
        <section>
          <h2>Costliest kernels and calls</h2>
          <Costliest />
        </section>
      </div>
      <section>
        <h2>Graphs</h2>
        <Table
          label="Graphs"
          rows={report.graphs.map((graph, i) => ({ graph, i }))}
          empty="Nothing was compiled with Polyfuse."
          columns={[
            {
              title: "Graph",
              cell: ({ graph, i }) =>
                isOpen(graph) ? <a href={href("graph", i)}>{graph.name}</a> : graph.name,
            },
            { title: "State", cell: ({ graph }) => state(graph) },
            { title: "Operators", number: true, cell: ({ graph }) => count(graph.operators), key: (r) => r.graph.operators },
            { title: "Launches", number: true, cell: ({ graph }) => count(graph.launches), key: (r) => r.graph.launches },
            { title: "Calls", number: true, cell: ({ graph }) => count(graph.calls), key: (r) => r.graph.calls },
            { title: "Traffic unfused", number: true, cell: ({ graph }) => bytes(graph.bytes_before), key: (r) => r.graph.bytes_before },
            { title: "fused", number: true, cell: ({ graph }) => bytes(graph.bytes_after), key: (r) => r.graph.bytes_after },
            {
              title: "One call",
              number: true,
              cell: ({ graph }) => (graph.timeline ? ms(graph.timeline.us / 1e3) : "–"),
              key: (r) => r.graph.timeline?.us ?? 0,
            },
          ]}
        />
      </section>
      <Reasons />
    </>
  );
}

function Reasons() {
  const fallbacks = report.graphs.flatMap((graph) => graph.fallbacks.map((f) => ({ graph: graph.name, ...f })));
  const replaced = report.graphs.flatMap((graph, g) =>
    graph.steps.map((step, s) => ({ step, g, s })).filter((row) => row.step.instead),
  );
  return (
    <>
      <section>
        <h2>Graph breaks</h2>
        <Table
          label="Graph breaks"
          rows={report.breaks}
          empty="None: each compiled function is one graph."
          columns={[
            { title: "Cause", cell: (row) => <Reason text={row.reason} /> },
            { title: "Where", cell: (row) => <Place source={row.source} /> },
            { title: "Times", number: true, cell: (row) => row.count },
          ]}
        />
      </section>
      <section>
        <h2>Recompilations</h2>
        <Table
          label="Recompilations"
          rows={report.recompilations}
          empty="None."
          columns={[
            { title: "Function", cell: (row) => <code>{row.function}</code> },
            { title: "Compile", cell: (row) => row.compile },
            { title: "The guard that failed", cell: (row) => <Reason text={row.reason} /> },
            { title: "Took", number: true, cell: (row) => seconds(row.seconds), key: (row) => row.seconds },
            { title: "Where", cell: (row) => <Place source={row.source} /> },
          ]}
        />
      </section>
      {report.failed.length > 0 && (
        <section>
          <h2>Functions that could not be captured</h2>
          <Table
            label="Functions that could not be captured"
            rows={report.failed}
            columns={[
              { title: "Function", cell: (row) => <code>{row.function}</code> },
              { title: "Cause", cell: (row) => <Reason text={row.reason} /> },
              { title: "Where", cell: (row) => <Place source={row.source} /> },
            ]}
          />
        </section>
      )}
      <section>
        <h2>Fallbacks to eager mode</h2>
        <Table
          label="Fallbacks to eager mode"
          rows={fallbacks}
          empty="None: all operators are generated kernels or library calls."
          columns={[
            { title: "Operator", cell: (row) => <code>{row.op}</code> },
            { title: "Why", cell: (row) => row.reason },
            { title: "Graph", cell: (row) => row.graph },
          ]}
        />
      </section>
      {replaced.length > 0 && (
        <section>
          <h2>Kernels by another backend than planned</h2>
          <Table
            label="Kernels by another backend than planned"
            rows={replaced}
            columns={[
              { title: "Kernel", cell: (row) => <a href={href("kernel", row.g, row.s)}>{row.step.name}</a> },
              { title: "By", cell: (row) => row.step.backend },
              { title: "Why", cell: (row) => <Reason text={row.step.instead} /> },
            ]}
          />
        </section>
      )}
      <section>
        <h2>Machine</h2>
        <p class="quiet">
          Polyfuse {report.machine.polyfuse}, torch {report.machine.torch}, Python {report.machine.python},{" "}
          {report.machine.system}, {report.machine.cpu}, {plural(report.machine.threads, "thread")}
          {report.machine.devices.length ? `, ${report.machine.devices.join(", ")}` : ""}
        </p>
      </section>
    </>
  );
}

/** The first line of a reason, and the rest when opened. */
export function Reason(props: { text: string }) {
  const [first, ...rest] = props.text.trim().split("\n");
  if (!rest.length) return <>{first}</>;
  return (
    <details>
      <summary>{first}</summary>
      <pre>{rest.join("\n").trim()}</pre>
    </details>
  );
}
