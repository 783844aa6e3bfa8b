"""Code, tests, benchmarks and pages speak in the words of the field; docs/glossary.md has them."""

from __future__ import annotations

import functools
import re

import pytest

from house.source_tree import CORE, EXAMPLES, PLUGINS, ROOT

REPLACED = {
    r"tournaments?|bouts?|heats|contests?|workshop|shortlist|contenders?": "autotuning: trials of candidates",
    r"(?<!data )races|raced|(?<!data )racing": "trials, timed, autotuned",
    r"learnt|experience": "cost model, training data, learned",
    r"surroundings": "runtime, environment, features",
    r"likeness": "horizontal-fusion key",
    r"keeper|NotKept": "graph cache",
    r"matrix_products|matrix products?|products? of matrices": "matmul, gemm",
    r"fold_(sum|min|width)|FOLD_MODES": "GEMM epilogue reduction",
    r"panels?": "packed weights",
    r"wove|woven|weav(e|ing)": "interleave",
    r"turned over": "transposed in registers",
    r"early starts?": "programmatic dependent launch",
    r"hoists?": "loop-invariant code motion (licm)",
    r"kept": "cached, stored, saved, retained, preserved, held; not fused",
    r"settles?": "what it does: use, store, count",
    r"told": "called with, reported, known, distinguished",
    r"traits?": "target info",
    r"companions?": "extra files",
    r"sheltered|isolated calls?": "guarded",
    r"dumm(y|ies)": "fake tensors",
    r"stand[-_]?ins?": "fake tensors, fakes, substitutes",
    r"whole[ _]numbers?": "integers",
    r"numbers read from data|data-dependent symbols?": "unbacked symbols",
    r"split sums?": "split reductions, partial sums",
    r"never meet|takes? turns|taking turns": "disjoint; alternate",
    r"local rows?|across rows": "row buffer; column reduction",
    r"the processor": "the CPU",
    r"gives? way|takes? (its|their) place": "falls back to",
    r"stands? around": "epilogue, prologue",
    r"eager mode takes": "falls back to eager",
    r"said once|verdicts?|settled": "decision, outcome",
    r"(left|right) text": "operand A, operand B",
    r"stretch(es)?": "range, chunk or split",
    r"builder's folder": "build directory",
    r"nought": "0",
    r"pieces?": "chunk, region of a graph, step of a decomposition",
    # what stays: in place (also in-place, in_place), and a unit in the last place
    r"(?<!in[ _-])(?<!last )places?|placed|placing": "index, offset, address, position, location; instead of",
}
"""What the project does not say, and what it says instead."""

VAGUE = {
    "Again", "Asked", "Bins", "Given", "Heard", "Hold", "Homes", "Kept", "Let", "Made", "Meeting", "Only",
    "Passed", "Place", "Race", "Seen", "Send", "Side", "Standing", "Taken", "Treatment", "Trouble", "Turn",
    "Verdict", "Way",
}  # fmt: skip
"""Class names that do not say what they stand for."""

FOLDERS = (CORE, PLUGINS, EXAMPLES, *(ROOT / name for name in ("tests", "benchmarks", "tools", "docs")))
ENDINGS = {".py", ".h", ".cuh", ".cpp", ".md"}
LISTS = {"tests/house/test_vocabulary.py", "tests/docs/test_pages.py", "docs/glossary.md"}
"""Files that hold the replaced words, to refuse or to explain them."""

FILES = {
    str(path.relative_to(ROOT)): path
    for folder in FOLDERS
    for path in sorted(folder.rglob("*"))
    if path.suffix in ENDINGS
    and str(path.relative_to(ROOT)) not in LISTS
    and "node_modules" not in path.parts
}


@functools.cache
def _texts() -> dict[str, str]:
    return {name: path.read_text(encoding="utf-8") for name, path in FILES.items()}


@functools.cache
def _lower_texts() -> dict[str, str]:
    return {name: text.lower() for name, text in _texts().items()}


def test_the_files_are_found() -> None:
    assert {name.split("/")[0] for name in FILES} == {folder.relative_to(ROOT).parts[0] for folder in FOLDERS}


@pytest.mark.parametrize(("pattern", "instead"), REPLACED.items())
def test_words_of_the_field(pattern: str, instead: str) -> None:
    # in lower case, quicker than without regard to case; without borders first, quicker than with them
    word, roughly = re.compile(rf"(?<![a-z])(?:{pattern.lower()})(?![a-z])"), re.compile(pattern.lower())
    wrong = [
        f"{name}:{number}: say {instead!r} instead of {found[0]!r}"
        for name, text in _lower_texts().items()
        if roughly.search(text) and word.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        for found in [word.search(line)]
        if found
    ]
    wrong += [f"{name}: the name says {found[0]!r}" for name in FILES if (found := word.search(name.lower()))]
    results = sorted(path.name for path in (ROOT / "benchmarks" / "results").iterdir())
    wrong += [f"benchmarks/results/{name}" for name in results if word.search(name.lower())]
    assert not wrong, "\n".join(wrong)


def test_classes_say_what_they_are() -> None:
    wrong = [
        f"{name}:{text.count(chr(10), 0, found.start()) + 1} {found[1]}"
        for name, text in _texts().items()
        if name.endswith(".py")
        for found in re.finditer(r"^ *class _*(\w+?)_*\b", text, re.MULTILINE)
        if found[1] in VAGUE
    ]
    assert not wrong, "\n".join(wrong)
