"""Rewrites that plugins offer, through the whole compiler; and facts that they add to keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse.base.settings import Settings
from polyfuse.cache import kernel_key
from polyfuse.cli.bisect import decisions
from polyfuse.compiler.reports.report import GraphReport, last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions, session_for
from polyfuse.frontend.freezing import packing
from polyfuse.plugin import Lowering, Rewrite

FREE = {"load": "", "device_types": (), "priority": {}}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    forget_sessions()
    reset_reports()
    yield
    forget_sessions()


def offer(monkeypatch, function, targets=("aten.sin.default",), **changes) -> None:
    rewrite = Rewrite("change", targets, function, **changes)
    install(monkeypatch, plugin(monkeypatch, "mine", {"polyfuse_rewrites": lambda: [rewrite]}, **FREE))


def run(function, *args, gradient: bool = False, **options) -> list[GraphReport]:
    options = {"backends": ["interpreter"], **options}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=False)
    expected, found = function(*args), compiled(*args)
    torch.testing.assert_close(found, expected)
    if gradient:
        wanted = torch.autograd.grad(expected.sum(), args)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), args), wanted)
    return last_reports()


def by_cosine(ctx, node):
    """sin x = cos(x - pi / 2), so that the change can be seen in the graph and not in the numbers."""
    moved = ctx.call("aten.sub.Tensor", (node.args[0], 1.5707963267948966))
    return ctx.call("aten.cos.default", (moved,))


def applied(report: GraphReport) -> int:
    return dict(report.rewrites).get("mine.change", 0)


def operators(report: GraphReport) -> set[str]:
    return {op for launch in report.launches for op in launch.ops}


def test_it_is_applied_reported_and_named(monkeypatch) -> None:
    offer(monkeypatch, by_cosine)
    (report,) = run(lambda x: torch.sin(x) + torch.sin(x * 2), torch.randn(5, 6), strict=True)
    assert applied(report) == 2
    assert "aten.cos.default" in operators(report) and "aten.sin.default" not in operators(report)


def test_it_obeys_fuel_and_can_be_bisected(monkeypatch, tmp_path: Path) -> None:
    offer(monkeypatch, by_cosine)
    for fuel, wanted in ((0, 0), (1, 1), (9, 2)):
        torch._dynamo.reset()
        dump = tmp_path / str(fuel)
        report = run(lambda x: torch.sin(x) + torch.sin(x * 2), torch.randn(5), fuel=fuel, dump=str(dump))[-1]
        assert applied(report) == wanted
    assert any("rewrite mine.change" in line for line in decisions(tmp_path / "9", 2))


def test_it_can_be_turned_off(monkeypatch) -> None:
    offer(monkeypatch, by_cosine)
    (report,) = run(torch.sin, torch.randn(5), graph_rewrites=False)
    assert report.rewrites == ()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("stages", "forward", "backward"),
    [(("forward",), True, False), (("backward",), False, True), (("inference",), False, False)],
)
def test_it_runs_at_the_stages_it_names(monkeypatch, stages, forward, backward) -> None:
    def exchange(ctx, node):
        """Either function by the other one: the gradient of a sine is a cosine."""
        sine = ctx.is_called(node, "aten.sin.default")
        moved = ctx.call("aten.add.Tensor", (node.args[0], (-1 if sine else 1) * 1.5707963267948966))
        return ctx.call("aten.cos.default" if sine else "aten.sin.default", (moved,))

    offer(monkeypatch, exchange, ("aten.sin.default", "aten.cos.default"), stages=stages)
    x = torch.randn(4, 5, requires_grad=True)
    first, second = run(lambda x: torch.sin(x) * 2, x, gradient=True)
    assert (first.kind, second.kind) == ("forward", "backward")
    assert (applied(first), applied(second)) == (int(forward), int(backward))


def test_the_joint_graph_is_rewritten_before_it_is_divided(monkeypatch) -> None:
    stages = []

    def look(ctx, node):
        stages.append(ctx.stage)

    offer(monkeypatch, look, stages=("joint", "forward", "backward"))
    run(lambda x: torch.sin(x) * 2, torch.randn(3, requires_grad=True), gradient=True)
    assert stages[:2] == ["joint", "forward"]


def test_it_asks_whether_a_result_is_used_elementwise(monkeypatch) -> None:
    seen = {}

    def look(ctx, node):
        seen[tuple(ctx.tensor(node).shape)] = ctx.is_used_elementwise(node)

    offer(monkeypatch, look)

    def uses(x, y, z, t, u):
        return (
            x.sin().view(-1).relu(),
            y.sin().view(-1).sum(),
            z.sin() * z.sin().amax(),
            t.sin(),
            torch.unbind(u.sin())[0].exp(),
        )

    run(uses, *(torch.randn(2, n) for n in range(2, 7)))
    assert seen == {(2, 2): True, (2, 3): False, (2, 4): False, (2, 5): False, (2, 6): True}


def test_what_it_asks_is_answered(monkeypatch) -> None:
    seen = []

    def look(ctx, node):
        left, right = node.args
        seen.append(
            (
                ctx.is_called(left, "aten.sin.default", "aten.cos.default"),
                ctx.is_called(right, "aten.sin.default"),
                ctx.number(right),
                ctx.number(left),
                tuple(ctx.tensor(left).shape),
                ctx.tensor(right),
                ctx.settings.fusion,
            )
        )

    offer(monkeypatch, look, ("aten.mul.Tensor",))
    run(lambda x: torch.sin(x) * 3.0, torch.randn(2, 3), fusion=False)
    assert seen == [(True, False, 3.0, None, (2, 3), None, False)]


def raises(ctx, node):
    ctx.call("aten.cos.default", (node.args[0],))
    raise KeyError("table")


def of_another_type(ctx, node):
    return ctx.call("aten.to.dtype", (node.args[0], torch.float64))


def of_another_size(ctx, node):
    return ctx.call("aten.sum.default", (node.args[0],))


def nothing_of_the_graph(ctx, node):
    return 3.0


def itself(ctx, node):
    return node


def unknown_operator(ctx, node):
    return ctx.call("aten.no_such_operator.default", (node.args[0],))


def ends(ctx, node):
    raise SystemExit(3)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "faulty",
    [raises, ends, of_another_type, of_another_size, nothing_of_the_graph, itself, unknown_operator],
    ids=lambda f: f.__name__,
)
def test_a_faulty_one_costs_only_itself(monkeypatch, warnings_seen, faulty) -> None:
    offer(monkeypatch, faulty)
    (report,) = run(lambda x: torch.sin(x) + torch.sin(x * 2), torch.randn(3, 4))
    assert applied(report) == 0 and operators(report) >= {"aten.sin.default"}
    assert "aten.cos.default" not in operators(report) and not report.eager
    (warning,) = warnings_seen()
    assert "'mine'" in warning and "rewriting by change" in warning


@pytest.mark.quick(1)
@pytest.mark.parametrize(("faulty", "words"), [(raises, "table"), (ends, "'mine' wanted to end the process")])
def test_strict_shows_the_fault_and_ends_no_process(monkeypatch, faulty, words) -> None:
    offer(monkeypatch, faulty)
    with pytest.raises(Exception, match=words):
        run(torch.sin, torch.randn(3), strict=True)


def test_tensors_of_the_caller_stay_apart(monkeypatch, warnings_seen) -> None:
    """`abs` of what is positive is the same number, but not the same memory."""

    def leave_out(ctx, node):
        return node.args[0]

    offer(monkeypatch, leave_out, ("aten.abs.default",))
    options = {"backends": ["interpreter"], "strict": True}
    x = torch.rand(4)
    compiled = torch.compile(lambda x: (torch.abs(x), torch.abs(x) + 1), backend="polyfuse", options=options)
    first, _ = compiled(x)
    assert first.data_ptr() != x.data_ptr()
    assert [applied(report) for report in last_reports()] == [0]
    torch._dynamo.reset()
    (inner,) = run(lambda x: torch.abs(x) + 1, x)[-1:]
    assert applied(inner) == 1 and warnings_seen() == []


def test_other_strides_are_left_alone(monkeypatch, warnings_seen) -> None:
    def transposed(ctx, node):
        sine = ctx.call("aten.sin.default", (ctx.call("aten.permute.default", (node.args[0], [1, 0])),))
        return ctx.call("aten.permute.default", (ctx.call("aten.clone.default", (sine,)), [1, 0]))

    def copied(ctx, node):
        transposed = ctx.call("aten.permute.default", (node.args[0], [1, 0]))
        rows = ctx.call("aten.clone.default", (transposed,), {"memory_format": torch.contiguous_format})
        return ctx.call("aten.sin.default", (ctx.call("aten.permute.default", (rows, [1, 0])),))

    for function, wanted in ((transposed, 1), (copied, 0)):
        torch._dynamo.reset()
        forget_sessions()
        with monkeypatch.context() as patch:
            offer(patch, function)
            assert applied(run(torch.sin, torch.randn(3, 4))[-1]) == wanted
    assert warnings_seen() == []


def test_calls_with_effects_are_never_shown(monkeypatch) -> None:
    shown = []

    def look(ctx, node):
        shown.append(str(node.target))

    targets = ("aten.rand.default", "aten.permute.default", "aten.copy_.default", "aten.mul.Tensor")
    offer(monkeypatch, look, targets)

    def function(x):
        x.mul_(2)
        return torch.rand(3), x.t()

    options = {"backends": ["interpreter"]}
    torch.compile(function, backend="polyfuse", options=options)(torch.randn(3, 4))
    assert shown == ["aten.mul.Tensor"]


def test_facts_are_part_of_every_key() -> None:
    keys = [kernel_key("source", "cpp", {}), kernel_key("source", "cpp", {}, ("mine: 1",))]
    keys += [kernel_key("source", "cpp", {}, ("mine: 2",)), kernel_key("source", "cpp", {}, ())]
    assert len(set(keys)) == 3 and keys[0] == keys[3]


def test_other_facts_build_again(monkeypatch, tmp_path: Path) -> None:
    options = {"cache_dir": str(tmp_path)}

    def pointers() -> set[str]:
        return {path.name for path in tmp_path.glob("kernels/*/*.json")}

    found = []
    for fact in ("1", "2", "2"):
        with monkeypatch.context() as patch:
            install(patch, plugin(patch, "mine", {"polyfuse_cache_key": lambda fact=fact: [fact]}, **FREE))
            torch._dynamo.reset()
            forget_sessions()
            run(lambda x: torch.sin(x) + 1, torch.randn(5), **options)
            found.append(pointers())
    assert len(found[0]) == 1 and len(found[1]) == 2 and found[1] == found[2]


def test_without_facts_nothing_is_cached(monkeypatch, tmp_path: Path, warnings_seen) -> None:
    def failing(settings):
        raise OSError("no table")

    install(monkeypatch, plugin(monkeypatch, "mine", {"polyfuse_cache_key": failing}, **FREE))
    run(lambda x: torch.sin(x) + 2, torch.randn(5), cache_dir=str(tmp_path))
    assert not list(tmp_path.glob("kernels/*/*.json"))
    settings = Settings.resolve(None, {"backends": ["interpreter"], "cache_dir": str(tmp_path)})
    assert not session_for(settings).store.root.is_relative_to(tmp_path)
    (warning,) = warnings_seen()
    assert "'mine'" in warning and "nothing is cached between runs" in warning


LIBRARY = torch.library.Library("packed_in_tests", "FRAGMENT")
LIBRARY.define("angle(Tensor x, Tensor y) -> Tensor")
LIBRARY.impl("angle", torch.atan2, "CompositeExplicitAutograd")


class Angles(torch.nn.Module):
    """Angles between an argument and parameters, one that is written to, and the argument itself."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.randn(5, 6) for _ in range(count))
        self.register_buffer("written", torch.randn(5, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.atan2(x, x) + torch.atan2(x, self.written)
        self.written.add_(1)
        return sum((torch.atan2(x, weight) for weight in self.weights), found)


def offer_packing(monkeypatch) -> None:
    def rewrite(ctx, node):
        wanted = ctx.may_pack(node.args[1])
        return ctx.call("packed_in_tests.angle.default", node.args) if wanted else None

    def lower(ctx, node, x, y):
        return ctx.call(node, "aten.atan2.default", (x, ctx.pack("aten.clone.default", y)))

    hooks = {
        "polyfuse_rewrites": lambda: [
            Rewrite("pack", ("aten.atan2.default",), rewrite, stages=("inference", "forward"))
        ],
        "polyfuse_lowerings": lambda: {"packed_in_tests.angle.default": lower},
    }
    install(monkeypatch, plugin(monkeypatch, "mine", hooks, **FREE))


@pytest.mark.parametrize("freezing", [False, True])
def test_parameters_are_packed_once(monkeypatch, freezing: bool) -> None:
    offer_packing(monkeypatch)
    model, plain, x = Angles(), Angles(), torch.randn(5, 6)
    plain.load_state_dict(model.state_dict())
    options = {"backends": ["interpreter"], "strict": True, "freezing": freezing}
    call = torch.compile(model, backend="polyfuse", options=options)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(call(x), plain(x))
            for changed in (model, plain):
                (changed.weights[0] if freezing else changed.weights[0].data).mul_(2)
    (report,) = last_reports()
    begin = "frozen" if freezing else "checked"
    assert report.calls == (f"{begin}.aten.clone.default", "aten.atan2.default")
    (chosen,) = [d for d in report.decisions if d.second == "mine:pack"]
    assert (
        "is computed once for all calls" in chosen.reason and ("at most 64 MB" in chosen.reason) != freezing
    )


def test_packed_parameters_have_a_limit(monkeypatch) -> None:
    offer_packing(monkeypatch)
    monkeypatch.setattr(packing, "room_of", lambda parameters: parameters // 3)
    model, x = Angles(3), torch.randn(5, 6)  # four tensors of 120 bytes
    options = {"backends": ["interpreter"], "strict": True}
    with torch.no_grad():
        own = torch.atan2(x, x) + torch.atan2(x, model.written)
        expected = sum((torch.atan2(x, w) for w in model.weights), own)
        torch.testing.assert_close(torch.compile(model, backend="polyfuse", options=options)(x), expected)
    assert last_reports()[-1].calls.count("checked.aten.clone.default") == 1


def test_nothing_is_packed_where_gradients_are_wanted(monkeypatch) -> None:
    offer_packing(monkeypatch)
    model, x = Angles(), torch.randn(5, 6)
    torch.compile(model, backend="polyfuse", options={"backends": ["interpreter"]})(x).sum().backward()
    w = model.weights[0].detach().requires_grad_()
    (expected,) = torch.autograd.grad(torch.atan2(x, w).sum(), w)
    torch.testing.assert_close(model.weights[0].grad, expected)
    assert not any("clone" in name for report in last_reports() for name in report.calls)


@pytest.mark.parametrize("elementwise", [False, True])
def test_a_lowering_says_that_it_is_elementwise(monkeypatch, elementwise: bool) -> None:
    """Layouts spread through such operators, as those of quantised numbers between convolutions."""
    rows = {"mine.halved.default": Lowering(lambda ctx, node, x: x, elementwise=elementwise)}
    install(monkeypatch, plugin(monkeypatch, "mine", {"polyfuse_lowerings": lambda: rows}, **FREE))
    extensions = session_for(Settings()).extensions
    assert extensions.is_elementwise("mine.halved.default", "cpu") is elementwise
    assert not extensions.is_elementwise("mine.other.default", "cpu")
