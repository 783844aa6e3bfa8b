"""Windows of a tensor (`unfold`) that are written: what lies between them stays, and nothing is added up."""

from __future__ import annotations

import pytest
import torch

from polyfuse.torch_compat.captures.written_windows import writes_to_windows


def tail(x):
    x.unfold(0, 2, 2).add_(1)
    return x * 1


def gaps(x):
    windows = x.unfold(-1, size=2, step=3)
    windows[:1].mul_(2)
    return windows.sum(), x + 1


def overlapping(x):
    x = x.clone()
    x.unfold(0, 3, 2)[0] = 5.0
    return x


def into_out(x):
    torch.add(torch.ones(2), 1, out=x.unfold(0, 2, 3)[1])
    return x.sin()


def followed(x):
    x[:6].unfold(0, 2, 2).add_(1)
    return x * 1


def read(x):
    y = torch.zeros(3, 2)
    y[0] = x.unfold(0, 2, 3)[1]
    x.add_(y.sum())
    return y, x.unfold(0, 3, 2).clone().mul_(2)


@pytest.mark.parametrize("function", [tail, gaps, overlapping, into_out, followed, read])
def test_windows_that_are_written(function):
    torch.compiler.reset()
    captured = []

    def noted(gm, example_inputs):
        captured.append(writes_to_windows(gm))
        return gm.forward

    torch.compile(function, backend=noted)(torch.arange(11.0))
    assert captured == [function not in (followed, read)]
    x, y = torch.arange(11.0), torch.arange(11.0)
    expected = function(x)
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"]})
    torch.testing.assert_close(compiled(y), expected)
    torch.testing.assert_close(y, x)
