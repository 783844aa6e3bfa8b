"""One look at all parameters of a frozen program: what it sees, and which calls it answers for."""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from polyfuse.base.settings import Settings
from polyfuse.runtime.frozen import FrozenProgram, looks, offer_look
from polyfuse_cpp.threads.source import LookSource
from polyfuse_cpp.toolchain import find_toolchain

COUNT = 12


@pytest.fixture(scope="module")
def source() -> LookSource:
    found = LookSource(find_toolchain(), Settings())
    until = time.monotonic() + 60
    while found.find() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert found.find() is not None
    return found


@pytest.fixture(autouse=True)
def offered(source: LookSource, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(looks, "_OFFERED", [])
    offer_look(source.find)
    yield


def parameters() -> list[torch.Tensor]:
    shapes = [(), (0,), (3,), (2, 3), (4, 4), (1, 5, 2), (2, 2, 2, 2)]
    values = [torch.randn(shapes[i % len(shapes)]) for i in range(COUNT - 1)]
    return [*(nn.Parameter(v) if i % 2 else v for i, v in enumerate(values)), torch.randn(4, 4)]


def program(first: int = 0) -> tuple[FrozenProgram, list[int]]:
    """A program with one input before its parameters, and how often its values were computed."""
    computed: list[int] = []

    def values(given: list[torch.Tensor]) -> list[torch.Tensor]:
        computed.append(len(given))
        return [torch.stack([p.detach().double().sum() for p in given])]

    def run(args: list[torch.Tensor]) -> list[torch.Tensor]:
        return [args[-1].clone()]

    return FrozenProgram(run, values, range(1 + first, 1 + COUNT)), computed


def sums(given: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([p.detach().double().sum() for p in given])


def call(frozen: FrozenProgram, given: list[torch.Tensor]) -> torch.Tensor:
    (found,) = frozen([torch.ones(1), *given])
    return found


def looked(frozen: FrozenProgram, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Calls that the look could not answer, from now on."""
    calls: list[object] = []
    slow = frozen._found
    monkeypatch.setattr(frozen, "_found", lambda args: calls.append(None) or slow(args))
    return calls


def write(p: torch.Tensor) -> None:
    with torch.no_grad():
        p.add_(1)


def other_memory(p: torch.Tensor) -> None:
    p.data = p.data + 1


CHANGES: list[Callable[[torch.Tensor], None]] = [write, other_memory]


def test_unchanged_parameters_are_seen_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, computed = program()
    given = parameters()
    for _ in range(2):
        call(frozen, given)
    slow = looked(frozen, monkeypatch)
    for _ in range(3):
        assert torch.equal(call(frozen, given), sums(given))
    assert not slow and len(computed) == 1


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("number", [0, 2, 3, COUNT - 1])
def test_a_change_of_one_is_seen(change: Callable[[torch.Tensor], None], number: int) -> None:
    frozen, computed = program()
    given = parameters()
    for turn in range(3):
        for _ in range(3):
            assert torch.equal(call(frozen, given), sums(given))
        assert len(computed) == turn + 1
        change(given[number])


def test_another_object_is_seen_and_values_of_each_model_stay() -> None:
    frozen, computed = program()
    models = [parameters() for _ in range(3)]
    for _ in range(3):
        for given in models:
            assert torch.equal(call(frozen, given), sums(given))
    assert len(computed) == 3
    models[0][4] = torch.randn(4, 4)
    assert torch.equal(call(frozen, models[0]), sums(models[0])) and len(computed) == 4


def test_parameters_that_go_take_their_values_along() -> None:
    frozen, _ = program()
    given = parameters()
    for _ in range(3):
        call(frozen, given)
    assert frozen._latest() is not None
    given[5] = copy.deepcopy(given[5])
    assert frozen._latest() is None and not frozen._known


def test_contents_that_were_exchanged_are_seen() -> None:
    frozen, _ = program()
    given = parameters()
    for _ in range(3):
        call(frozen, given)
    torch.utils.swap_tensors(given[4], given[-1])
    assert torch.equal(call(frozen, given), sums(given))


def test_other_layouts_are_seen_where_guards_leave_them_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from polyfuse.runtime.frozen import entries

    monkeypatch.setattr(entries, "may_skip_guards", lambda: True)
    frozen, computed = program()
    given = parameters()
    for _ in range(3):
        call(frozen, given)
    slow = looked(frozen, monkeypatch)
    call(frozen, given)
    assert not slow
    memory = given[4].data
    given[4].data = memory.t()  # at the same address, with the same version
    call(frozen, given)
    assert slow and len(computed) == 2
    given[4].data = memory
    call(frozen, given)
    assert len(computed) == 3


@pytest.mark.parametrize("kind", ["few", "inference", "subclass"])
def test_others_are_compared_in_python(kind: str) -> None:
    class Named(torch.Tensor):
        pass

    given = parameters()
    if kind == "inference":
        with torch.inference_mode():
            given[3] = torch.randn(2, 3)
    elif kind == "subclass":
        given[3] = torch.randn(2, 3).as_subclass(Named)
    frozen, computed = program(first=COUNT - 3 if kind == "few" else 0)
    taken = given[COUNT - 3 :] if kind == "few" else given
    for _ in range(3):
        assert torch.equal(call(frozen, given), sums(taken))
    before = len(computed)
    write(given[-1])
    assert torch.equal(call(frozen, given), sums(taken)) and len(computed) == before + 1


def test_arguments_of_another_number_are_none_of_them() -> None:
    frozen, _ = program()
    given = parameters()
    for _ in range(3):
        call(frozen, given)
    entry = frozen._latest()
    assert entry is not None and entry.look is not None
    assert not entry.look([]) and not entry.look([torch.ones(1), *given[:-1]])
    assert entry.look([torch.ones(1), *given])


@pytest.mark.slow
def test_random_changes_in_a_network_that_is_compiled() -> None:
    torch.manual_seed(3)
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(3)]
    model = nn.Sequential(*layers).eval()
    compiled = torch.compile(model, backend="polyfuse", options={"freezing": True})
    chosen = random.Random(3)
    with torch.no_grad():
        for _ in range(24):
            x = torch.randn(1, 4, 6, 6)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
            layer = chosen.choice(layers)
            match chosen.randrange(5):
                case 0:
                    layer[0].weight.add_(0.01)
                case 1:
                    layer[0].weight.data = torch.randn(4, 4, 3, 3) / 6
                case 2:
                    layer[1].running_mean.add_(0.1)
                case 3:
                    layer[0].bias.data = torch.randn(4)
