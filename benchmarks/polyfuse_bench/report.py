"""The pages made from the result files: docs/performance.md, and the operators in docs/parity.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from polyfuse_bench.backends import DYNAMO, EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.kernels.case import SMALL
from polyfuse_bench.machine import Machine
from polyfuse_bench.opdb.status import GOOD, SKIP, STATUSES
from polyfuse_bench.results import RESULTS, read_results
from polyfuse_bench.timing import geometric_mean
from polyfuse_bench.tournament import gain, winner
from polyfuse_bench.tuning import MODE, seconds_of_choice

Row = dict[str, Any]
SWEEPS = (
    *(
        f"{kind}{device}"
        for device in ("", "-cuda")
        for kind in ("opdb", "opdb-dynamic", "opdb-gradients", "opdb-gradients-dynamic")
    ),
    "opdb-halide",
)
TITLES = {EAGER: "eager", DYNAMO: "Dynamo alone", INDUCTOR: "Inductor", POLYFUSE: "Polyfuse"}


def write_pages(docs: Path, results: Path = RESULTS) -> list[Path]:
    """Write every page whose results exist, and answer which."""
    docs.mkdir(parents=True, exist_ok=True)
    written = []
    for name, page in (("performance.md", performance_page(results)), ("parity.md", parity_page(results))):
        if page is not None:
            _put(docs / name, page)
            written.append(docs / name)
    return written


BEGIN, END = "<!-- operator results -->", "<!-- end of operator results -->"


def _put(path: Path, text: str) -> None:
    """Write a page; where one has a place for these results between two marks, only that is replaced."""
    before = path.read_text() if path.exists() else ""
    if BEGIN in before and END in before:
        text = before.partition(BEGIN)[0] + f"{BEGIN}\n{text.rstrip()}\n{END}" + before.partition(END)[2]
    path.write_text(text)


# ---- one line while measuring --------------------------------------------------------------------


def one_line(kind: str, row: Row) -> str:
    """A row of a campaign as one line of text."""
    label = " ".join(str(row[key]) for key in ("name", "mode", "size") if row.get(key))
    if "timings" in row:
        parts = [f"{_title(timing['name'])} {_time(timing['median'])}" for timing in row["timings"]]
        parts += [f"{_title(name)} error {error:.1e}" for name, error in row["errors"].items()]
    elif "races" in row:
        parts = [f"{winner(race)} by {gain(race):.2f}" for race in row["races"]]
    elif "cold" in row:
        parts = [
            f"{_title(name)} cold {_time(s)} warm {_time(row['warm'][name])}"
            for name, s in row["cold"].items()
        ]
    else:
        parts = [
            f"{_title(name)} peak {_size(peak['run_peak'])}" for name, peak in row.get("peaks", {}).items()
        ]
    parts += [f"{_title(name)} FAILED: {text}" for name, text in row["failures"].items()]
    return f"{kind} {label}: {', '.join(parts)}"


# ---- performance ---------------------------------------------------------------------------------


def performance_page(results: Path) -> str | None:
    sections = [
        section
        for kind, make in (
            ("models", _models_section),
            ("kernels", _kernels_section),
            ("linear", _linear_section),
            ("products", _products_section),
            ("compile", _compile_section),
            ("build", _build_section),
            ("tuning", _tuning_section),
            ("tournament", _tournament_section),
            ("memory", _memory_section),
        )
        for content in _variants(kind, results)
        for section in [make(content)]
    ]
    if not sections:
        return None
    head = [
        "# Performance",
        "",
        "Polyfuse beside eager mode and Inductor, measured in one process in interleaved rounds; each",
        "figure is a median over rounds. A ratio above 1 means that Polyfuse is better. `make bench`",
        "measures again and writes this page; it is never edited by hand.",
        "",
    ]
    return "\n".join([*head, *(line for section in sections for line in section)]).rstrip() + "\n"


def _variants(kind: str, results: Path) -> list[dict[str, Any]]:
    """The results of a kind: those of the CPU, then those of devices and variants, by name."""
    others = sorted(path.stem for path in results.glob(f"{kind}-*.json"))
    return [content for name in (kind, *others) if (content := read_results(name, results)) is not None]


def _place(content: dict[str, Any]) -> str:
    """The device in a heading; nothing for the CPU."""
    return f" on {content['device_name']}" if content.get("device_name") else ""


def _manner(content: dict[str, Any]) -> str:
    """What all compilers were asked for, in a heading."""
    modes = {name.partition(":")[2] for name in content.get("backends", ()) if name != EAGER}
    return f", {modes.pop()}" if len(modes) == 1 and modes != {""} else ""


def _sizes(content: dict[str, Any]) -> str:
    """The type and the batch in a heading, where all rows have the same and it is not the usual one."""
    types = {row.get("dtype") or "float32" for row in content["rows"]}
    batches = {row.get("batch") for row in content["rows"]}
    found = f", {types.pop()}" if len(types) == 1 and types != {"float32"} else ""
    return found + (f", batch {batches.pop()}" if len(batches) == 1 and batches != {None} else "")


def _plugin(content: dict[str, Any]) -> str:
    """The plugin that is looked at, in a heading, where several were asked for."""
    plugins = [
        name.partition("@")[2] for name in content.get("backends", ()) if name.startswith(f"{POLYFUSE}@")
    ]
    return f", {plugins[-1]} beside others" if plugins else ""


def _models_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Models{_manner(content)}{_sizes(content)}{_place(content)}",
        "",
        "Real widths, reduced depth and vocabulary, random weights. *train* is the forward, a loss and all",
        "gradients. *error*: of Polyfuse's results and gradients beside eager mode's, as parts of the",
        "largest; in brackets, where measured, eager mode's own where each weight is one rounding larger or",
        "is not (a rectifier whose input is all but zero decides gradients).",
        "",
        *_facts(content),
    ]
    for mode in _in_order(row["mode"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["mode"] == mode]
        lines += [f"### {mode}", "", *_timing_table(rows, "model", _model_label), ""]
    return lines


def _model_label(row: Row) -> str:
    """The name, and what is not usual about the row."""
    parts = [row["name"]]
    if row.get("batch"):
        parts.append(f"batch {row['batch']}")
    if row.get("dtype", "float32") != "float32":
        parts.append(row["dtype"])
    return ", ".join(parts)


def _kernels_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Kernels{_plugin(content)}{_place(content)}",
        "",
        "One fused function each; *train* cases run the gradients too.",
        "",
        *_facts(content),
    ]
    for size in _in_order(row["size"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["size"] == size]
        lines += [f"### {size}", "", *_timing_table(rows, "kernel", lambda row: row["name"]), ""]
    failing = [
        [row["name"], _title(name), _cell(words)]
        for row in content["rows"]
        for name, words in row["failures"].items()
    ]
    if failing:
        lines += ["What failed:", "", *_text_table(["kernel", "by", "reason"], failing), ""]
    if content.get("copy_rate"):
        lines += _bandwidth_table(content)
    return lines


def _linear_section(content: dict[str, Any]) -> list[str]:
    return [
        f"## Linear layers{_place(content)}",
        "",
        "Rows by inputs by outputs, with a bias and what follows. Both compilers choose by timing. *over the",
        "best*: beside the faster of the others.",
        "",
        *_facts(content),
        *_timing_table(content["rows"], "layer", lambda row: row["name"], best=True),
        "",
    ]


def _products_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Matrix products{_place(content)}",
        "",
        "Rows by depth by columns, and what follows; the device's time alone. Both compilers choose by",
        "timing. *over the best*: beside the faster of the others.",
        "",
        *_facts(content),
    ]
    if content.get("ahead"):
        lines += [
            f"Beforehand, up to {content['ahead']} processes side by side compiled and chose, caches empty.",
            "Then, with nothing beside it, each row was timed in interleaved rounds, one after the other.",
            "",
        ]
    for dtype in _in_order(row["dtype"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["dtype"] == dtype]
        table = _timing_table(rows, "product", lambda row: row["name"], best=True)
        rate = content.get("matrix_rates", {}).get(dtype)
        lines += [f"### {dtype}", "", *table, "", *(_rate_table(rows, rate) if rate else ())]
    return lines


def _rate_table(rows: Sequence[Row], rate: float) -> list[str]:
    """Long plain products beside what the matrix units do alone."""
    table = []
    for row in rows:
        medians = {timing["name"].partition(":")[0]: timing["median"] for timing in row["timings"]}
        if row["flop"] / rate < _LONG_PRODUCT or POLYFUSE not in medians or EAGER not in medians:
            continue
        rates = [row["flop"] / medians[name] for name in (EAGER, POLYFUSE)]
        table.append([row["name"], *(f"{one / 1e12:.0f}" for one in rates), f"{rates[1] / rate:.0%}"])
    if not table:
        return []
    return [
        f"Multiplying what lies in shared memory already reaches {rate / 1e12:.0f} TFLOP/s; beside that:",
        "",
        *_markdown(["product", "eager, TFLOP/s", "Polyfuse, TFLOP/s", "of the rate"], table),
        "",
    ]


_LONG_PRODUCT = 5e-4
"""Seconds that a product takes at least to show a device's sustained rate."""


