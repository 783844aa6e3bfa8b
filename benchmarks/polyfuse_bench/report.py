"""The pages made from the result files: docs/performance.md, the README's table and chart, and tables in
docs/parity.md and docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from polyfuse_bench.autotune_backends import gain, winner
from polyfuse_bench.backends import DYNAMO, EAGER, INDUCTOR, POLYFUSE
from polyfuse_bench.kernels.case import SMALL
from polyfuse_bench.report_architectures import architectures_page
from polyfuse_bench.report_autotuning import autotuning_table
from polyfuse_bench.report_callers import callers_line, callers_section
from polyfuse_bench.report_chart import kernels_chart, speed_chart
from polyfuse_bench.report_distributed import parallel_training_section, two_devices_section
from polyfuse_bench.report_engines import (
    engines_chart,
    engines_readme,
    engines_section,
    engines_slower,
)
from polyfuse_bench.report_fusion_rules import fusion_rules_section
from polyfuse_bench.report_fuzz import fuzz_table
from polyfuse_bench.report_gemm import gemm_section, tilings_section
from polyfuse_bench.report_parity import parity_page
from polyfuse_bench.report_serving import serving_section
from polyfuse_bench.report_sizes import any_size_line, any_size_section, layers_line, layers_section
from polyfuse_bench.report_summary import TIMED, Group, groups, readme_table, summary
from polyfuse_bench.report_text import (
    by_backend,
    cell,
    facts,
    in_order,
    markdown,
    on_device,
    other_threads,
    size_text,
    sizes,
    text_table,
    time_text,
    timing_table,
    title,
)
from polyfuse_bench.results import RESULTS, read_results
from polyfuse_bench.serving import total
from polyfuse_bench.timing import geometric_mean
from polyfuse_bench.tuning import MODE, seconds_of_choice

Row = dict[str, Any]


def write_pages(docs: Path, results: Path = RESULTS) -> list[Path]:
    """Write every page whose results exist, and answer which."""
    docs.mkdir(parents=True, exist_ok=True)
    written = []
    pages = (
        ("performance.md", "", performance_page(results)),
        ("parity.md", "operator", parity_page(results)),
        ("architectures.md", "", architectures_page(results)),
        ("correctness.md", "random program", fuzz_table(results)),
        ("autotuning.md", "autotuning", autotuning_table(speed_groups(results), results)),
        ("../README.md", "speed", readme_table(speed_groups(results))),
        ("../README.md", "engine", engines_readme(results)),
        ("speed.svg", "", speed_chart(speed_groups(results))),
        ("engines.svg", "", engines_chart(results)),
        ("kernels.svg", "", kernels_chart(speed_groups(results))),
    )
    for name, part, page in pages:
        if page is not None:
            _put(docs / name, page, part)
            written.append(docs / name)
    return written


def _put(path: Path, text: str, part: str) -> None:
    """Write a page; where one has two marks for these results, only that is replaced."""
    before = path.read_text() if path.exists() else ""
    begin, end = f"<!-- {part} results -->", f"<!-- end of {part} results -->"
    if begin in before and end in before:
        text = before.partition(begin)[0] + f"{begin}\n{text.rstrip()}\n{end}" + before.partition(end)[2]
    path.write_text(text)


# ---- one line while measuring --------------------------------------------------------------------


def one_line(kind: str, row: Row) -> str:
    """A row of a campaign as one line of text."""
    label = " ".join(str(row[key]) for key in ("name", "mode", "size") if row.get(key))
    if "timings" in row:
        parts = [f"{title(timing['name'])} {time_text(timing['median'])}" for timing in row["timings"]]
        parts += [f"{title(name)} error {error:.1e}" for name, error in row["errors"].items()]
    elif "tilings" in row:
        parts = [f"{key} {time_text(row[key])}" for key in ("best", "offered", "first") if key in row]
    elif "trials" in row:
        parts = [f"{winner(trial)} by {gain(trial):.2f}" for trial in row["trials"]]
    elif "starts" in row:
        parts = [f"{title(name)} {time_text(total(starts))}" for name, starts in row["starts"].items()]
    elif "calls" in row:
        parts = any_size_line(row)
    elif "rates" in row:
        parts = callers_line(row)
    elif "seconds" in row:
        parts = layers_line(row)
    elif "cold" in row:
        parts = [
            f"{title(name)} cold {time_text(s)} warm {time_text(row['warm'][name])}"
            for name, s in row["cold"].items()
        ]
    else:
        parts = [
            f"{title(name)} peak {size_text(peak['run_peak'])}" for name, peak in row.get("peaks", {}).items()
        ]
    parts += [f"{title(name)} FAILED: {text}" for name, text in row["failures"].items()]
    return f"{kind} {label}: {', '.join(parts)}"


# ---- performance ---------------------------------------------------------------------------------


def performance_page(results: Path) -> str | None:
    sections = [
        section
        for kind, make in (
            ("engines", engines_section),
            ("models", _models_section),
            ("kernels", _kernels_section),
            ("linear", _linear_section),
            ("weights", _weights_section),
            ("decode", _decode_section),
            ("flex", _flex_section),
            ("gemm", gemm_section),
            ("tilings", tilings_section),
            ("compile", _compile_section),
            ("build", _build_section),
            ("serving", serving_section),
            ("callers", callers_section),
            ("layers", layers_section),
            ("any_size", any_size_section),
            ("tuning", _tuning_section),
            ("autotune_backends", _autotune_backends_section),
            ("memory", _memory_section),
            ("host", _host_section),
            ("fusion_rules", fusion_rules_section),
            ("two_devices", two_devices_section),
            ("parallel_training", parallel_training_section),
        )
        for content in _variants(kind, results)
        for section in [make(content)]
    ]
    if not sections:
        return None
    head = [
        "# Performance",
        "",
        "This page shows how fast Polyfuse is beside eager mode, Inductor and other engines, where it is",
        "slower, and how to repeat a row. Candidates run in one process in interleaved rounds; each figure",
        "is a median over rounds. A ratio above 1 means that Polyfuse is better. `make bench` measures again",
        "and writes this page with its charts; it is never edited by hand.",
        "",
        *charts(results),
        *summary(speed_groups(results)),
        *engines_slower(results),
    ]
    page = "\n".join([*head, *(line for section in sections for line in _distinguished(section))])
    return page.rstrip() + "\n"


def charts(results: Path) -> list[str]:
    """The drawings for which there are results."""
    groups_found = speed_groups(results)
    drawn = (
        ("Inference of networks over eager mode, by engine", "engines.svg", engines_chart(results)),
        ("Inference of models over eager mode", "speed.svg", speed_chart(groups_found)),
        ("Fused functions over Inductor", "kernels.svg", kernels_chart(groups_found)),
    )
    return [line for words, name, drawing in drawn if drawing for line in (f"![{words}]({name})", "")]


def speed_groups(results: Path) -> list[Group]:
    """What was timed beside eager mode and Inductor, under the headings of the page."""
    sections = {"models": _models_section, "kernels": _kernels_section, "linear": _linear_section}
    sections["gemm"] = gemm_section
    return groups(
        (sections[kind](content)[0].removeprefix("## "), content)
        for kind in TIMED
        for content in _variants(kind, results)
    )


def _distinguished(section: list[str]) -> list[str]:
    """A section whose inner headings repeat the outer one, so that no two on the page are equal."""
    outer = section[0].removeprefix("## ")
    return [f"{line}: {outer}" if line.startswith("### ") else line for line in section]


def _variants(kind: str, results: Path) -> list[dict[str, Any]]:
    """The results of a kind: those of the CPU, then those of devices and variants, by name."""
    others = sorted(path.stem for path in results.glob(f"{kind}-*.json"))
    return [content for name in (kind, *others) if (content := read_results(name, results)) is not None]


def _manner(content: dict[str, Any]) -> str:
    """What all compilers were asked for, in a heading."""
    modes = {name.partition(":")[2] for name in content.get("backends", ()) if name != EAGER}
    return f", {modes.pop()}" if len(modes) == 1 and modes != {""} else ""


def _plugin(content: dict[str, Any]) -> str:
    """The plugin that is looked at, in a heading, where several were asked for."""
    plugins = [
        name.partition("@")[2] for name in content.get("backends", ()) if name.startswith(f"{POLYFUSE}@")
    ]
    return f", {plugins[-1]} beside others" if plugins else ""


def _models_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Models{_manner(content)}{sizes(content)}{_one_mode(content)}{on_device(content)}",
        "",
        "Real widths, reduced depth and vocabulary, random weights. *train* is the forward, a loss and all",
        "gradients. *error*: of Polyfuse's results and gradients beside eager mode's, as parts of the",
        "largest; in brackets, where measured, eager mode's own where each weight is one rounding larger or",
        "is not (ReLU inputs near 0 flip gradients).",
        "",
        *facts(content),
    ]
    for mode in in_order(row["mode"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["mode"] == mode]
        lines += [f"### {mode}", "", *timing_table(rows, "model", _model_label), ""]
    return lines


def _one_mode(content: dict[str, Any]) -> str:
    """That it is training alone, in a heading."""
    return ", training" if {row["mode"] for row in content["rows"]} == {"train"} else ""


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
        f"## Kernels{_plugin(content)}{_one_size(content)}{other_threads(content)}{on_device(content)}",
        "",
        "One fused function each; *train* cases run the gradients too.",
        "",
        *facts(content),
    ]
    for size in in_order(row["size"] for row in content["rows"]):
        rows = [row for row in content["rows"] if row["size"] == size]
        lines += [f"### {size}", "", *timing_table(rows, "kernel", lambda row: row["name"]), ""]
    failing = [
        [row["name"], title(name), cell(words)]
        for row in content["rows"]
        for name, words in row["failures"].items()
    ]
    if failing:
        lines += ["What failed:", "", *text_table(["kernel", "by", "reason"], failing), ""]
    if content.get("copy_rate"):
        lines += _bandwidth_table(content)
    return lines


def _one_size(content: dict[str, Any]) -> str:
    """The size in a heading, where there is one."""
    found = {row["size"] for row in content["rows"]}
    return f", {found.pop()}" if len(found) == 1 else ""


def _linear_section(content: dict[str, Any]) -> list[str]:
    words = (
        "Rows by inputs by outputs, with a bias and what follows. Both compilers choose by timing. *over the",
        "best*: beside the faster of the others.",
    )
    return _one_table(content, "Linear layers", words, "layer", best=True)


def _weights_section(content: dict[str, Any]) -> list[str]:
    words = (
        "Rows by inputs by outputs of two linear layers with SiLU between them. *int8*: weights are stored",
        "with 8 bits and dequantised; *full*: with the type of the activations. Nothing is autotuned.",
    )
    return _one_table(content, "Weights of 8 bits", words, "layers")


def _decode_section(content: dict[str, Any]) -> list[str]:
    words = (
        "One step of a Llama with a static cache of 1,024 positions, by its sequences: *1b* has the",
        "sizes of the model with a billion parameters, *8b* a quarter of the layers of the one with eight.",
        "*reduce-overhead* records a device graph. *two_layers*: two of 1b's layers, 32,000 words, one row;",
        "*int8*: a scale for each result; *int4*: two numbers in a byte, groups of 128.",
    )
    names = by_backend(timing["name"] for row in content["rows"] for timing in row["timings"])
    heading = "Decoding, autotuned" if any("max-autotune" in name for name in names) else "Decoding"
    rate, table = content.get("copy_rate"), []
    alone = {row["name"].endswith("_1") for row in content["rows"]}
    if rate and len(alone) == 1:
        heading += ", one sequence" if alone == {True} else ", several sequences"
    for row in content["rows"]:
        roof = rate or row["read_rate"]
        medians = {timing["name"]: timing["median"] for timing in row["timings"]}
        shares = [f"{row['moved_bytes'] / medians[n] / roof:.0%}" if n in medians else "" for n in names]
        table.append([row["name"], *shares])
    words_of_rate = f"a copy's {rate / 1e12:.2f} TB/s" if rate else "what a sum of half a gibibyte reads"
    return [
        *_one_table(content, heading, words, "model and sequences"),
        f"Bytes of weights and cache in a second, beside {words_of_rate}:",
        "",
        *markdown(["model and sequences", *map(title, names)], table),
        "",
    ]


def _host_section(content: dict[str, Any]) -> list[str]:
    words = (
        "Kernels of 256 numbers, each of which needs all of the one before: what a call costs besides",
        "computing. *native*: with the option `native_host`. *Dynamo alone*: a backend that hands the traced",
        "graph back; what exceeds eager mode's time is what `torch.compile` costs by itself.",
    )
    return _one_table(content, "Calls of graphs of small kernels", words, "graph")


def _flex_section(content: dict[str, Any]) -> list[str]:
    words = (
        "Flexible attention of 2 sequences of 4,096 tokens with 16 heads of 64 or 128 numbers; *train* with",
        "all gradients. *SDPA* is torch's own attention, where it knows the mask. *window_cap*: a window of",
        "1,024 with soft-capped scores; *documents*: causal inside documents of 700; *prefix*: causal behind",
        "a common prefix of 1,000; *groups*: causal, four heads share keys and values.",
    )
    return _one_table(content, "Flexible attention", words, "attention")


def _one_table(
    content: dict[str, Any], heading: str, words: Sequence[str], what: str, *, best: bool = False
) -> list[str]:
    """A section whose rows are all in one table, by their names."""
    return [
        f"## {heading}{on_device(content)}",
        "",
        *words,
        "",
        *facts(content),
        *timing_table(content["rows"], what, lambda row: row["name"], best=best),
        "",
    ]


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
        *markdown(["kernel", "Polyfuse", "of the copy"], table),
        "",
    ]


def _compile_section(content: dict[str, Any]) -> list[str]:
    lines = [
        f"## Compile time{on_device(content)}",
        "",
        "From `torch.compile` to the first result in a fresh process. *cold*: every cache empty; *warm*: a",
        "second process with the first one's caches.",
        "",
        *facts(content),
    ]
    for start in ("cold", "warm"):
        table, ratios = [], []
        names = by_backend(name for row in content["rows"] for name in row[start])
        for row in content["rows"]:
            seconds = row[start]
            ratio = seconds[INDUCTOR] / seconds[POLYFUSE] if {INDUCTOR, POLYFUSE} <= set(seconds) else None
            ratios += [ratio] if ratio else []
            cells = [time_text(seconds[name]) if name in seconds else "failed" for name in names]
            table.append([f"{row['name']}, {row['mode']}", *cells, f"{ratio:.2f}×" if ratio else ""])
        mean = geometric_mean(ratios)
        table.append(["**geometric mean**", *([""] * len(names)), f"**{mean:.2f}×**" if mean else ""])
        lines += [f"### {start}", "", *markdown(["target", *map(title, names), "over Inductor"], table), ""]
    return lines


def _build_section(content: dict[str, Any]) -> list[str]:
    names = by_backend(name for row in content["rows"] for name in row["cold"] if name != DYNAMO)
    table, ratios = [], []
    for row in content["rows"]:
        # what Dynamo takes by itself is no backend's
        seconds = {name: row["cold"][name] - row["cold"].get(DYNAMO, 0.0) for name in row["cold"]}
        cells = [time_text(seconds[name]) if name in seconds else "failed" for name in names]
        table.append([row["name"].removeprefix("kernel:"), *cells])
        if INDUCTOR in seconds:
            ratios.append([seconds[name] / seconds[INDUCTOR] if name in seconds else None for name in names])
    means = [geometric_mean([r for r in column if r]) for column in zip(*ratios, strict=True)]
    table.append(["**of Inductor's**", *(f"**{mean:.2f}×**" if mean else "" for mean in means)])
    return [
        f"## Building one kernel{on_device(content)}",
        "",
        "The first call of one more function in a process that has compiled one already, with caches that do",
        "not know it, less what Dynamo takes.",
        "",
        *facts(content),
        *markdown(["kernel", *map(title, names)], table),
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
            cells = ["failed" if s is None else time_text(s) if s else "0 s" for s in (theirs, ours, *added)]
            ratio = f"{ours / theirs:.2f}×" if ours is not None and theirs else ""
            table.append([f"{row['name']}, {row['mode']}, {start}", *cells[:2], ratio, *cells[2:]])
    return [
        f"## Tuning time{on_device(content)}",
        "",
        f"From `torch.compile` with `mode={MODE!r}` to the first result in a fresh process, and what the",
        "mode adds to that. *cold*: every cache empty; *warm*: a second process with the first one's caches.",
        "",
        *facts(content),
        *markdown([*_TUNING_COLUMNS], table),
        "",
    ]


def _autotune_backends_section(content: dict[str, Any]) -> list[str]:
    trials = [(row["name"], trial) for row in content["rows"] for trial in row["trials"]]
    table = []
    for name, trial in trials:
        order = sorted(trial["milliseconds"].items(), key=lambda pair: pair[1])
        times = ", ".join(f"{backend} {time_text(ms / 1e3)}" for backend, ms in order)
        table.append([name, winner(trial), times, f"{gain(trial):.2f}×"])
    mean = geometric_mean([gain(trial) for _, trial in trials])
    if mean:
        table.append(["**geometric mean**", "", "", f"**{mean:.2f}×**"])
    return [
        f"## Autotuning across backends{on_device(content)}",
        "",
        "Kernels that several backends generate, each in its best configuration; *gain* is over the backend",
        "that is asked first.",
        "",
        *facts(content),
        *markdown(["function", "fastest", "times", "gain"], table),
        "",
    ]


def _memory_section(content: dict[str, Any]) -> list[str]:
    names = by_backend(name for row in content["rows"] for name in row["peaks"])
    columns = [(name, peak) for peak in ("run_peak", "torch_peak") for name in names]
    titles = {"run_peak": "resident", "torch_peak": "torch"}
    table = [
        [
            f"{row['name']}, {row['mode']}",
            *(
                size_text(row["peaks"][name][peak]) if name in row["peaks"] else "failed"
                for name, peak in columns
            ),
        ]
        for row in content["rows"]
    ]
    return [
        f"## Peak memory{on_device(content)}",
        "",
        "Of one compiled call, above what is held before it. *resident*: the operating system's high-water",
        "mark; *torch*: live allocations of torch's CPU allocator.",
        "",
        *facts(content),
        *markdown(["target", *(f"{title(name)} {titles[peak]}" for name, peak in columns)], table),
        "",
    ]
