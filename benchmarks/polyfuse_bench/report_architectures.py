"""The page of architectures: what agrees with the truth, in which dtype and on which device."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from polyfuse_bench.architectures.outcome import (
    AGREE,
    BAD,
    CRASH,
    EAGER_FAILS,
    FELL_BACK,
    FLOOR,
    HOPELESS,
    NO_TRUTH,
    NOT_BUILDABLE,
    OUTCOMES,
    PERTURBATION,
    RAISES,
    SLACK,
    TIMED_OUT,
    UNSTEADY,
    WRONG,
)
from polyfuse_bench.report_text import cell, error_text, facts, in_order, markdown, on_device, text_table
from polyfuse_bench.results import read_results

Row = dict[str, Any]
KIND = "architectures"
TRIED = (AGREE, WRONG, UNSTEADY, RAISES, CRASH, FELL_BACK)
TITLES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

MEANINGS = {
    AGREE: "no tensor errs beyond what is allowed, every graph was compiled, and kernels were generated",
    WRONG: "with three different sets of weights and inputs, a tensor errs beyond what is allowed",
    UNSTEADY: "with some of the three sets, but not with all: rounding decided a routing or a threshold",
    RAISES: "the compiled call raises, though the same call works with Dynamo and AOTAutograd alone",
    CRASH: "the process ended",
    FELL_BACK: "the numbers agree, but a graph or a kernel was not compiled",
    TIMED_OUT: "compiling and running took longer than the limit for one architecture",
    NO_TRUTH: "eager errs by half of the norm itself (it draws random numbers, or rounding decides)",
    EAGER_FAILS: "eager, double precision, or torch's capture raises",
    NOT_BUILDABLE: "the general rules made no small model, or found no inputs for it",
}


def architectures_page(results: Path) -> str | None:
    """The page, or None where no campaign was run."""
    names = sorted(path.stem for path in results.glob(f"{KIND}-*.json"))
    campaigns = [content for name in names if (content := read_results(name, results)) is not None]
    if not campaigns:
        return None
    lines = [*_head(), *_counts(campaigns)]
    for content in campaigns:
        lines += _section(content)
    return "\n".join(lines).rstrip() + "\n"


def _head() -> list[str]:
    meanings = markdown(["outcome", "meaning"], [[outcome, MEANINGS[outcome]] for outcome in OUTCOMES], ":--")
    rules = [
        [TITLES[dtype], f"{SLACK[dtype]:g}", f"{FLOOR[dtype]:.0e}", f"{PERTURBATION[dtype]:.0e}"]
        for dtype in RULES
    ]
    table = markdown(["dtype", "times eager's", "plus", "perturbation"], rules)
    return [*METHOD.replace("{hopeless}", f"{HOPELESS:.0%}").splitlines(), "", *table, "", *meanings, ""]


RULES = ("float32", "bfloat16")
METHOD = """\
# Architectures

Whole models from four libraries, compiled, forward and backward, and compared with the truth.
`python -m polyfuse_bench architectures` makes the results, `report` this page; it is never edited by hand.

## Method

* **Models.** Every type of model in the tables of `transformers`, and the smallest members of each family of
  `timm`, `torchvision` and `diffusers`, with random weights. Configurations of `transformers` are made small
  by rules: one layer of each kind but two at least, widths of 32, vocabularies of 128, pictures of 32 by 32.
  Parameters that are all equal, as those of a new norm, become random. Nothing is downloaded.
* **The call.** `torch.compile(model, backend="polyfuse", dynamic=False)` in evaluation mode: all outputs, and
  the gradients of all parameters for a *random* cotangent. After a norm a mean square is constant, and its
  gradient is rounding alone.
* **The truth.** The same model and inputs in double precision, where what asks for f32 gets double too, and
  mixtures compute their experts one by one. Weights and inputs are numbers that bf16 holds exactly, so that
  one truth serves every dtype.
* **Errors.** Of each output and gradient: the norm of its difference from the truth, over the norm of the
  truth. Beside the compiler's stand eager's own error in the same dtype, and that of eager with weights that
  are randomly changed by about half a unit in the last place (*perturbation*).
* **Wrong** is a tensor whose error is beyond the larger of these two, multiplied and added to as the table
  says; or that has another shape or dtype, or other elements that are not finite. It must be so with three
  different sets of weights and inputs: where rounding decides a routing among experts or a threshold, it is
  so only with some, and the outcome is *unsteady*.
