"""Names that users give never collide with names in generated text, in whatever form a model is compiled."""

from __future__ import annotations

import random
import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.export import Dim, ExportedProgram, export

from native_runner import call
from polyfuse.aot import load, package
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.names import Names, plain_word
from strange_names import MEMBERS, NAMES, WORDS, Members, batches, function, inputs, module

ROWS = Dim.AUTO


class Wrapped(torch.nn.Module):
    """A function as a module, whose `forward` takes what the function takes."""

    def __new__(cls, names: Sequence[str]) -> torch.nn.Module:
        space = {"Module": torch.nn.Module, "made": function(names)}
        arguments = ", ".join(names)
        exec(
            f"class Made__(Module):\n"
            f"    def forward(self__, {arguments}):\n"
            f"        return made({arguments})\n",
            space,
        )
        return space["Made__"]()


def dynamic(count: int) -> tuple[dict[int, object], ...]:
    return tuple({0: ROWS} for _ in range(count))


class Exported(NamedTuple):
    """An exported program, and what it was exported from: torch cannot run each program."""

    program: ExportedProgram
    model: torch.nn.Module


def programs(sets: Sequence[Sequence[str]]) -> dict[str, Exported]:
    """An entry for each list of names, itself strangely named: functions and modules in turn."""
    found: dict[str, Exported] = {}
    for i, names in enumerate(sets):
        entry = names[i % len(names)]
        if i % 2:
            model, count = module(names), 6
        else:
            # torch.export itself fails where an argument is called `self`
            model = Wrapped([name for name in names if name != "self"])
            count = len(names) - ("self" in names)
        # positions of lists are names too, so shapes are given in the order of arguments
        found[entry] = exported(model, count)
    return found


def exported(model: torch.nn.Module, count: int) -> Exported:
    return Exported(export(model, inputs(count), dynamic_shapes=dynamic(count)), model)


def packaged(made: dict[str, Exported], path: Path, **options: Any) -> Path:
    return package({name: one.program for name, one in made.items()}, path=path, **options)


def check_python(path: Path, made: dict[str, Exported]) -> None:
    loaded = load(path)
    assert set(loaded.entries) == set(made)
    for name, (_, model) in made.items():
        for rows in (4, 7):
            args = inputs(len(loaded[name].entry.arguments), rows)
            torch.testing.assert_close(loaded[name](*args), model(*args))
            keywords = dict(zip(loaded[name].entry.positional, args, strict=True))
            torch.testing.assert_close(loaded[name](**keywords), model(*args))


def check_native(path: Path, made: dict[str, Exported]) -> None:
    for name, (program, model) in made.items():
        count = len(program.graph_signature.user_inputs)
        for rows in (4, 7):
            args = inputs(count, rows)
            (result,) = call(path, [args], entry=name)
            assert not result.error, (name, result.error)
            torch.testing.assert_close(result.results[0], model(*args))


def compiled_agrees(model: object, count: int) -> None:
    torch.compiler.reset()
    compiled = torch.compile(model, backend="polyfuse", options={"strict": True}, dynamic=True)
    for rows in (4, 7):
        args = [x.requires_grad_() for x in inputs(count, rows)]
        same = [x.detach().clone().requires_grad_() for x in args]
        want, got = model(*args), compiled(*same)
        torch.testing.assert_close(got, want)
        want.square().mean().backward()
        got.square().mean().backward()
        for x, y in zip(args, same, strict=True):
            torch.testing.assert_close(y.grad, x.grad)


# The issue's own cases.

FEW = [("row0", "x"), ("len", "len_"), ("aten_mm_out", "buf0"), ("fused_max_exp_sum_div_0", "call", "in0")]


@pytest.mark.quick(1)
@pytest.mark.parametrize("names", FEW, ids=" ".join)
def test_names_that_were_taken_for_others(names, tmp_path):
    made = {"forward": export(Wrapped(names), inputs(len(names)))}
    args = inputs(len(names))
    loaded = load(package(made, path=tmp_path / "a.pf"))
    torch.testing.assert_close(loaded(*args), made["forward"].module()(*args))


def test_a_matmul_into_a_name_of_an_operator(tmp_path):
    class Product(torch.nn.Module):
        def forward(self, aten_mm_out, reinterpret_tensor, float32, buf0):
            total = aten_mm_out @ reinterpret_tensor
            return total.softmax(-1) @ float32 + buf0, total.t().contiguous()

    args = tuple(torch.randn(5, 5) for _ in range(4))
    loaded = load(package(Product(), args, path=tmp_path / "a.pf"))
    torch.testing.assert_close(loaded(*args), Product()(*args))