def _bandwidth_table(content: dict[str, Any]) -> list[str]:
    """Bytes that must move (arguments and results, once each) per second, beside the device's copy; nothing
    of sizes that measure the call alone.
    """
    rate = content["copy_rate"]
    table = []
    for row in content["rows"]:
        medians = {timing["name"]: timing["median"] for timing in row["timings"]}
        if row.get("train") or row["size"] == SMALL or POLYFUSE not in medians or not row.get("moved_bytes"):
            continue
        reached = row["moved_bytes"] / medians[POLYFUSE]
        table.append([row["name"], f"{reached / 1e12:.2f} TB/s", f"{reached / rate:.0%}"])
    if not table:
        return []
    return [
        f"### Bandwidth, beside a copy's {rate / 1e12:.2f} TB/s",
        "",
        *_markdown(["kernel", "Polyfuse", "of the copy"], table),
        "",
    ]


def _timing_table(
    rows: Sequence[Row], what: str, label: Callable[[Row], str], *, best: bool = False
) -> list[str]:
    """Medians, the ratios to eager and Inductor (and to the `best` of them), and their geometric means in
    the last row.
    """
    names = _in_order(timing["name"] for row in rows for timing in row["timings"])
    mine = next((name for name in names if name.partition(":")[0] == POLYFUSE), None)
    # of several plugins, the one that was named last is looked at
    mine = mine or next((name for name in reversed(names) if name.startswith(f"{POLYFUSE}@")), None)
    compared = [name for name in names if name != mine] if mine else []
    header = [
        what,
        *(_title(name) for name in names),
        *(f"over {_title(name)}" for name in compared),
        *(("over the best",) if best else ()),
        "error",
    ]
    ratios: dict[str, list[float]] = {name: [] for name in compared}
    bests: list[float] = []
    table = []
    for row in rows:
        medians = {timing["name"]: timing["median"] for timing in row["timings"]}
        cells = [label(row), *(_time(medians[name]) if name in medians else "failed" for name in names)]
        for name in compared:
            if name in medians and mine in medians:
                ratios[name].append(medians[name] / medians[mine])
                cells.append(f"{ratios[name][-1]:.2f}×")
            else:
                cells.append("")
        if best:
            others = [medians[name] for name in compared if name in medians]
            cells.append(f"{min(others) / medians[mine]:.2f}×" if others and mine in medians else "")
            if cells[-1]:
                bests.append(min(others) / medians[mine])
        error = row["errors"].get(mine or (names[-1] if names else ""))
        own = row.get("own_error")
        table.append([*cells, _error(error) + (f" ({_error(own)})" if own is not None else "")])
    columns = [*(ratios[name] for name in compared), *([bests] if best else [])]
    means = [f"**{mean:.2f}×**" if (mean := geometric_mean(column)) else "" for column in columns]
    return _markdown(header, [*table, ["**geometric mean**", *([""] * len(names)), *means, ""]])


