import { report, Use } from "./data";
import { bytes, count, ms, op, seconds } from "./format";
import { Empty, Table, Tag } from "./parts";
import { href } from "./route";

export function TuningView() {
  const rows = report.graphs.flatMap((graph, g) =>
    graph.tuning.flatMap((tuning) => tuning.trials.map((trial) => ({ graph, g, tuning, trial }))),
  );
  const known = report.graphs.flatMap((graph) =>
    graph.decisions
      .filter((d) => d.kind === "choice" || d.kind === "tune")
      .map((decision) => ({ graph: graph.name, decision })),
  );
  return (
    <>
      <p class="quiet">
        Every candidate that was built and timed, by the problem it was a candidate for. Compile with{" "}
        <code>mode="max-autotune"</code> to have more of them.
      </p>
      <Table
        label="Trials of autotuning"
        rows={rows}
        empty="Nothing was timed in this run."
        columns={[
          {
            title: "Problem",
            cell: (r) => {
              const step = r.graph.steps[r.tuning.steps[0]];
              return (
                <>
                  <a href={href("kernel", r.g, r.tuning.steps[0])}>{r.tuning.subject}</a>{" "}
                  <span class="quiet">{step.kernel === null ? step.ops.map(op).join(", ") : step.name}</span>
                </>
              );
            },
            key: (r) => r.tuning.subject,
          },
          { title: "Candidate", cell: (r) => <code>{r.trial.candidate}</code>, key: (r) => r.trial.candidate },
          { title: "Time", number: true, cell: (r) => ms(r.trial.ms), key: (r) => r.trial.ms ?? 1e12 },
          {
            title: "Against the fastest",
            number: true,
            cell: (r) => {
              const best = Math.min(...r.tuning.trials.map((t) => t.ms ?? Infinity));
              return r.trial.ms === null ? "–" : `${(r.trial.ms / best).toFixed(2)} ×`;
            },
          },
          {
            title: "Outcome",
            cell: (r) => (r.trial.chosen ? <Tag type="kernel">chosen</Tag> : r.trial.fault || ""),
          },
          { title: "Graph", cell: (r) => r.graph.name, key: (r) => r.graph.name },
        ]}
      />
      <h2>Decisions</h2>
      <Table
        label="Decisions of autotuning"
        rows={known}
        empty="None."
        columns={[
          { title: "What", cell: (r) => [r.decision.first, r.decision.second].filter(Boolean).join(": ") },
          { title: "Why", cell: (r) => r.decision.reason },
          { title: "Times", number: true, cell: (r) => count(r.decision.count) },
          { title: "Graph", cell: (r) => r.graph },
        ]}
      />
    </>
  );
}

function shown(name: string, value: number | null): string {
  if (value === null) return "–";
  if (name.startsWith("milliseconds")) return ms(value);
  if (name.startsWith("seconds")) return seconds(value);
  return name.includes("bytes") ? bytes(value) : count(value);
}

export function CompareView() {
  const found = report.compare;
  if (!found) {
    return (
      <Empty>
        Nothing to compare with: run <code>polyfuse report --compare old.html program.py</code>.
      </Empty>
    );
  }
  const time = (use: Use | null) => (use ? ms(use.ms) : "–");
  const changed = found.kernels.filter((k) => k.state !== "same");
  return (
    <>
      <p class="quiet">
        Before: {found.old.title} with Polyfuse {found.old.machine.polyfuse} and torch {found.old.machine.torch} on{" "}
        {found.old.machine.cpu}. A kernel is the same if its text is.
      </p>
      <Table
        label="Totals"
        rows={found.totals}
        columns={[
          { title: "", cell: ([name]) => name },
          { title: "Before", number: true, cell: ([name, old]) => shown(name, old) },
          { title: "Now", number: true, cell: ([name, , now]) => shown(name, now) },
          {
            title: "Change",
            number: true,
            cell: ([, old, now]) =>
              old === null || now === null || old === now ? "" : old ? `${(100 * (now / old - 1)).toFixed(1)}%` : "new",
          },
        ]}
      />
      <h2>Kernels and calls that differ</h2>
      <Table
        label="Kernels and calls that differ"
        rows={changed}
        empty="None: both runs use the same kernels and calls."
        columns={[
          { title: "Name", cell: (k) => k.name, key: (k) => k.name },
          { title: "", cell: (k) => <Tag type={k.state === "new" ? "kernel" : "fallback"}>{k.state}</Tag>, key: (k) => k.state },
          { title: "Backend", cell: (k) => k.backend },
          { title: "Uses", number: true, cell: (k) => (k.new ?? k.old)!.uses },
          { title: "Time", number: true, cell: (k) => time(k.new ?? k.old) },
        ]}
      />
      <h2>Kernels and calls in both</h2>
      <Table
        label="Kernels and calls in both runs"
        rows={found.kernels.filter((k) => k.state === "same")}
        columns={[
          { title: "Name", cell: (k) => k.name, key: (k) => k.name },
          { title: "Uses before", number: true, cell: (k) => k.old!.uses, key: (k) => k.old!.uses },
          { title: "Uses now", number: true, cell: (k) => k.new!.uses, key: (k) => k.new!.uses },
          { title: "Time before", number: true, cell: (k) => time(k.old), key: (k) => k.old!.ms ?? 0 },
          { title: "Time now", number: true, cell: (k) => time(k.new), key: (k) => k.new!.ms ?? 0 },
        ]}
      />
      {(["fallbacks", "breaks"] as const).map((what) => (
        <section>
          <h2>{what === "fallbacks" ? "Fallbacks" : "Graph breaks"}</h2>
          <Table
            label={`Changes of ${what}`}
            rows={[
              ...found[what].new.map((text) => ({ state: "new", text })),
              ...found[what].gone.map((text) => ({ state: "gone", text })),
            ]}
            empty="The same in both."
            columns={[
              { title: "", cell: (r) => <Tag type={r.state === "new" ? "fallback" : "kernel"}>{r.state}</Tag> },
              { title: "What", cell: (r) => r.text },
            ]}
          />
        </section>
      ))}
    </>
  );
}
