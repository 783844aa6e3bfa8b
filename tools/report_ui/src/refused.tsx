import { useMemo, useState } from "preact/hooks";
import { report } from "./data";
import { bytes, plural } from "./format";
import { GraphChoice, Table } from "./parts";
import { href, Route } from "./route";

/** A reason without the names in it, to count those that are alike. */
const kind = (reason: string): string => reason.replace(/ \([^()]*\)/g, "").replace(/ \(.*\)/, "").replace(/\b[a-z_]+\d[\w]*\b/g, "…").trim();

export function RefusedView(props: { route: Route }) {
  const number = props.route.graph;
  const graph = report.graphs[number];
  const [only, setOnly] = useState("");
  const kinds = useMemo(() => {
    const counts = new Map<string, number>();
    for (const pair of graph.refused) counts.set(kind(pair.reason), (counts.get(kind(pair.reason)) ?? 0) + 1);
    return [...counts].sort((a, b) => b[1] - a[1]);
  }, [graph]);
  const rows = useMemo(() => graph.refused.filter((r) => !only || kind(r.reason) === only), [graph, only]);
  const link = (step: number) => (
    <a href={href("kernel", number, step)}>
      {step + 1}. {graph.steps[step].name}
    </a>
  );
  return (
    <>
      <div class="toolbar">
        <GraphChoice view="refused" graph={number} />
        <label class="choice wide">
          Reason
          <select value={only} onChange={(e) => setOnly(e.currentTarget.value)}>
            <option value="">all</option>
            {kinds.map(([text, n]) => (
              <option value={text}>
                {text} ({n})
              </option>
            ))}
          </select>
        </label>
        <output>{plural(rows.length, "pair")}</output>
      </div>
      <p class="quiet">
        Pairs that touch a common buffer and were not fused, each with the reason that was found last. Shared is
        the size of what both touch: one kernel would move at most that much less.
      </p>
      <Table
        label="Pairs that were not fused"
        rows={rows}
        empty="No fusion was refused."
        columns={[
          { title: "First", cell: (r) => link(r.first), key: (r) => r.first },
          { title: "Second", cell: (r) => link(r.second), key: (r) => r.second },
          { title: "Why not", cell: (r) => r.reason, key: (r) => r.reason },
          { title: "Shared", number: true, cell: (r) => bytes(r.bytes), key: (r) => r.bytes },
        ]}
      />
      <section>
        <h2>Refused by backends, and not timed</h2>
        <Table
          label="Other refusals"
          rows={graph.decisions.filter((d) => d.kind === "backend" || d.kind === "declined")}
          empty="Nothing else was refused."
          columns={[
            { title: "What", cell: (d) => [d.first, d.second].filter(Boolean).join(": ") },
            { title: "Why", cell: (d) => d.reason },
            { title: "Times", number: true, cell: (d) => d.count, key: (d) => d.count },
          ]}
        />
      </section>
    </>
  );
}
