"""Linear layers of batches of rows are one matmul, and images are convolved before they are enlarged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from polyfuse.base.settings import Settings
from polyfuse.frontend.decompositions.decompose import decomposition_table
from polyfuse.frontend.rewrites.passes import rewrite_graph
from polyfuse.frontend.rewrites.tools import Stage


def rewritten(
    function: Callable[..., Any], *inputs: torch.Tensor, stage: Stage = "inference", numerics: str = "fast"
) -> tuple[dict[str, int], list[torch.fx.Node]]:
    """What applied how often, and the calls that are left; the result must be the same."""
    with torch.no_grad():
        module = make_fx(function, decomposition_table=dict(decomposition_table()), tracing_mode="fake")(
            *inputs
        )
        before = module(*inputs)
        counts = dict(rewrite_graph(module, Settings(numerics=numerics), stage=stage))
        torch.testing.assert_close(module(*inputs), before, rtol=1e-5, atol=1e-5)
    return counts, [node for node in module.graph.nodes if node.op == "call_function"]


def named(calls: list[torch.fx.Node], name: str) -> list[torch.fx.Node]:
    return [node for node in calls if str(node.target) == f"aten.{name}"]


ROWS, WEIGHT, BIAS = torch.randn(2, 3, 4, 6), torch.randn(5, 6), torch.randn(5)


def as_image(rows: torch.Tensor) -> torch.Tensor:
    return rows.relu().permute(0, 3, 1, 2).contiguous()


def of_pixels(image: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return functional.linear(image.flatten(2).transpose(1, 2), weight, bias)


def test_rows_copied_to_an_image_are_multiplied_where_they_lay() -> None:
    counts, calls = rewritten(lambda r, w, b: of_pixels(as_image(r), w, b), ROWS, WEIGHT, BIAS)
    assert counts["join-rows"] == 1 and not named(calls, "bmm.default")
    assert len(named(calls, "mm.default")) == 1 and not named(calls, "clone.default")


def test_one_image_needs_no_copy() -> None:
    counts, calls = rewritten(of_pixels, torch.randn(1, 6, 3, 4), WEIGHT, BIAS)
    assert counts["join-rows"] == 1 and not named(calls, "bmm.default")


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        pytest.param(of_pixels, (2, 6, 3, 4), id="several images would be copied"),
        pytest.param(
            lambda r, w, b: of_pixels(r.permute(0, 3, 2, 1).contiguous(), w, b), (2, 3, 4, 6), id="transposed"
        ),
        pytest.param(
            lambda r, w, b: functional.linear(as_image(r).flatten(2), w, b),
            (2, 2, 3, 4),
            id="channels as rows",
        ),
    ],
)
def test_rows_that_lie_elsewhere_stay(function: Callable[..., Any], shape: tuple[int, ...]) -> None:
    counts, _ = rewritten(function, torch.randn(shape), WEIGHT, BIAS)
    assert "join-rows" not in counts


def by_heads(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.einsum("ibh,hnd->ibnd", rows, weight)


def test_a_batch_of_one_is_a_matmul_of_rows() -> None:
    heads = torch.randn(6, 2, 5)
    counts, calls = rewritten(by_heads, ROWS[0], heads)
    assert counts["join-rows"] == 1 and not named(calls, "bmm.default")
    assert "join-rows" not in rewritten(torch.bmm, ROWS[0], ROWS[0].mT.contiguous())[0]
    assert "join-rows" not in rewritten(by_heads, ROWS[0], heads, stage="joint")[0]


@pytest.mark.parametrize("shape", [(1, 5), (6, 1)])
def test_a_weight_that_repeats_its_rows_or_columns_stays(shape: tuple[int, int]) -> None:
    counts, _ = rewritten(lambda r, w: torch.bmm(r, w.expand(1, 6, 5)), ROWS[:1, 0], torch.randn(shape))
    assert "join-rows" not in counts


def test_training_multiplies_what_was_copied() -> None:
    counts, _ = rewritten(lambda r, w, b: of_pixels(as_image(r), w, b), ROWS, WEIGHT, BIAS, stage="joint")
    assert "join-rows" not in counts


def enlarged(image: torch.Tensor, factor: int = 2, **how: Any) -> torch.Tensor:
    return functional.interpolate(image, scale_factor=factor, **{"mode": "bilinear", **how})


PIXELS, SMALL, SMALLER = torch.randn(2, 16, 8, 8), torch.randn(2, 16, 4, 4), torch.randn(2, 16, 2, 2)


@pytest.mark.parametrize(
    "how", [{}, {"align_corners": True}, {"mode": "nearest"}], ids=["bilinear", "corners", "nearest"]
)
def test_an_image_is_convolved_before_it_is_enlarged(how: dict[str, Any]) -> None:
    weight, bias = torch.randn(8, 16, 1, 1), torch.randn(8)
    counts, calls = rewritten(
        lambda x, w, b: functional.conv2d(enlarged(x, **how), w, b), SMALL, weight, bias
    )
    (convolution,) = named(calls, "convolution.default")
    assert counts["convolve-before-enlarging"] == 1
    assert convolution.meta["val"].shape == (2, 8, 4, 4)


def test_parts_of_a_concatenation_are_convolved_with_their_weights() -> None:
    def head(*of: torch.Tensor) -> torch.Tensor:
        first, small, smaller, last, weight, bias = of
        joined = torch.cat([first, enlarged(small), enlarged(smaller, 4), last], 1)
        return functional.conv2d(joined, weight, bias)

    inputs = (PIXELS, SMALL, SMALLER, PIXELS.sin(), torch.randn(8, 64, 1, 1), torch.randn(8))
    counts, calls = rewritten(head, *inputs)
    sizes = [node.meta["val"].shape[-1] for node in named(calls, "convolution.default")]
    assert counts["convolve-before-enlarging"] == 1 and sizes == [8, 4, 2]
    assert "convolve-before-enlarging" not in rewritten(head, *inputs, numerics="eager")[0]


@pytest.mark.parametrize(
    ("function", "taps"),
    [
        pytest.param(
            lambda x, w: functional.conv2d(enlarged(x), w, padding=1), (8, 16, 3, 3), id="neighbours"
        ),
        pytest.param(lambda x, w: functional.conv2d(enlarged(x), w, padding=1), (8, 16, 1, 1), id="a border"),
        pytest.param(lambda x, w: functional.conv2d(enlarged(x), w, stride=2), (8, 16, 1, 1), id="a stride"),
        pytest.param(lambda x, w: functional.conv2d(enlarged(x), w, groups=2), (8, 8, 1, 1), id="groups"),
        pytest.param(lambda x, w: functional.conv2d(enlarged(x), w), (32, 16, 1, 1), id="more to enlarge"),
        pytest.param(
            lambda x, w: functional.conv2d(enlarged(x, mode="bicubic"), w), (8, 16, 1, 1), id="bicubic"
        ),
        pytest.param(
            lambda x, w: (functional.conv2d(y := enlarged(x), w), y), (8, 16, 1, 1), id="read elsewhere"
        ),
    ],
)
def test_others_are_enlarged_first(function: Callable[..., Any], taps: tuple[int, ...]) -> None:
    counts, _ = rewritten(function, SMALL, torch.randn(taps))
    assert "convolve-before-enlarging" not in counts
