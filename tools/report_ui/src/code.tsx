import Prism from "prismjs/components/prism-core";
import "prismjs/components/prism-clike";
import "prismjs/components/prism-c";
import "prismjs/components/prism-cpp";
import "prismjs/components/prism-python";
import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";

Prism.manual = true;
Prism.languages.ir = {
  comment: /#.*/,
  keyword: /\b(?:kernel|on|numerics|axes|raxes|in|out|inout|size|alias|row_buffer|once|loop|hints|symbols|deterministic|aligned|if|else|set)\b/,
  builtin: /\b(?:load|store|const|cast|bitcast|reduce|scan|index|rand)\b/,
  "class-name": /\b(?:f16|bf16|f32|f64|i8|i16|i32|i64|u8|u16|u32|u64|bool)\b/,
  number: /-?\b\d+(?:\.\d+)?(?:e[-+]?\d+)?\b/i,
};

interface Token {
  type: string;
  content: string | Token | (string | Token)[];
}

/** A text as highlighted lines: elements, never HTML, since it is the user's. */
function lines(text: string, language: string): ComponentChildren[][] {
  const out: ComponentChildren[][] = [[]];
  const add = (part: string | Token | (string | Token)[], type: string): void => {
    if (Array.isArray(part)) return part.forEach((p) => add(p, type));
    if (typeof part !== "string") return add(part.content, part.type);
    part.split("\n").forEach((piece, i) => {
      if (i) out.push([]);
      if (piece) out[out.length - 1].push(type ? <span class={`t-${type}`}>{piece}</span> : piece);
    });
  };
  add(Prism.tokenize(text, Prism.languages[language] ?? {}), "");
  return out;
}

export function languageOf(name: string): string {
  return /python|triton/i.test(name) ? "python" : "cpp";
}

/** One text with numbered lines, of which one can be current and others are marked. */
export function Code(props: {
  label: string;
  text: string;
  language: string;
  first?: number;
  marked: Set<number>;
  current: number | null;
  onLine: (line: number) => void;
  /** Lines that have something to show; others cannot be chosen. */
  linked: Set<number>;
}) {
  const box = useRef<HTMLDivElement>(null);
  const rows = useMemo(() => lines(props.text, props.language), [props.text, props.language]);
  const goal = props.marked.size ? Math.min(...props.marked) : null;
  useEffect(() => {
    if (goal === null || props.current !== null) return;
    const line = box.current!.querySelectorAll<HTMLElement>(".line")[goal];
    if (line) box.current!.scrollTop = line.offsetTop - box.current!.clientHeight / 3;
  }, [goal, props.current]);
  const keys = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (!step) return;
    event.preventDefault();
    let line = props.current ?? (step > 0 ? -1 : rows.length);
    do line += step;
    while (line >= 0 && line < rows.length && !props.linked.has(line));
    if (line < 0 || line >= rows.length) return;
    props.onLine(line);
    box.current!.querySelectorAll(".line")[line]?.scrollIntoView({ block: "nearest" });
  };
  return (
    <div class="code" ref={box} tabIndex={0} role="region" aria-label={props.label} onKeyDown={keys}>
      {rows.map((row, i) => {
        const kind = i === props.current ? " current" : props.marked.has(i) ? " marked" : "";
        return (
          <div
            class={`line${kind}${props.linked.has(i) ? " linked" : ""}`}
            onMouseEnter={() => props.linked.has(i) && props.onLine(i)}
          >
            <span class="at">{(props.first ?? 1) + i}</span>
            <code>{row.length ? row : " "}</code>
          </div>
        );
      })}
    </div>
  );
}
