"""Inputs of every awkward layout, and inputs that differ from what was compiled for."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from polyfuse.base.errors import InputLayoutError
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import session_for
from polyfuse.compiler.stages import compile_aten
from polyfuse.frontend.capture import compile_graph

STRICT = {"strict": True}


def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.sin(x) * y + 1, torch.softmax(x + y, -1).sum(0)


def base() -> torch.Tensor:
    return torch.randn(40, 40)


LAYOUTS = {
    "zero-size": lambda: torch.randn(0, 9),
    "zero-size inside": lambda: torch.randn(4, 0),
    "one row": lambda: torch.randn(1, 9),
    "one element": lambda: torch.randn(1, 1),
    "transposed": lambda: base().t(),
    "every second": lambda: base()[::2, ::2],
    "expanded": lambda: torch.randn(1, 9).expand(5, 9),
    "all one element": lambda: torch.randn(1).expand(5, 9),
    "offset": lambda: base().flatten()[1:1001].view(25, 40),
    "offset and odd stride": lambda: base().as_strided((7, 11), (13, 1), 3),
    "overlapping": lambda: base().as_strided((5, 8), (2, 1)),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    x, y = LAYOUTS[name](), LAYOUTS[name]()
    compiled = torch.compile(f, backend="polyfuse", options=STRICT, dynamic=False)
    for actual, expected in zip(compiled(x, y), f(x, y), strict=True):
        torch.testing.assert_close(actual, expected)


def test_single_numbers():
    def g(x, n):
        return x * n + x.sin(), (n == 2).to(torch.int64) + n

    x, n = torch.randn(()), torch.tensor(2)
    for actual, expected in zip(
        torch.compile(g, backend="polyfuse", options=STRICT)(x, n), g(x, n), strict=True
    ):
        torch.testing.assert_close(actual, expected)


@pytest.mark.quick(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.uint8, torch.bool])
def test_odd_offsets_of_other_types(dtype):
    def g(x):
        return (x != 0), x.sum(-1) if dtype.is_floating_point else x

    x = torch.randint(0, 2, (101,)).to(dtype)[1:].view(10, 10)
    for actual, expected in zip(torch.compile(g, backend="polyfuse", options=STRICT)(x), g(x), strict=True):
        torch.testing.assert_close(actual, expected)


def negated(rows: int) -> torch.Tensor:
    return torch.randn(rows, 4, dtype=torch.complex64).conj().imag


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_what_is_negated_only_when_it_is_read(dynamic):
    """Its memory and that of its views hold other numbers than it has, and what is written is negated."""

    def g(x):
        x.add_(1)
        x[0] = 5
        inside = torch.complex(x, x * 2).conj().imag
        return x * 2, x[1:].t() + 1, x.sum(0), x.reshape(-1), inside + 1, inside.softmax(-1)

    # complex numbers, and copies of what is negated when it is read, are left to eager operators
    compiled = torch.compile(g, backend="polyfuse", dynamic=dynamic)
    for x in (torch.randn(3, 4), negated(3), torch.randn(5, 4), negated(5)):
        mine, theirs = (torch._neg_view(-x) if x.is_neg() else x.clone() for _ in range(2))
        assert mine.is_neg() == x.is_neg()
        for actual, expected in zip(compiled(mine), g(theirs), strict=True):
            torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(mine, theirs)


def test_the_same_tensor_twice_and_changed_in_place():
    def g(x, y):
        x.add_(1)
        return x * y

    a, b = torch.randn(6), None
    b = a.clone()
    torch.testing.assert_close(torch.compile(g, backend="polyfuse", options=STRICT)(a, a), g(b, b))
    torch.testing.assert_close(a, b)


def test_views_of_one_storage_changed_in_place():
    def g(x, y):
        x.mul_(2)
        return y + x

    one, two = torch.arange(10.0), torch.arange(10.0)
    # what is written to one view reaches the other by an eager operator, `as_strided_scatter`
    options = {**STRICT, "force_fallback": ["aten.as_strided_scatter"]}
    actual = torch.compile(g, backend="polyfuse", options=options)(one[:6], one[4:])
    torch.testing.assert_close(actual, g(two[:6], two[4:]))
    torch.testing.assert_close(one, two)


def test_dynamic_sizes_down_to_zero_and_one():
    compiled = torch.compile(f, backend="polyfuse", options=STRICT, dynamic=True)
    for rows in (5, 3, 1, 0, 8):
        x, y = torch.randn(rows, 7), torch.randn(rows, 7)
        for actual, expected in zip(compiled(x, y), f(x, y), strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.fixture
def program():
    """A compiled program without the guards that Dynamo puts before it."""
    made: list[object] = []
    session = session_for(Settings.resolve(options=STRICT))

    def backend(gm, inputs):
        def inner(graph):
            made.append(compile_aten(graph, session))
            return made[-1]

        return compile_graph(gm, inputs, inner=inner, settings=session.settings)

    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x) + 1, backend=backend, dynamic=False)(torch.randn(4, 6))
    (found,) = made
    return found


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.randn(4, 7), ["size (4, 7)", "size (4, 6)"]),
        (torch.randn(6, 4).t(), ["stride (1, 4)", "stride (6, 1)"]),
        (torch.randn(4), ["size (4,)", "size (4, 6)"]),
        (3, ["int", "tensor"]),
    ],
)
def test_wrong_inputs_are_named(program, value, words):
    with pytest.raises(InputLayoutError) as caught:
        program([value])
    assert all(word in str(caught.value) for word in words)


def test_wrong_types_of_first_inputs_are_named(program):
    fresh = type(program)(
        program.name, program.text, program.filename, dict(program.namespace), program.kernels
    )
    with pytest.raises(InputLayoutError, match=r"float64.*float32"):
        fresh([torch.randn(4, 6, dtype=torch.float64)])
    with pytest.raises(InputLayoutError, match="2 inputs where 1"):
        fresh([torch.randn(4, 6), torch.randn(4, 6)])


@pytest.mark.parametrize("first", ["real", "fake"])
def test_tensors_without_memory_are_named(first):
    """A kernel that read one would end the process."""
    compiled = torch.compile(f, backend="polyfuse", options=STRICT)
    x = torch.randn(3, 5)
    if first == "real":
        compiled(x, x)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        with pytest.raises(InputLayoutError, match="fake tensor"):
            compiled(fake, fake)
    for actual, expected in zip(compiled(x, x), f(x, x), strict=True):
        torch.testing.assert_close(actual, expected)
