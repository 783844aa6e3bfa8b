import { useMemo, useState } from "preact/hooks";
import { Code, languageOf } from "./code";
import { Kernel, report, Step } from "./data";
import { bytes, ms, op, perSecond, plural } from "./format";
import { Empty, GraphChoice, Place, Table, Tag } from "./parts";
import { go, href, Route } from "./route";

type Pane = "source" | "ir" | "code";

/** The pieces of the model's files that a kernel comes from, as one text. */
interface Model {
  text: string;
  /** For each line of the text, the place in a file that it is; empty for a heading. */
  places: string[];
  first: number;
}

function modelOf(step: Step): Model {
  const wanted = step.sources.map((s) => report.sources[s]).filter((s) => s.file !== null);
  const lines: string[] = [];
  const places: string[] = [];
  let first = 1;
  const files = [...new Set(wanted.map((s) => s.file!))];
  for (const file of files) {
    const near = wanted.filter((s) => s.file === file).map((s) => s.line);
    if (lines.length) lines.push(""), places.push("");
    if (files.length > 1) lines.push(`# ${report.files[file].path}`), places.push("");
    let last = 0;
    for (const [start, text] of report.files[file].parts) {
      text.split("\n").forEach((line, i) => {
        const number = start + i;
        if (!near.some((n) => Math.abs(n - number) <= 12)) return;
        if (last && number > last + 1) lines.push(`# … line ${number}`), places.push("");
        if (!last && files.length === 1) first = number;
        last = number;
        lines.push(line);
        places.push(`${file}:${number}`);
      });
    }
  }
  return { text: lines.join("\n"), places, first: places.includes("") ? 1 : first };
}

/** What a line in one pane marks in each. */
function useLinks(kernel: Kernel, model: Model) {
  return useMemo(() => {
    const at = new Map<string, number[]>();
    model.places.forEach((p, i) => p && at.set(p, [...(at.get(p) ?? []), i]));
    const rows = kernel.ir.split("\n").map((_, ir) => ({
      source: (kernel.source_links[ir] ?? []).flatMap((s) => {
        const row = report.sources[s];
        return at.get(`${row.file}:${row.line}`) ?? [];
      }),
      ir: [ir],
      code: kernel.code_links[ir] ?? [],
    }));
    const linked = (pane: Pane) =>
      new Set(rows.filter((r) => r.source.length || r.code.length).flatMap((r) => r[pane]));
    return { rows, linked: { source: linked("source"), ir: linked("ir"), code: linked("code") } };
  }, [kernel, model]);
}

function Panes(props: { kernel: Kernel; step: Step }) {
  const { kernel, step } = props;
  const [at, setAt] = useState<{ pane: Pane; line: number } | null>(null);
  const model = useMemo(() => modelOf(step), [step]);
  const { rows, linked } = useLinks(kernel, model);
  const marked = useMemo(() => {
    const near = at === null ? [] : rows.filter((row) => row[at.pane].includes(at.line));
    const of = (pane: Pane) => new Set(near.flatMap((row) => row[pane]));
    return { source: of("source"), ir: of("ir"), code: of("code") };
  }, [at, rows]);
  const pane = (name: Pane, title: string, text: string, language: string, first = 1) => (
    <section class="pane">
      <h2>{title}</h2>
      <Code
        label={title}
        text={text}
        language={language}
        first={first}
        marked={marked[name]}
        linked={linked[name]}
        current={at?.pane === name ? at.line : null}
        onLine={(line) => setAt({ pane: name, line })}
      />
    </section>
  );
  return (
    <div class="panes">
      {pane("source", "Model", model.text || "# the model's lines are not known: these operators\n# come from modules of torch, or from the compiler", "python", model.first)}
      {pane("ir", "IR", kernel.ir, "ir")}
      {pane("code", `Generated code: ${kernel.language}`, kernel.code, languageOf(kernel.language))}
    </div>
  );
}

export function KernelView(props: { route: Route }) {
  const { graph: number } = props.route;
  const graph = report.graphs[number];
  const at = props.route.step ?? 0;
  const step = graph.steps[at];
  if (!step) return <Empty>There is no such kernel.</Empty>;
  const kernel = step.kernel === null ? null : report.kernels[step.kernel];
  const refused = graph.refused.filter((r) => r.first === at || r.second === at);
  const uses = kernel === null ? 0 : graph.steps.filter((s) => s.kernel === step.kernel).length;
  return (
    <>
      <div class="toolbar">
        <GraphChoice view="kernel" graph={number} />
        <label class="choice wide">
          Launch or call
          <select value={at} onChange={(e) => go("kernel", number, Number(e.currentTarget.value))}>
            {graph.steps.map((s, i) => (
              <option value={i}>
                {i + 1}. {s.name}
              </option>
            ))}
          </select>
        </label>
        <a class="button" href={href("graph", number, at)}>
          Show in the graph
        </a>
      </div>
      <h2 class="title">
        {step.name} <Tag type={step.type}>{step.backend}</Tag>
      </h2>
      <p class="line-of-facts">
        <span>{ms(step.ms)}</span>
        <span>{bytes(step.bytes)}</span>
        {step.ms ? <span>{perSecond((1e3 * step.bytes) / step.ms, "B")}</span> : null}
        {step.ms && step.flops ? <span>{perSecond((1e3 * step.flops) / step.ms, "op")}</span> : null}
        {kernel && <span>{plural(uses, "launch", "launches")} in this graph</span>}
        {kernel?.config && <span>{kernel.config}</span>}
        <span>{step.ops.map(op).join(", ")}</span>
      </p>
      {step.instead && <p class="alert">{step.instead}</p>}
      {step.note && <p class="quiet">{step.note}</p>}
      {kernel ? (
        <>
          <p class="quiet hint">
            Point at a line, or move with the arrow keys, to see what belongs to it in the other texts.
          </p>
          <Panes key={`${number}/${at}`} kernel={kernel} step={step} />
        </>
      ) : (
        <section>
          <p>
            {step.type === "fallback"
              ? "This operator runs in eager mode: Polyfuse generates no code for it."
              : "A library computes this; Polyfuse generates no code for it."}
          </p>
          <ul class="places">
            {step.sources.map((s) => (
              <li>
                <Place source={s} />
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h2>Not fused with</h2>
        <Table
          label="Refused fusions of this kernel"
          rows={refused}
          empty="No fusion of it was refused."
          columns={[
            {
              title: "Other",
              cell: (r) => {
                const other = r.first === at ? r.second : r.first;
                return <a href={href("kernel", number, other)}>{graph.steps[other].name}</a>;
              },
            },
            { title: "Why", cell: (r) => r.reason },
            { title: "Shared", number: true, cell: (r) => bytes(r.bytes), key: (r) => r.bytes },
          ]}
        />
      </section>
    </>
  );
}
