"""The code speaks in the words of the field; docs/glossary.md has them."""

from __future__ import annotations

import re

import pytest

from house.source_tree import CORE, PLUGINS, ROOT

REPLACED = {
    r"tournament|bouts?|heats|contest|workshop|shortlist|raced|racing": "autotuning: trials of candidates",
    r"learnt": "learned",
    r"likeness": "horizontal-fusion key",
    r"keeper|kept graphs?": "graph cache",
    r"matrix_products": "gemm",
    r"fold_(sum|min|max|width)|FOLD_MODES": "GEMM epilogue reduction",
    r"panels?": "packed weights",
    r"wove|woven|weav(e|ing)": "interleave",
    r"hoists?": "loop-invariant code motion (licm)",
    r"traits?": "target info",
    r"companions?": "extra files",
    r"sheltered": "guarded",
    r"dumm(y|ies)": "fake tensors",
    r"whole numbers?": "integers",
    r"the processor": "the CPU",
    r"gives? way|takes? (its|their) place": "falls back to",
    r"eager mode takes": "falls back to eager",
    r"verdicts?": "decision",
    r"stretch(es)?": "range, chunk or split",
}
"""What the code does not say, and what it says instead."""

ENDINGS = {".py", ".h", ".cuh", ".cpp", ".md"}


@pytest.mark.parametrize("pattern", REPLACED)
def test_words_of_the_field(pattern: str) -> None:
    word = re.compile(rf"(?<![a-zA-Z])(?:{pattern})(?![a-zA-Z])", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: say {REPLACED[pattern]!r} instead of {found[0]!r}"
        for folder in (CORE, PLUGINS)
        for path in sorted(folder.rglob("*"))
        if path.suffix in ENDINGS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for found in [word.search(line)]
        if found
    ]
    assert not wrong, "\n".join(wrong)