# 300 names and more, everywhere. The short form takes some of each kind.

SHORT = [name for i, name in enumerate(WORDS) if i % 10 == 0]


@pytest.mark.parametrize(
    "model", [function(SHORT[:6]), pytest.param(module(SHORT[20:32]), marks=pytest.mark.slow)]
)
def test_functions_and_modules(model):
    compiled_agrees(model, 6)


def test_packages(tmp_path):
    made = programs([SHORT[::8], SHORT[1::6]])
    path = packaged(made, tmp_path / "a.pf", native=True)
    check_python(path, made)
    check_native(path, made)


@pytest.mark.slow
@pytest.mark.parametrize("names", batches(WORDS, 106), ids=lambda names: names[0])
def test_all_functions_and_modules(names):
    compiled_agrees(function(names), len(names))
    for shift in range(3):  # in turn submodules, parameters and buffers
        compiled_agrees(module([*names[shift:], *names[:shift]]), 6)


@pytest.mark.slow
@pytest.mark.parametrize("names", batches(WORDS, 106), ids=lambda names: names[0])
def test_all_packages(names, tmp_path):
    """As arguments of a function and as members of a module."""
    made = programs([names, [*names[1:], names[0]]])
    path = packaged(made, tmp_path / "a.pf", native=True)
    check_python(path, made)
    check_native(path, made)


@pytest.mark.slow
@pytest.mark.parametrize("native", [False, True])
def test_all_entries(native, tmp_path):
    """Some of the names: each entry is decomposed and compiled by itself, as a library where it is native."""
    program = export(Wrapped(("x", "y")), inputs(2))
    made = dict.fromkeys(WORDS[:: 14 if native else 5], program)
    path = package(made, path=tmp_path / "a.pf", native=native)
    args = inputs(2)
    wanted = program.module()(*args)
    loaded = load(path)
    assert set(loaded.entries) == set(made)
    for name in made:
        torch.testing.assert_close(loaded[name](*args), wanted)
        if native:
            (result,) = call(path, [args], entry=name)
            assert not result.error, (name, result.error)
            torch.testing.assert_close(result.results[0], wanted)


def check_members(model: Members, path: Path, native: bool) -> None:
    x = torch.randn(3, 4)
    wanted = model(x)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="polyfuse", options={"strict": True})
    torch.testing.assert_close(compiled(x), wanted)
    package({"forward": export(model, (x,))}, path=path, native=native)
    loaded = load(path)
    torch.testing.assert_close(loaded(x), wanted)
    assert set(loaded.constants) >= set(model.state_dict())
    if native:
        (result,) = call(path, [(x,)])
        assert not result.error
        torch.testing.assert_close(result.results[0], wanted)


def test_members_that_no_attribute_can_be_written_with(tmp_path):
    """Keywords, line breaks, quotation marks: torch itself cannot print such programs."""
    check_members(Members(MEMBERS[:9]).eval(), tmp_path / "a.pf", False)


@pytest.mark.slow
@pytest.mark.parametrize("shift", range(3))
def test_all_members_that_no_attribute_can_be_written_with(shift, tmp_path):
    check_members(Members([*MEMBERS[shift:], *MEMBERS[:shift]]).eval(), tmp_path / "a.pf", True)


def test_a_member_with_nul_in_its_name_is_compiled_but_not_packaged(tmp_path):
    model, x = Members(["a\0b", "\0", "\0b"]).eval(), torch.randn(3, 4)
    torch.compiler.reset()
    compiled = torch.compile(model, backend="polyfuse", options={"strict": True})
    torch.testing.assert_close(compiled(x), model(x))
    with pytest.raises(PolyfuseError, match="must not contain NUL"):
        package({"forward": export(model, (x,))}, path=tmp_path / "a.pf")
    assert not (tmp_path / "a.pf").exists()


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", ["", "a b", "../up", "a\0", "1a", "a" * 300, "名" * 100])
def test_what_cannot_be_the_name_of_an_entry(name, tmp_path):
    program = export(Wrapped(("x", "y")), inputs(2))
    with pytest.raises(PolyfuseError, match="cannot be the name of an entry"):
        package({name: program}, path=tmp_path / "a.pf")
    assert not (tmp_path / "a.pf").exists()