def _compile_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Compile time{_place(content)}",
        "",
        "From `torch.compile` to the first result in a fresh process. *cold*: every cache empty; *warm*: a",
        "second process with the first one's caches.",
        "",
        *_facts(content),
    ]
    for start in ("cold", "warm"):
        table, ratios = [], []
        names = _in_order(name for row in content["rows"] for name in row[start])
        for row in content["rows"]:
            seconds = row[start]
            ratio = seconds[INDUCTOR] / seconds[POLYFUSE] if {INDUCTOR, POLYFUSE} <= set(seconds) else None
            ratios += [ratio] if ratio else []
            cells = [_time(seconds[name]) if name in seconds else "failed" for name in names]
            table.append([f"{row['name']}, {row['mode']}", *cells, f"{ratio:.2f}×" if ratio else ""])
        mean = geometric_mean(ratios)
        table.append(["**geometric mean**", *([""] * len(names)), f"**{mean:.2f}×**" if mean else ""])
        lines += [f"### {start}", "", *_markdown(["target", *map(_title, names), "over Inductor"], table), ""]
    return lines


def _build_section(content: dict[str, Any]) -> list[str]:
    names = _in_order(name for row in content["rows"] for name in row["cold"] if name != DYNAMO)
    table, ratios = [], []
    for row in content["rows"]:
        # what Dynamo takes by itself is no backend's
        seconds = {name: row["cold"][name] - row["cold"].get(DYNAMO, 0.0) for name in row["cold"]}
        cells = [_time(seconds[name]) if name in seconds else "failed" for name in names]
        table.append([row["name"].removeprefix("kernel:"), *cells])
        if INDUCTOR in seconds:
            ratios.append([seconds[name] / seconds[INDUCTOR] if name in seconds else None for name in names])
    means = [geometric_mean([r for r in column if r]) for column in zip(*ratios, strict=True)]
    table.append(["**of Inductor's**", *(f"**{mean:.2f}×**" if mean else "" for mean in means)])
    return [
        f"## Building one kernel{_place(content)}",
        "",
        "The first call of one more function in a process that has compiled one already, with caches that do",
        "not know it, less what Dynamo takes.",
        "",
        *_facts(content),
        *_markdown(["kernel", *map(_title, names)], table),
        "",
    ]


