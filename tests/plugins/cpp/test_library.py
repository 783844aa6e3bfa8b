"""oneDNN's operators as choices: which calls they take, and that they compute the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from autotuning import reasons, try_one_configuration, with_times
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import forget_sessions
from polyfuse.ir.types import DType
from polyfuse_cpp.backend import CppBackend
from polyfuse_cpp.onednn import library, preferences
from polyfuse_cpp.onednn.choices import library_choices

pytestmark = pytest.mark.skipif(
    not library_choices(), reason="this torch is built without oneDNN, whose operators are tested"
)
WINS = {
    "cpp:onednn": 2.0,
    "cpp:onednn_packed": 1.8,
    "cpp:onednn_conv_packed": 1.8,
    "cpp:onednn_fused": 1.0,
    "cpp:onednn_fused_conv": 1.0,
    "cpp:onednn_fused_packed": 0.8,
    "cpp:onednn_fused_conv_packed": 0.8,
}
LINEAR = torch.nn.Linear(24, 40)
CONVOLUTION = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
X, OTHER = torch.randn(2, 7, 24), torch.randn(2, 7, 40)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Compile and run a function where the library's choices win."""
    try_one_configuration(monkeypatch, CppBackend)
    yield with_times(monkeypatch, tmp_path, WINS)
    forget_sessions()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "then",
    [F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, torch.tanh, torch.sigmoid],
    ids=["gelu", "gelu_tanh", "silu", "tanh", "sigmoid"],
)
def test_linear_layers_with_an_activation(run: Any, then: Callable[..., Any]) -> None:
    report = run(lambda x: then(LINEAR(x)), X)
    assert report.calls == ("mkldnn._linear_pointwise.default",) and report.kernels == 0


@pytest.mark.slow
def test_linear_layers_with_a_residual(run: Any) -> None:
    for function in (lambda x, r: LINEAR(x) + r, lambda x, r: r + LINEAR(x)):
        report = run(function, X, OTHER)
        assert report.calls == ("mkldnn._linear_pointwise.binary",) and report.kernels == 0


@pytest.mark.slow
def test_linear_layers_alone_and_without_a_bias(run: Any) -> None:
    assert run(LINEAR, X[0]).calls == ("mkldnn._linear_pointwise.default",)
    report = run(lambda x, w: x @ w.t(), X[0], LINEAR.weight)
    assert report.calls == ("mkldnn._linear_pointwise.default",)
    report = run(lambda x: torch.cos(LINEAR(x)), X)
    assert report.calls == ("mkldnn._linear_pointwise.default",) and report.kernels == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("maker", "isa", "taken"),
    [
        ("AuthenticAMD", "avx512", True),
        ("AuthenticAMD", "avx2", False),
        ("GenuineIntel", "avx512", False),
        ("", "avx512", False),
    ],
)
def test_without_timing_where_the_other_library_is_known_to_be_slow(maker, isa, taken, monkeypatch, tmp_path):
    monkeypatch.setattr(preferences, "vendor", lambda: maker)
    monkeypatch.setattr(preferences, "detect_isa_name", lambda: isa)
    _between_libraries(monkeypatch)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    monkeypatch.setattr(preferences, "_FEW_PAIRS", 0)
    # a processor of another maker is another machine, with a cache of its own
    options = {"strict": True, "cache_dir": str(tmp_path)}
    function = torch.compile(lambda x: LINEAR(x).cos(), backend="polyfuse", options=options, dynamic=True)
    for rows in (7, 1, 3):
        x = torch.randn(rows, 24)
        with torch.no_grad():
            torch.testing.assert_close(function(x), LINEAR(x).cos())
    report = last_reports()[-1]
    assert ("mkldnn._linear_pointwise.default" in report.calls) is taken
    found = reasons(report)
    assert found["cpp:onednn"] == ("known to be faster here" if taken else "not known to be faster here")
    assert "cpp:onednn_fused" not in found
    forget_sessions()


