"""Windows of a tensor (`unfold`) that are written: what lies between them stays, and nothing is added up."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_map_only

from polyfuse.torch_compat.captures.written_windows import writes_to_windows


class Holder(torch.Tensor):
    """A tensor around another one, whose views share memory with it in what they hold alone."""

    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype
        )

    def __init__(self, held):
        self.held = held

    def __tensor_flatten__(self):
        return ["held"], None

    @staticmethod
    def __tensor_unflatten__(inner, meta, size, stride):
        return Holder(inner["held"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        given = tree_map_only(Holder, lambda each: each.held, (args, kwargs or {}))
        made = func(*given[0], **given[1])
        return args[0] if made is given[0][0] else tree_map_only(torch.Tensor, Holder, made)


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


def read_in_vmap(x):
    return torch.func.vmap(lambda row: row.unfold(0, 2, 3).sum(-1) + row.sum())(x[:10].view(2, 5)), x.sin()


def columns(x):
    y = torch.nn.functional.unfold(x[:8].view(1, 1, 2, 4), kernel_size=2, dilation=1)
    return y.mul_(2), x.sin()


def gaps_of_an_operator(x):
    torch.ops.aten.unfold.default(x, 0, 2, 3).add_(1)
    return x * 1


def written_in_vmap(x):
    def write(row):
        row = row.clone()
        row.unfold(0, 2, 3).mul_(2)
        return row

    return torch.func.vmap(write)(x[:10].view(2, 5))


READ = [followed, read, read_in_vmap, columns]
WRITTEN = [tail, gaps, overlapping, into_out, gaps_of_an_operator, written_in_vmap]


@pytest.mark.parametrize("function", [*WRITTEN, *READ])
def test_windows_that_are_written(function):
    torch.compiler.reset()
    captured = []

    def noted(gm, example_inputs):
        captured.append(writes_to_windows(gm))
        return gm.forward

    torch.compile(function, backend=noted)(torch.arange(11.0))
    assert captured == [function not in READ]
    x, y = torch.arange(11.0), torch.arange(11.0)
    expected = function(x)
    compiled = torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"]})
    torch.testing.assert_close(compiled(y), expected)
    torch.testing.assert_close(y, x)


def test_windows_of_a_class_of_tensors_that_are_written():
    torch.compiler.reset()

    def write(x):
        x.unfold(0, 2, 3).transpose(0, 1).add_(1)
        return x * 2

    x, y = Holder(torch.arange(8.0)), Holder(torch.arange(8.0))
    expected = write(x)
    compiled = torch.compile(write, backend="polyfuse", options={"backends": ["interpreter"]})
    torch.testing.assert_close(compiled(y).held, expected.held)
    torch.testing.assert_close(y.held, x.held)
