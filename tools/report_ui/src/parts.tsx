import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { isOpen, place, report } from "./data";
import { go } from "./route";

export interface Column<Row> {
  title: string;
  cell: (row: Row) => ComponentChildren;
  /** What is sorted by; a column without it cannot be sorted. */
  key?: (row: Row) => number | string;
  number?: boolean;
}

const SHOWN = 100;

/** A table that sorts by its headings, and shows its first rows until asked for all. */
export function Table<Row>(props: { label: string; rows: Row[]; columns: Column<Row>[]; empty?: string }) {
  const [by, setBy] = useState<[number, number] | null>(null);
  const [all, setAll] = useState(false);
  const rows = useMemo(() => {
    const key = by === null ? undefined : props.columns[by[0]].key;
    if (by === null || !key) return props.rows;
    return [...props.rows].sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      return by[1] * (x < y ? -1 : x > y ? 1 : 0);
    });
  }, [props.rows, by]);
  if (!rows.length) return <p class="quiet">{props.empty ?? "None."}</p>;
  const shown = all ? rows : rows.slice(0, SHOWN);
  return (
    <div class="table" tabIndex={0} role="region" aria-label={props.label}>
      <table>
        <thead>
          <tr>
            {props.columns.map((column, i) => {
              const sorted = by?.[0] === i ? (by[1] > 0 ? "ascending" : "descending") : undefined;
              return (
                <th scope="col" class={column.number ? "number" : ""} aria-sort={sorted}>
                  {column.key ? (
                    <button
                      type="button"
                      onClick={() => setBy([i, by?.[0] === i ? -by[1] : column.number ? -1 : 1])}
                    >
                      {column.title}
                      <span aria-hidden="true">{sorted ? (sorted === "ascending" ? " ↑" : " ↓") : ""}</span>
                    </button>
                  ) : (
                    column.title
                  )}
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr>
              {props.columns.map((column) => (
                <td class={column.number ? "number" : ""}>{column.cell(row)}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > shown.length && (
        <button type="button" class="more" onClick={() => setAll(true)}>
          Show all {rows.length.toLocaleString("en")}
        </button>
      )}
    </div>
  );
}

/** Chooses among the graphs that have something to show. */
export function GraphChoice(props: { view: string; graph: number }) {
  return (
    <label class="choice">
      Graph
      <select value={props.graph} onChange={(e) => go(props.view, Number(e.currentTarget.value))}>
        {report.graphs.map((graph, i) => (
          <option value={i} disabled={!isOpen(graph)}>
            {graph.name}
            {graph.eager ? " (eager mode)" : ""}
          </option>
        ))}
      </select>
    </label>
  );
}

export function Place(props: { source: number | null }) {
  if (props.source === null) return null;
  const source = report.sources[props.source];
  return (
    <span class="place" title={source.file === null ? "" : report.files[source.file].path}>
      <b>{place(props.source)}</b> <code>{source.file === null ? "" : source.code}</code>
    </span>
  );
}

export function Tag(props: { type: string; children: ComponentChildren }) {
  return <span class={`tag ${props.type}`}>{props.children}</span>;
}

export function Empty(props: { children: ComponentChildren }) {
  return <p class="empty">{props.children}</p>;
}