@pytest.mark.quick(2)
@pytest.mark.parametrize("left", ["rows", "columns", "gaps", "columns with gaps"])
@pytest.mark.parametrize("right", ["rows", "columns", "gaps", "columns with gaps"])
def test_matmuls_of_matrices_transposed_or_not(
    left: str, right: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "beats_mkl", lambda site: True)
    a, b = _laid_out(9, 12, left), _laid_out(12, 7, right)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    function = torch.compile(lambda a, b: torch.mm(a, b), backend="polyfuse", options={"strict": True})
    torch.testing.assert_close(function(a, b), a @ b)
    assert last_reports()[-1].calls == ("mkldnn._linear_pointwise.default",)
    forget_sessions()


def _between_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generate no matmuls of few rows: which library is called is asked."""
    monkeypatch.setattr(CppBackend, "streaming_parts", lambda self, matmul: 0)


def _laid_out(rows: int, columns: int, how: str) -> torch.Tensor:
    gap = 5 if "gaps" in how else 0
    if how.startswith("columns"):
        return torch.randn(columns, rows + gap)[:, :rows].t()
    return torch.randn(rows, columns + gap)[:, :columns]


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "right", "taken"),
    [(1, "rows", False), (2, "rows", False), (3, "rows", True), (2, "columns", True)],
)
def test_a_row_or_two_of_contiguous_rows_are_read_once(
    rows: int, right: str, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _between_libraries(monkeypatch)
    monkeypatch.setattr(preferences, "mkl_leaves_lanes", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(preferences, "_FEW_PAIRS", 0)
    a, b = torch.randn(rows, 40), _laid_out(40, 24, right)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    options = {"strict": True}
    function = torch.compile(lambda a, b: torch.mm(a, b), backend="polyfuse", options=options, dynamic=False)
    torch.testing.assert_close(function(a, b), a @ b)
    assert (last_reports()[-1].calls == ("mkldnn._linear_pointwise.default",)) is taken
    forget_sessions()


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("left", "right", "columns", "taken"),
    [
        ("rows", "columns", 1, False),
        ("rows", "rows", 2, True),
        ("rows", "columns", 4, False),
        ("rows", "columns", 5, True),
        ("columns", "rows", 1, False),
        ("columns", "rows", 8, True),
        ("columns", "rows", 16, False),
        ("columns", "columns", 1024, True),
    ],
)
def test_operands_whose_layout_takes_longer_than_the_matmul(
    left: str, right: str, columns: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _between_libraries(monkeypatch)
    monkeypatch.setattr(preferences, "mkl_leaves_lanes", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(preferences, "_FEW_PAIRS", 0)
    a, b = _laid_out(6, 40, left), _laid_out(40, columns, right)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    function = torch.compile(torch.mm, backend="polyfuse", options={"strict": True}, dynamic=False)
    torch.testing.assert_close(function(a, b), a @ b)
    assert ("mkldnn._linear_pointwise.default" in last_reports()[-1].calls) is taken
    forget_sessions()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("rows", "columns", "taken"),
    [
        (1, 128, False),
        (511, 128, False),
        (512, 128, True),
        (512, 12, False),
        (683, 12, True),
        (1023, 32, False),
    ],
)
def test_small_matmuls_are_the_librarys(
    rows: int, columns: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preferences, "mkl_leaves_lanes", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    function = torch.compile(torch.mm, backend="polyfuse", options={"strict": True}, dynamic=False)
    a, b = torch.randn(rows, 128), torch.randn(128, columns)
    torch.testing.assert_close(function(a, b), a @ b)
    assert ("mkldnn._linear_pointwise.default" in last_reports()[-1].calls) is taken
    forget_sessions()


def test_who_made_the_processor(tmp_path):
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t: sse\n")
    assert preferences.vendor(info) == "AuthenticAMD"
    info.write_text("processor\t: 0\nCPU implementer\t: 0x41\n")
    preferences.vendor.cache_clear()
    assert preferences.vendor(info) == "" == preferences.vendor(tmp_path / "none")
    preferences.vendor.cache_clear()


@pytest.mark.slow
def test_sizes_that_are_not_known(run: Any) -> None:
    report = run(lambda x: F.gelu(LINEAR(x)), X[0], dynamic=True)
    assert report.calls == ("mkldnn._linear_pointwise.default",) and report.kernels == 0


@pytest.mark.slow
@pytest.mark.parametrize("then", [F.silu, F.hardswish, lambda x: F.leaky_relu(x, 0.3)])
def test_convolutions_with_an_activation(run: Any, then: Callable[..., Any]) -> None:
    report = run(lambda x: then(CONVOLUTION(x)), torch.randn(3, 4, 9, 11))
    assert report.calls == ("mkldnn._convolution_pointwise.default",) and report.kernels == 0


@pytest.mark.slow
def test_convolutions_with_a_residual(run: Any) -> None:
    x, other = torch.randn(3, 4, 9, 11), torch.randn(3, 6, 5, 6)
    report = run(lambda x, other: CONVOLUTION(x) + other, x, other)
    assert report.calls == ("mkldnn._convolution_pointwise.binary",) and report.kernels == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("then", [F.hardswish, F.leaky_relu, F.silu, torch.tanh])
def test_not_a_number_stays_so_behind_a_convolution(run: Any, then: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, 9, 11)
    x[0, 0, 0, 0] = float("nan")
    in_eager_mode = torch.compiler.disable(lambda y: y.nan_to_num(7.0))  # behind the graph
    run(lambda x: in_eager_mode(then(CONVOLUTION(x))), x)
    assert last_reports()[0].calls == ("mkldnn._convolution_pointwise.default",)


@pytest.mark.quick(1)
@pytest.mark.parametrize("then", [F.relu, F.relu6, F.hardtanh, F.hardsigmoid])
def test_activations_that_make_numbers_of_nan_are_refused(run: Any, then: Callable[..., Any]) -> None:
    x = torch.randn(3, 4, 9, 11)
    x[0, 0, 0, 0] = float("nan")
    in_eager_mode = torch.compiler.disable(lambda y: y.nan_to_num(7.0))  # behind the graph
    run(lambda x: in_eager_mode(then(CONVOLUTION(x))), x)
    report = last_reports()[0]
    assert report.kernels == 1 and "nothing follows" in reasons(report)["cpp:onednn_fused_conv"]


@pytest.mark.slow
def test_relu_behind_a_linear_layer_keeps_nan(run: Any) -> None:
    report = run(lambda x: F.relu(LINEAR(x)).isnan(), torch.full((3, 24), float("nan")))
    assert "nothing follows" in reasons(report)["cpp:onednn_fused"]


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.to(memory_format=torch.channels_last if x.dim() == 4 else torch.channels_last_3d)


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 9, 11)),
        (torch.nn.Conv2d(4, 4, 3, dilation=2, groups=4, bias=False), (1, 4, 9, 11)),
        (torch.nn.Conv2d(4, 6, 3, padding=1).to(memory_format=torch.channels_last), (2, 4, 9, 11)),
        (torch.nn.Conv3d(4, 6, 2), (2, 4, 5, 6, 7)),
    ],
    ids=["groups", "depthwise", "weight too", "3d"],
)
@pytest.mark.parametrize("freezing", [False, True])
def test_convolutions_with_channels_last(run: Any, layer: Any, size: tuple[int, ...], freezing: bool) -> None:
    x = _last(torch.randn(size))
    report = run(lambda x: F.hardswish(layer(x)), x, freezing=freezing)
    assert report.calls[-1] == "mkldnn._convolution_pointwise.default" and report.kernels == 0
    assert len(report.calls) == 1 or report.calls[0].startswith("frozen.")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("layer", "size"),
    [
        (torch.nn.Conv2d(4, 6, 3), (1, 4, 9, 9)),
        (torch.nn.Conv2d(1, 1, 1), (1, 1, 5, 5)),
        (torch.nn.Conv2d(4, 6, 3), (1, 4, 3, 3)),
    ],
    ids=["batch 1", "one channel", "one pixel"],
)
def test_strides_are_those_of_eager_mode(run: Any, layer: Any, size: tuple[int, ...]) -> None:
    x = _last(torch.randn(size))
    found: list[list[int]] = []  # not along extents of 1, where every choice gives what torch announces
    noted = torch.compiler.disable(
        lambda y: found.append([s for n, s in zip(y.shape, y.stride()) if n > 1]) or y
    )
    run(lambda x: noted(F.silu(layer(x))), x)
    assert len(found) == 2 and found[0] == found[1]  # of what is compiled, and of what it is compared with


@pytest.mark.slow
def test_channels_last_with_a_residual(run: Any) -> None:
    x, other = _last(torch.randn(3, 4, 9, 11)), torch.randn(3, 6, 5, 6)
    report = run(lambda x, other: CONVOLUTION(x) + other, x, _last(other))
    assert report.calls == ("mkldnn._convolution_pointwise.binary",) and report.kernels == 0
    report = run(lambda x, other: CONVOLUTION(x) + other, x, other)  # which lies otherwise
    assert report.kernels == 1


@pytest.mark.slow
def test_channels_last_of_a_size_that_varies(run: Any) -> None:
    report = run(lambda x: F.silu(CONVOLUTION(x)), _last(torch.randn(3, 4, 9, 11)), dynamic=True)
    assert report.calls == ("mkldnn._convolution_pointwise.default",)


LINEAR_ONCE, CONVOLUTION_ONCE = "mkldnn._reorder_linear_weight", "mkldnn._reorder_convolution_weight"


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("function", "args", "once", "call"),
    [
        (lambda x: LINEAR(x).cos(), (X,), LINEAR_ONCE, "_linear_pointwise.default"),
        (lambda x: F.linear(x, LINEAR.weight), (X[0],), LINEAR_ONCE, "_linear_pointwise.default"),
        (lambda x: F.gelu(LINEAR(x)), (X,), LINEAR_ONCE, "_linear_pointwise.default"),
        (lambda x, r: r + LINEAR(x), (X, OTHER), LINEAR_ONCE, "_linear_pointwise.binary"),
        (
            lambda x: CONVOLUTION(x).cos(),
            (torch.randn(3, 4, 9, 11),),
            CONVOLUTION_ONCE,
            "_convolution_pointwise.default",
        ),
        (
            lambda x: F.silu(CONVOLUTION(x)),
            (torch.randn(1, 4, 1, 7),),
            CONVOLUTION_ONCE,
            "_convolution_pointwise.default",
        ),
        (
            lambda x, r: CONVOLUTION(x) + r,
            (torch.randn(3, 4, 9, 11), torch.randn(3, 6, 5, 6)),
            CONVOLUTION_ONCE,
            "_convolution_pointwise.binary",
        ),
    ],
    ids=["linear", "no bias", "gelu", "residual", "convolution", "silu", "convolution and residual"],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_are_laid_out_once_and_again_after_a_change(
    run: Any, function: Any, args: tuple[torch.Tensor, ...], once: str, call: str, dynamic: bool
) -> None:
    weight = CONVOLUTION.weight if "convolution" in once else LINEAR.weight
    report = run(function, *args, freezing=True, change=weight, dynamic=dynamic)
    if dynamic and call == "_convolution_pointwise.binary":
        call = "_convolution_pointwise.default"  # nobody knows that both sides of the sum are of one size
    assert report.calls == (f"frozen.{once}.default", f"mkldnn.{call}")


@pytest.mark.slow
def test_weights_that_are_not_stored(run: Any) -> None:
    found = reasons(run(lambda x: F.silu(LINEAR(x)), X))
    assert "only with freezing" in found["cpp:onednn_fused_packed"]
    found = reasons(run(lambda x, w: F.silu(x @ w.t()), X[0], torch.randn(40, 24), freezing=True))
    assert "no whole parameter" in found["cpp:onednn_fused_packed"]
    found = reasons(run(lambda x: F.silu(F.linear(x, LINEAR.weight[:9])), X[0], freezing=True))
    assert "no whole parameter" in found["cpp:onednn_fused_packed"]


@pytest.mark.slow
def test_stored_weights_without_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preferences, "mkl_leaves_lanes", lambda: True)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(preferences, "_FEW_PAIRS", 0)
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    function = torch.compile(LINEAR, backend="polyfuse", options={"strict": True, "freezing": True})
    with torch.no_grad():
        torch.testing.assert_close(function(X), LINEAR(X))
    assert last_reports()[-1].calls == (f"frozen.{LINEAR_ONCE}.default", "mkldnn._linear_pointwise.default")
    forget_sessions()


RESIDUAL = torch.randn(3, 33, 40).bfloat16()


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("function", "rows", "calls"),
    [
        (lambda layer, x: layer(x).cos(), 33, ("default",)),
        (lambda layer, x: F.gelu(layer(x)), 33, ("default",)),
        (lambda layer, x: x[..., :1] + layer(x), 33, ("default",)),
        (lambda layer, x: layer(x) + RESIDUAL.to(x.dtype), 33, ("binary",)),
        (lambda layer, x: (layer(x) + RESIDUAL.to(x.dtype)).float(), 33, ("default",)),
        (lambda layer, x: layer(x).cos(), 2, ()),
    ],
    ids=["alone", "gelu", "broadcast", "residual", "sum that stays wide", "few rows"],
)
def test_weights_of_16_bits_are_laid_out_once_where_rows_are_many(
    function: Callable[..., Any], rows: int, calls: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    computes = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    monkeypatch.setattr(library, "narrow_types", lambda: frozenset({DType.bf16}))
    monkeypatch.setattr("polyfuse_cpp.isa.dot_instructions", lambda: ())  # else they are generated in pairs
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(24, 40).bfloat16(), torch.randn(3, rows, 24).bfloat16()
    if rows == 2:
        x = x[0]
    torch.compiler.reset()
    reset_reports()
    options = {"strict": True, "freezing": True}
    call = torch.compile(lambda x: function(layer, x), backend="polyfuse", options=options)
    refused = nullcontext() if computes or not calls else pytest.raises(RuntimeError, match="bf16")
    with torch.no_grad(), refused:
        for change in (0.0, 0.5):
            layer.weight.add_(change)
            exact = function(copy.deepcopy(layer).double(), x.double()).double()
            torch.testing.assert_close(call(x).double(), exact, rtol=2e-2, atol=2e-2)
    found = last_reports()[-1].calls
    assert [n for n in found if n.startswith("mkldnn")] == [f"mkldnn._linear_pointwise.{c}" for c in calls]
    assert sum(LINEAR_ONCE in name for name in found) == len(calls)


def test_weights_of_16_bits_stay_as_they_are_without_freezing(run: Any) -> None:
    layer = torch.nn.Linear(24, 40).bfloat16()
    found = reasons(run(lambda x: F.gelu(layer(x)), X.bfloat16()))
    assert "only with freezing" in found["cpp:onednn_fused_packed"]


def test_refusals(run: Any) -> None:
    w = torch.randn(24, 40)
    found = reasons(run(lambda x: F.silu(x @ w[:, ::2]), X[0]))
    assert "contiguous along either axis" in found["cpp:onednn"]
    found = reasons(run(lambda x: torch.cos(LINEAR(x)), X))
    assert "nothing follows" in found["cpp:onednn_fused"]
    found = reasons(run(lambda x: F.silu(CONVOLUTION(x)), torch.randn(3, 4, 9, 22)[..., ::2]))
    assert "nor have both their channels last" in found["cpp:onednn_fused_conv"]


@pytest.mark.slow
def test_more_refusals(run: Any) -> None:
    w = torch.randn(24, 40)
    found = reasons(run(lambda x: F.silu(x @ w), X[0]))
    assert "contiguous along the depth" in found["cpp:onednn_fused"]
    found = reasons(run(lambda x, b: torch.addmm(b, x, LINEAR.weight.t()), X[0], OTHER[0]))
    assert "a number for each column" in found["cpp:onednn"]
    found = reasons(run(lambda x: torch.addmm(LINEAR.bias, x, LINEAR.weight.t(), beta=2), X[0]))
    assert found["cpp:onednn"] == "it is scaled"
    found = reasons(run(lambda x: F.silu(F.linear(x, LINEAR.weight.double())), X[0].double()))
    assert "f32" in found["cpp:onednn"]
    found = reasons(run(lambda x: F.silu(LINEAR(x).reshape(560)), X))
    assert "another shape" in found["cpp:onednn_fused"]


def test_not_offered_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert library_choices() == ()
