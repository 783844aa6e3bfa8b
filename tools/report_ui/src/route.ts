import { useEffect, useState } from "preact/hooks";

/** `#/view/graph/step`: where the reader is, so that links and the back button work. */
export interface Route {
  view: string;
  graph: number;
  step: number | null;
}

function parse(): Route {
  const [view, graph, step] = location.hash.replace(/^#\/?/, "").split("/");
  return { view: view || "summary", graph: Number(graph) || 0, step: step ? Number(step) : null };
}

export function href(view: string, graph = 0, step: number | null = null): string {
  return `#/${view}/${graph}${step === null ? "" : `/${step}`}`;
}

export function go(view: string, graph = 0, step: number | null = null): void {
  location.hash = href(view, graph, step);
}

export function useRoute(): Route {
  const [route, set] = useState(parse);
  useEffect(() => {
    const changed = () => set(parse());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}