@pytest.mark.quick(1)
@pytest.mark.parametrize("backend", ["interpreter", "halide"])
def test_other_generators(backend, tmp_path):
    names = SHORT[:6]
    made = {"row0": exported(Wrapped(names), 6)}
    options = {"backends": (backend, "interpreter")}
    check_python(packaged(made, tmp_path / "a.pf", options=options), made)


def test_parameters_keep_their_names(tmp_path):
    """Two that differ by a dot or an underscore are two, and both can be replaced by name."""

    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.constant0 = torch.nn.Module(), torch.nn.Module()
            self.a.b = torch.nn.Parameter(torch.ones(3))
            self.a_b = torch.nn.Parameter(torch.ones(3) * 2)
            self.register_buffer("a_b_", torch.ones(3) * 3)
            self.constant0.ﬁ = torch.nn.Parameter(torch.ones(3) * 4)

        def forward(self, x):
            table = torch.tensor([1.0, 5.0, 7.0])
            return x * self.a.b + x.exp() * self.a_b - self.a_b_ * self.constant0.fi + table

    model, x = Pair().eval(), torch.randn(2, 3)
    loaded = load(package({"a": export(model, (x,))}, path=tmp_path / "a.pf"))
    torch.testing.assert_close(loaded(x), model(x))
    assert set(loaded.constants) >= {"a.b", "a_b", "a_b_", "constant0.fi"}
    with torch.no_grad():
        model.a_b.fill_(11)
    loaded.load_constants({"a_b": torch.full((3,), 11.0)})
    torch.testing.assert_close(loaded(x), model(x))


def test_messages_say_the_users_names(tmp_path):
    class Two(torch.nn.Module):
        def forward(self, len, größe):
            return len + größe.softmax(-1)

    path = package(Two(), inputs(2), path=tmp_path / "a.pf", native=True)
    loaded = load(path)
    with pytest.raises(PolyfuseError, match="größe is torch"):
        loaded(*inputs(1), inputs(1)[0].double())
    with pytest.raises(PolyfuseError, match="size 1 of len is 5"):
        loaded(torch.zeros(4, 5), inputs(1)[0])
    (result,) = call(path, [(torch.zeros(4, 5), inputs(1)[0])])
    assert "size 1 of len is 5" in result.error


# Random words.


def random_words(seed: int, count: int) -> list[str]:
    """Identifiers of letters from everywhere, no two of which Python takes for the same."""
    pick = random.Random(seed)
    letters = [c for c in map(chr, range(0x41, 0x2FFF)) if c.isidentifier()]
    letters += list("_____aaAAbB") * 60 + list(map(chr, range(0x4E00, 0x4F00)))
    more = [*letters, *"0123456789" * 20]
    found: dict[str, None] = {}
    while len(found) < count:
        word = pick.choice(letters) + "".join(pick.choices(more, k=pick.randrange(6)))
        found[unicodedata.normalize("NFKC", word)] = None
    return [word for word in found if word.isidentifier() and not word.startswith("__")]


def check_random(seed: int, folder: Path) -> None:
    words = random_words(seed, 12)
    made = {words[0]: exported(Wrapped(words), len(words)), words[1]: exported(module(words), 6)}
    path = packaged(made, folder / "a.pf", native=True)
    check_python(path, made)
    check_native(path, made)


@pytest.mark.slow  # other words than `test_packages` has, on the same way
@pytest.mark.parametrize("seed", range(1, 8))
def test_random_words(seed, tmp_path):
    check_random(seed, tmp_path)


# The allocator itself.


def test_every_name_gets_a_name_of_its_own():
    names = Names(NAMES)
    found = [names.fresh(name) for name in NAMES for _ in range(3)]
    assert len(set(found)) == len(found)
    assert not set(found) & set(NAMES)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII) for name in found)
    assert [Names(NAMES).fresh(name) for name in NAMES] == [Names(NAMES).fresh(name) for name in NAMES]


def test_one_thing_has_one_name():
    names = Names(["len"])
    assert names.of("len", "len") == names.of("len", "else") == "len_"
    assert names.of("len_", "len_") == "len__"
    names.bind("size", "s0")
    assert names.of("size", "x") == "s0" and names.fresh("s0") == "s0_"
    assert plain_word("größe") == "gr__e" and plain_word("0x") == "v_0x" and plain_word("") == "v_"


@pytest.mark.skipif(sys.flags.optimize > 0, reason="there are no assertions")
def test_there_are_names_enough():
    assert len(NAMES) >= 300
