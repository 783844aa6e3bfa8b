import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { MemoryView, RooflineView, TimelineView } from "./charts";
import { isOpen, report } from "./data";
import { GraphView } from "./graph";
import { KernelView } from "./kernel";
import { CompareView, TuningView } from "./more";
import { Empty } from "./parts";
import { RefusedView } from "./refused";
import { href, Route, useRoute } from "./route";
import { Summary } from "./summary";

const VIEWS: [string, string][] = [
  ["summary", "Summary"],
  ["graph", "Graph"],
  ["kernel", "Kernels"],
  ["refused", "Not fused"],
  ["roofline", "Roofline"],
  ["memory", "Memory"],
  ["timeline", "Timeline"],
  ["tuning", "Autotuning"],
  ["compare", "Compare"],
];

const FIRST = Math.max(report.graphs.findIndex(isOpen), 0);

function useTheme(): [string, () => void] {
  const media = matchMedia("(prefers-color-scheme: dark)");
  const [theme, setTheme] = useState(media.matches ? "dark" : "light");
  useEffect(() => {
    const changed = () => setTheme(media.matches ? "dark" : "light");
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, () => setTheme(theme === "dark" ? "light" : "dark")];
}

function View(props: { route: Route; theme: string }) {
  const { route } = props;
  const ofGraph = ["graph", "kernel", "refused", "memory", "timeline"].includes(route.view);
  if (ofGraph && !(report.graphs[route.graph] && isOpen(report.graphs[route.graph]))) {
    return <Empty>No kernels are known of this graph. The summary says what was compiled.</Empty>;
  }
  switch (route.view) {
    case "graph":
      return <GraphView route={route} theme={props.theme} key={route.graph} />;
    case "kernel":
      return <KernelView route={route} />;
    case "refused":
      return <RefusedView route={route} key={route.graph} />;
    case "roofline":
      return <RooflineView route={route} />;
    case "memory":
      return <MemoryView route={route} />;
    case "timeline":
      return <TimelineView route={route} key={route.graph} />;
    case "tuning":
      return <TuningView />;
    case "compare":
      return <CompareView />;
    default:
      return <Summary />;
  }
}

function App() {
  const route = useRoute();
  const [theme, toggle] = useTheme();
  useEffect(() => {
    const keys = (event: KeyboardEvent) => {
      const typing = (event.target as HTMLElement).closest("input, select, textarea");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const number = Number(event.key);
      if (event.key === "/") {
        const search = document.getElementById("search");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      } else if (number >= 1 && number <= VIEWS.length) {
        location.hash = href(VIEWS[number - 1][0], route.graph || FIRST);
      }
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  }, [route.graph]);
  const views = VIEWS.filter(([name]) => name !== "compare" || report.compare);
  const [, name] = VIEWS.find(([view]) => view === route.view) ?? VIEWS[0];
  return (
    <>
      <a class="skip" href="#main" onClick={(e) => (e.preventDefault(), document.getElementById("main")!.focus())}>
        Skip to the content
      </a>
      <header>
        <div class="brand">
          <h1>
            {report.title} <small>Polyfuse report</small>
          </h1>
          <button type="button" onClick={toggle}>
            {theme === "dark" ? "Light" : "Dark"}
          </button>
        </div>
        <nav aria-label="Parts of the report">
          {views.map(([view, title]) => (
            <a
              href={href(view, ["summary", "tuning", "compare", "roofline"].includes(view) ? 0 : route.graph || FIRST)}
              aria-current={view === route.view ? "page" : undefined}
            >
              {title}
            </a>
          ))}
        </nav>
      </header>
      <main id="main" tabIndex={-1} aria-label={name}>
        <View route={route} theme={theme} />
      </main>
    </>
  );
}

const root = document.getElementById("app")!;
root.replaceChildren();
render(<App />, root);
