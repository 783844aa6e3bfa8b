"""A plugin with choices: other calls, one that takes what follows, and source that its backend builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from polyfuse.ir.nodes import ExternCall
from polyfuse.plugin import (
    CallSite,
    Choice,
    Claim,
    Config,
    Launchable,
    No,
    ReplacementCalls,
    Source,
    TemplateSource,
    Yes,
)
from polyfuse.reference.backend import InterpreterBackend


class ChoiceBackend(InterpreterBackend):
    """The interpreter, which also builds products in a language of one word."""

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        own = [source for source in sources if source.language == "word"]
        for source in own:
            (folder / f"{source.key}.word").write_text(source.text)
        super().build([source for source in sources if source.language != "word"], folder)

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        found = dict(super().load(folder))
        return found | {path.stem: _kernel(path.read_text()) for path in folder.glob("*.word")}


def _kernel(word: str) -> Launchable:
    rows, depth, columns, times = map(int, word.split())

    def run(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, size: int) -> None:
        assert size == rows
        left = a.as_strided((rows, depth), (depth, 1))
        for _ in range(times):
            torch.mm(
                left,
                b.as_strided((depth, columns), (columns, 1)),
                out=out.as_strided((rows, columns), (columns, 1)),
            )

    return run


def plain(site: CallSite) -> ReplacementCalls:
    call = site.call
    node = ExternCall(f"{call.name}_other", "aten.mm.default", call.args, (), call.outputs)
    return ReplacementCalls((node,))


def through_scratch(site: CallSite) -> ReplacementCalls:
    """In two calls with a buffer between."""
    call, output = site.call, site.output
    scratch = replace(output, name=f"{output.name}_scratch")
    first = ExternCall(f"{call.name}_first", "aten.mm.out", call.args, (), (scratch.name,), "out")
    second = ExternCall(f"{call.name}_second", "aten.clone.default", (scratch.view(),), (), call.outputs)
    return ReplacementCalls((first, second), (scratch,))


def is_relu(site: CallSite) -> Claim:
    reader = site.reader
    return Yes() if reader is not None and reader.value.op == "maximum" else No("no relu follows")


def with_relu(site: CallSite) -> ReplacementCalls:
    assert site.reader is not None
    name, results = f"{site.call.name}_relu", (site.reader.output,)
    node = ExternCall(name, "aten._addmm_activation.default", site.call.args, (), results)
    return ReplacementCalls((node,), takes_reader=True)


def made(site: CallSite, config: Config | None) -> TemplateSource:
    left, right = site.call.args[:2]
    (rows, depth), (_, columns) = left.size, right.size
    times = config.get("times") if config is not None else 1
    source = Source("word", f"{rows} {depth} {columns} {times}", "word")
    return TemplateSource(source, (left.buffer, right.buffer, site.output.name, rows))


def raising(site: CallSite) -> Claim:
    raise RuntimeError("what is this?")


CHOICES = (
    Choice("plain", ("aten.mm.out",), applies=lambda site: Yes(), instead=plain),
    Choice("scratch", ("aten.mm.out",), applies=lambda site: Yes(), instead=through_scratch),
    Choice("relu", ("aten.addmm.out",), applies=is_relu, instead=with_relu),
    Choice(
        "word",
        ("aten.mm.out",),
        applies=lambda site: Yes(),
        emit=made,
        configs=lambda site: [Config.of(times=2), Config.of(times=1)],
    ),
    Choice("never", ("aten.mm.out",), applies=lambda site: No("not today"), instead=plain),
    Choice("broken", ("aten.mm.out",), applies=raising, instead=plain),
)


def polyfuse_choices(device_type: str) -> tuple[Choice, ...]:
    """The hook."""
    return CHOICES