* **Not judged** is a tensor for which eager itself errs by {hopeless}; and a model where that is most of its
  tensors."""


def _counts(campaigns: list[dict[str, Any]]) -> list[str]:
    columns, cells = [], []
    for content in campaigns:
        for dtype in in_order(row["dtype"] for row in content["rows"]):
            columns.append(f"{content['settings']['device']} {TITLES[dtype]}, {content['taken'][:10]}")
            cells.append(Counter(row["outcome"] for row in content["rows"] if row["dtype"] == dtype))
    table = [
        [outcome, *(str(count[outcome]) for count in cells)]
        for outcome in OUTCOMES
        if any(c[outcome] for c in cells)
    ]
    return ["## Results", "", *markdown(["outcome", *columns], table), ""]


def _section(content: dict[str, Any]) -> list[str]:
    rows = content["rows"]
    device = content["settings"]["device"]
    libraries = ", ".join(f"{name} {version}" for name, version in content["libraries"].items())
    agreeing = [row for row in rows if row["outcome"] == AGREE]
    together = sum(row["seconds"] for row in rows)
    spent = sorted(row["seconds"] for row in agreeing)
    total = {name: sum(row[name] for row in agreeing) for name in ("graphs", "kernels", "calls")}
    eager, broken = (sum(bool(row[name]) for row in agreeing) for name in ("fallbacks", "breaks"))
    lines = [
        f"## On {'the CPU' if device == 'cpu' else device}{on_device(content)}",
        "",
        *facts(content),
        f"{libraries}. {content['jobs']} at a time, {together:.0f} seconds together, at most",
        f"{content['limit']:g} for one architecture"
        + (f"; in the median {spent[len(spent) // 2]:.1f} seconds for one in one dtype." if spent else "."),
        "",
        f"What agrees was compiled to {total['graphs']} graphs with {total['kernels']} launches of kernels",
        f"and {total['calls']} library calls. Of {len(agreeing)} that agree, {eager} call operators of eager",
        f"for want of a lowering, and {broken} are captured in several graphs.",
        "",
    ]
    bad = [row for row in rows if row["outcome"] in (*BAD, UNSTEADY, FELL_BACK)]
    lines += ["### Not as they should be", "", *_table_of(bad), ""]
    lines += ["### Agree", "", *_agreement(agreeing), ""]
    rest = [row for row in rows if row["outcome"] in (TIMED_OUT, NO_TRUTH, EAGER_FAILS, NOT_BUILDABLE)]
    lines += ["### Not compared", "", *_table_of(_once(rest)), ""]
    return lines


def _once(rows: list[Row]) -> list[Row]:
    """One row where both dtypes have the same reason."""
    return list(
        {(row["library"], row["name"], row["outcome"], row["detail"]): row for row in reversed(rows)}.values()
    )[::-1]


def _table_of(rows: list[Row]) -> list[str]:
    header = ["architecture", "dtype", "outcome", "detail"]
    return text_table(
        header, [[_label(row), TITLES[row["dtype"]], row["outcome"], cell(row["detail"])] for row in rows]
    )


def _label(row: Row) -> str:
    return f"{row['library']}: {row['name']}"


def _agreement(rows: list[Row]) -> list[str]:
    """An architecture a line: for each dtype the largest error of an output, eager's in brackets, and how
    much of what is allowed the tensor that comes nearest to it uses."""
    dtypes = in_order(row["dtype"] for row in rows)
    by_name: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_name.setdefault(_label(row), {})[row["dtype"]] = row
    table = []
    for name, found in by_name.items():
        first = next(iter(found.values()))
        errors = [cell for dtype in dtypes for cell in _errors(found.get(dtype))]
        counts = (first["graphs"], first["kernels"], first["calls"], len(first["fallbacks"]))
        table.append([name, *errors, *map(str, counts)])
    of_dtypes = [text for dtype in dtypes for text in (f"{TITLES[dtype]} outputs (eager's)", "of allowed")]
    header = ["architecture", *of_dtypes, "graphs", "kernels", "calls", "in eager"]
    return markdown(header, table) if table else ["None."]


def _errors(row: Row | None) -> tuple[str, str]:
    if row is None or row.get("outputs") is None or row["allowed"] is None:
        return "", ""
    return (
        f"{error_text(row['outputs'])} ({error_text(row['own_outputs'])})",
        f"{row['error'] / row['allowed']:.0%}",
    )
