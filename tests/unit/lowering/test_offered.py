"""Lowerings that plugins offer, through the whole compiler."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.expr import apply, cast, const, load
from polyfuse.ir.nodes import Pointwise, Scan
from polyfuse.ir.types import DType
from polyfuse.lowering.offered import OpenContext
from polyfuse.lowering.value import TensorValue as Value
from polyfuse.plugin import Lowering, LoweringContext, TensorValue
from polyfuse.symbolic import axis

FREE = {"load": "", "device_types": (), "priority": {}}


@torch.library.custom_op("polyfuse_test::gated", mutates_args=())
def gated(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(gate) * value


@gated.register_fake
def _(gate: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(torch.broadcast_tensors(gate, value)[0])


@torch.library.custom_op("polyfuse_test::extremes", mutates_args=())
def extremes(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return value.amin(-1), value.amax(-1)


@extremes.register_fake
def _(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = value.shape[:-1]
    return value.new_empty(size), value.new_empty(size)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    forget_sessions()
    reset_reports()
    yield
    forget_sessions()


def offer(monkeypatch, rows) -> None:
    install(monkeypatch, plugin(monkeypatch, "rows", {"polyfuse_lowerings": lambda: rows}, **FREE))


def check(function, *args, dynamic: bool = False, **options) -> GraphReport:
    """Compare with eager mode, on the interpreter, and return what was done."""
    options = {"backends": ["interpreter"], **options}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=dynamic)
    torch.testing.assert_close(compiled(*args), function(*args))
    return last_reports()[-1]


def product(gate, value):
    return apply("mul", apply("sigmoid", gate), value)


def lower_gated(ctx, node, gate, value):
    return ctx.elementwise(node, (gate, value), product)


def model(gate, value):
    return torch.relu(gated(gate * 2, value)) + 1


@pytest.mark.quick(2)
@pytest.mark.parametrize("size", [(), (1,), (3, 1, 1), (0, 2)], ids=str)
def test_odd_sizes(monkeypatch, size):
    offer(monkeypatch, {"polyfuse_test.gated.default": lower_gated})
    assert not check(model, torch.randn(size), torch.randn(size), strict=True).fallbacks


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_custom_operator_becomes_part_of_a_kernel(monkeypatch, dynamic, dtype):
    gate, value = torch.randn(5, 7, dtype=dtype), torch.randn(5, 7, dtype=dtype)
    alone = check(model, gate, value)
    assert alone.calls == ("polyfuse_test.gated.default",)
    torch._dynamo.reset()
    forget_sessions()
    offer(monkeypatch, {"polyfuse_test.gated.default": lower_gated})
    report = check(model, gate, value, dynamic=dynamic, strict=True)
    assert report.calls == () and report.kernels == 1 and not report.fallbacks


def test_operands_broadcast_and_results_keep_their_layout(monkeypatch):
    offer(monkeypatch, {"polyfuse_test.gated.default": lower_gated})
    gate = torch.randn(6, 4).t()
    report = check(lambda a, b: gated(a, b), gate, torch.randn(6), strict=True)
    assert report.kernels == 1 and not report.fallbacks


def test_several_results_by_reductions(monkeypatch):
    def lower(ctx, node, value):
        results = [ctx.template(fake) for fake in node.meta["val"]]

        def values(index):
            return (cast(value.at(index), DType.f32),)

        for kind, result in zip(("min", "max"), results, strict=True):
            ctx.reduce(kind, value.size, [value.rank - 1], values, [result])
        return tuple(results)

    offer(monkeypatch, {"polyfuse_test.extremes.default": Lowering(lower, passes=2)})
    report = check(lambda x: extremes(x * 3), torch.randn(4, 9), strict=True)
    assert report.calls == () and not report.fallbacks


def test_nodes_of_the_plugins_own_and_library_calls(monkeypatch):
    def running(ctx, node, value, dim):
        result = ctx.stored(ctx.template(node.meta["val"]))
        view, along = ctx.realize(result), axis("r0", value.size[0])
        ctx.emit(Scan(ctx.fresh("op"), (), (along,), (view.buffer,), along, "sum", (value.at([along]),)))
        return result

    def elsewhere(ctx, node, value):
        return ctx.call(node, "aten.exp.default", (value,))

    offer(
        monkeypatch,
        {"aten.cumsum.default": running, "aten.exp.default": Lowering(elsewhere, library=True)},
    )
    report = check(lambda x: torch.cumsum(torch.exp(x * 2), 0), torch.randn(11), strict=True)
    assert report.calls == ("aten.exp.default",) and not report.fallbacks


def test_library_calls_with_results_of_another_type(monkeypatch):
    def wide(ctx, node, value):
        fake = node.meta["val"]
        operand = ctx.lazy(fake.double(), cast(value.at(ctx.axes(value)), DType.f64))
        found = ctx.call(node, "aten.exp.default", (operand,), results=fake.double())
        return ctx.lazy(fake, cast(found.at(ctx.axes(found)), DType.f32))

    offer(monkeypatch, {"aten.exp.default": Lowering(wide, library=True)})
    report = check(lambda x: torch.exp(x * 2) + 1, torch.randn(3, 4).t(), strict=True)
    assert report.calls == ("aten.exp.default",) and report.kernels == 2


def test_it_comes_before_the_cores_own(monkeypatch):
    seen = []

    def lower(ctx, node, value):
        seen.append(node.name)
        return ctx.elementwise(node, (value,), lambda x: apply("maximum", x, const(0.0, x.dtype)))

    offer(monkeypatch, {"aten.relu.default": lower})
    check(lambda x: torch.relu(x) + torch.relu(x - 1), torch.randn(3, 4), strict=True)
    assert len(seen) == 2


def test_forced_fallbacks_are_still_forced(monkeypatch):
    offer(monkeypatch, {"polyfuse_test.gated.default": lower_gated})
    report = check(model, torch.randn(4), torch.randn(4), force_fallback=("polyfuse_test.gated",))
    assert report.calls == ("polyfuse_test.gated.default",)


def raises(ctx, node, value):
    raise KeyError("table")


def of_another_type(ctx, node, value):
    return ctx.lazy(ctx.temporary(DType.f64, "cpu", value.size), const(0.0, DType.f64))


def of_another_size(ctx, node, value):
    return ctx.lazy(ctx.temporary(DType.f32, "cpu", (2,)), const(0.0, DType.f32))


def of_other_strides(ctx, node, value):
    return ctx.lazy(ctx.temporary(DType.f32, "cpu", value.size), const(0.0, DType.f32))


def without_content(ctx, node, value):
    return ctx.template(node.meta["val"])


def no_value(ctx, node, value):
    return const(0.0, DType.f32)


def several(ctx, node, value):
    return (value, value)


def beyond_its_axes(ctx, node, value):
    result = ctx.template(node.meta["val"])
    return ctx.lazy(result, load(ctx.realize(value).buffer, axis("i7", 4), DType.f32))


def malformed_node(ctx, node, value):
    result = ctx.stored(ctx.template(node.meta["val"]))
    ctx.emit(Pointwise(ctx.fresh("op"), (), (), "nowhere", 0, const(0.0, DType.f32)))
    return result


def no_node(ctx, node, value):
    ctx.emit("y = relu(x)")
    return value


def overwrites_its_argument(ctx, node, value):
    view = ctx.realize(value)
    ctx.emit(
        Pointwise(ctx.fresh("op"), (axis("i0", 4),), (), view.buffer, axis("i0", 4), const(9.0, DType.f32))
    )
    raise ValueError("too late")


FAULTY = [
    raises,
    of_another_type,
    of_another_size,
    of_other_strides,
    without_content,
    no_value,
    several,
    beyond_its_axes,
    malformed_node,
    no_node,
    overwrites_its_argument,
]


@pytest.mark.quick(2)
@pytest.mark.parametrize("faulty", FAULTY, ids=lambda f: f.__name__)
def test_a_faulty_one_costs_only_itself(monkeypatch, warnings_seen, faulty):
    offer(monkeypatch, {"aten.relu.default": faulty})
    x = torch.randn(4, 4).t()
    report = check(lambda x: torch.relu(x * 2) + torch.relu(x), x)
    assert not report.eager and not report.fallbacks and report.calls == (), "the core's own is used"
    (warning,) = warnings_seen()
    assert "'rows'" in warning and "lowering aten.relu.default" in warning


@pytest.mark.quick(1)
@pytest.mark.parametrize("faulty", [raises, malformed_node])
def test_without_another_one_the_operator_is_called(monkeypatch, warnings_seen, faulty):
    def lower(ctx, node, gate, value):
        return faulty(ctx, node, gate)

    offer(monkeypatch, {"polyfuse_test.gated.default": lower})
    report = check(model, torch.randn(3, 4), torch.randn(3, 4))
    assert report.fallbacks == (("polyfuse_test.gated.default", "plugin 'rows' failed to lower it"),)
    assert len(warnings_seen()) == 1


def test_declining_is_no_fault(monkeypatch, warnings_seen):
    def lower(ctx, node, gate, value):
        raise UnsupportedError("only on Sundays")

    offer(monkeypatch, {"polyfuse_test.gated.default": lower})
    report = check(model, torch.randn(3, 4), torch.randn(3, 4), strict=True)
    ((op, reason),) = report.fallbacks
    assert op == "polyfuse_test.gated.default" and "'rows' declined: only on Sundays" in reason
    assert warnings_seen() == []


def test_strict_shows_the_fault(monkeypatch):
    for op, function, args in (
        ("aten.relu.default", torch.relu, (torch.randn(3),)),
        ("polyfuse_test.extremes.default", lambda x: extremes(x), (torch.randn(3, 4),)),
    ):
        torch._dynamo.reset()
        forget_sessions()
        with monkeypatch.context() as patch:
            offer(patch, {op: raises if op.startswith("aten") else no_value})
            with pytest.raises(Exception, match=f"'rows' failed to lower {op}"):
                check(function, *args, strict=True)


@pytest.mark.parametrize(
    ("promised", "given"), [(LoweringContext, OpenContext), (TensorValue, Value)], ids=["context", "value"]
)
def test_what_is_promised_is_there_with_the_same_parameters(promised, given):
    for name, function in vars(promised).items():
        if not name.startswith("_") and inspect.isfunction(function):
            wanted = [(p.name, p.kind) for p in inspect.signature(function).parameters.values()]
            found = [(p.name, p.kind) for p in inspect.signature(getattr(given, name)).parameters.values()]
            assert found == wanted, name
    context = OpenContext(Settings(), None, None)  # type: ignore[arg-type]
    instance = Value(DType.f32, torch.float32, "cpu", (2,), (1,)) if given is Value else context
    for name in promised.__annotations__:
        assert hasattr(instance, name), name
    assert isinstance(context.settings, Settings) and context.packaged is False