_TUNING_COLUMNS = (
    "target",
    "Inductor",
    "Polyfuse",
    "of Inductor's",
    "added by Inductor",
    "added by Polyfuse",
)


def _tuning_section(content: dict[str, Any]) -> list[str]:
    table = []
    for row in content["rows"]:
        for start in ("cold", "warm"):
            theirs, ours = (row[start].get(f"{name}:{MODE}") for name in (INDUCTOR, POLYFUSE))
            added = [seconds_of_choice(row[start], name) for name in (INDUCTOR, POLYFUSE)]
            cells = ["failed" if s is None else _time(s) if s else "0 s" for s in (theirs, ours, *added)]
            ratio = f"{ours / theirs:.2f}×" if ours is not None and theirs else ""
            table.append([f"{row['name']}, {row['mode']}, {start}", *cells[:2], ratio, *cells[2:]])
    return [
        f"## Tuning time{_place(content)}",
        "",
        f"From `torch.compile` with `mode={MODE!r}` to the first result in a fresh process, and what the",
        "mode adds to that. *cold*: every cache empty; *warm*: a second process with the first one's caches.",
        "",
        *_facts(content),
        *_markdown([*_TUNING_COLUMNS], table),
        "",
    ]


def _tournament_section(content: dict[str, Any]) -> list[str]:
    races = [(row["name"], race) for row in content["rows"] for race in row["races"]]
    table = []
    for name, race in races:
        order = sorted(race["milliseconds"].items(), key=lambda pair: pair[1])
        times = ", ".join(f"{backend} {_time(ms / 1e3)}" for backend, ms in order)
        table.append([name, winner(race), times, f"{gain(race):.2f}×"])
    mean = geometric_mean([gain(race) for _, race in races])
    if mean:
        table.append(["**geometric mean**", "", "", f"**{mean:.2f}×**"])
    return [
        f"## Tournament{_place(content)}",
        "",
        "Kernels that several backends generate, each in its best configuration; *gain* is over the backend",
        "that is asked first.",
        "",
        *_facts(content),
        *_markdown(["function", "fastest", "times", "gain"], table),
        "",
    ]


