import * as Plot from "@observablehq/plot";
import { useEffect, useRef, useState } from "preact/hooks";

/** A chart of Observable Plot, drawn again when its width or its data change. */
export function Chart(props: {
  label: string;
  draw: (width: number) => Plot.PlotOptions;
  /** What the data depend on. */
  of: unknown[];
  /** Called with the datum under the pointer when the reader clicks. */
  pick?: (datum: unknown) => void;
}) {
  const box = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const element = box.current!;
    const watch = new ResizeObserver(() => setWidth(Math.round(element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  useEffect(() => {
    if (!width) return;
    const chart = Plot.plot({
      width,
      style: { background: "transparent", color: "var(--text)", fontFamily: "inherit", fontSize: "12px" },
      ...props.draw(width),
    });
    // the drawing is one image, which the box names; tables below it have the same for the keyboard
    chart.setAttribute("aria-hidden", "true");
    chart.querySelectorAll("[aria-label]").forEach((part) => part.removeAttribute("aria-label"));
    let under: unknown = null;
    chart.addEventListener("input", () => (under = chart.value));
    if (props.pick) {
      chart.addEventListener("click", () => under !== null && under !== undefined && props.pick!(under));
    }
    box.current!.replaceChildren(chart);
  }, [width, ...props.of]);
  return <div class="chart" ref={box} role="img" aria-label={props.label} />;
}

export { Plot };