def _memory_section(content: dict[str, Any]) -> list[str]:
    names = _in_order(name for row in content["rows"] for name in row["peaks"])
    columns = [(name, peak) for peak in ("run_peak", "torch_peak") for name in names]
    titles = {"run_peak": "resident", "torch_peak": "torch"}
    table = [
        [
            f"{row['name']}, {row['mode']}",
            *(
                _size(row["peaks"][name][peak]) if name in row["peaks"] else "failed"
                for name, peak in columns
            ),
        ]
        for row in content["rows"]
    ]
    return [
        f"## Peak memory{_place(content)}",
        "",
        "Of one compiled call, above what is held before it. *resident*: the operating system's high-water",
        "mark; *torch*: live allocations of torch's CPU allocator.",
        "",
        *_facts(content),
        *_markdown(["target", *(f"{_title(name)} {titles[peak]}" for name, peak in columns)], table),
        "",
    ]


# ---- parity --------------------------------------------------------------------------------------


def parity_page(results: Path) -> str | None:
    """A section for each sweep that was made: counts, and the operators that fail."""
    sweeps = [content for kind in SWEEPS if (content := read_results(kind, results)) is not None]
    if not sweeps:
        return None
    head = [
        "## Operators",
        "",
        "Every operator of torch's test database, compiled and compared with eager in value, shape and",
        "dtype. `python -m polyfuse_bench opdb` makes the results, `report` this page; never edited by hand.",
        "",
    ]
    sections = [line for content in sweeps for line in _parity_section(content)]
    rows = [row for sweep in sweeps for row in sweep["rows"]]
    excluded = sorted({(row["op"], row["detail"]) for row in rows if row["status"] == SKIP})
    eager = sorted({text for row in rows for text in row["fallbacks"]})
    tail = [
        "### Left out",
        "",
        *_text_table(["operator", "reason"], [(f"`{op}`", why) for op, why in excluded]),
        "",
        "### Computed by eager kernels inside compiled graphs",
        "",
        *_text_table(["operator", "reason"], [_fallback_cells(text) for text in eager]),
    ]
    return "\n".join([*head, *sections, *tail, ""])


def _fallback_cells(text: str) -> tuple[str, str]:
    """An operator and why it has no kernel, from "operator: reason"."""
    operator, _, reason = text.partition(": ")
    return f"`{operator}`", _cell(reason)


def _parity_section(content: dict[str, Any]) -> list[str]:
    rows, settings = content["rows"], content["settings"]
    dtypes = _in_order(row["dtype"] for row in rows)
    counts = [
        [status, *(str(sum(r["status"] == status and r["dtype"] == dtype for r in rows)) for dtype in dtypes)]
        for status in STATUSES
        if any(row["status"] == status for row in rows)
    ]
    failing = [
        [f"`{row['op']}`", row["dtype"], row["status"], _cell(row["detail"])]
        for row in rows
        if row["status"] not in GOOD
    ]
    what = "Gradients" if settings["gradients"] else "Results"
    plugin = settings["backend"].partition("@")[2]
    sizes = "dynamic" if settings["dynamic"] else "static"
    return [
        f"### {what}, {sizes} sizes{_place(content)}{f', {plugin} alone' if plugin else ''}",
        "",
        f"{_title(settings['backend'])}, the first {settings['samples']} samples of each operator and dtype.",
        *_facts(content),
        *_markdown(["status", *dtypes], counts),
        "",
        "Operators that differ:",
        "",
        *_text_table(["operator", "dtype", "status", "detail"], failing),
        "",
    ]


# ---- text ----------------------------------------------------------------------------------------


def _facts(content: dict[str, Any]) -> list[str]:
    facts = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content["machine"].items()
    }
    return [f"Measured {content['taken'][:10]} on {Machine(**facts).summary()}.", ""]


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]], others: str = "--:") -> list[str]:
    """A table whose first column is aligned left and whose `others` are figures unless told otherwise."""
    rule = [":--", *(others for _ in header[1:])]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]


def _text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return _markdown(header, rows, ":--") if rows else ["None."]


def _in_order(values: Iterable[str]) -> list[str]:
    """The distinct values in the order they first appear."""
    return list(dict.fromkeys(values))


def _title(name: str) -> str:
    backend, _, mode = name.partition(":")
    backend, _, plugin = backend.partition("@")
    return " ".join(filter(None, (TITLES.get(backend, backend), plugin and f"({plugin})", mode)))


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale or unit == "µs":
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds / scale:.0f} {unit}"
            )
    raise AssertionError("unreachable: the last unit takes all")


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


def _error(error: float | str | None) -> str:
    if error is None:
        return ""
    return f"{float(error):.0e}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")[:160]
