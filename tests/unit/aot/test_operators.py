"""Operators of eager mode that compiled kernels compute: right, found again, and taken back."""

from __future__ import annotations

import json
import threading

import pytest
import torch

import preforked
from packaged_models import in_a_process
from polyfuse.aot import eager_operators
from polyfuse.aot.operators import OperatorFolder
from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import child_environment
from polyfuse.cache.records import parse_record, write_record

SOFTMAX = "aten._softmax.default"

SCRIPT = """
import json, sys, torch
from polyfuse.aot import eager_operators
with eager_operators(["aten._softmax", "aten.mm"]) as found:
    # so large that the library's product is known to be faster on every processor
    x = torch.arange(25600, dtype=torch.float32).view(128, 200).sin()
    result = [*x.softmax(-1).sum(0).tolist(), (x @ x.t()).sum().item()]
print(json.dumps([dict(found.counts), result, list(sys.modules)]))
"""


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def listing(cache):
    return cache / "operators" / "aten" / "cpu" / "_softmax.default.json"


SPECIAL = [[float("inf"), 1.0], [float("nan"), 0.0], [-0.0, 0.0], [-float("inf"), 2.0]]
OPERANDS = {
    "transposed": lambda: torch.randn(7, 5).t(),
    "none": lambda: torch.randn(0, 7),
    "special": lambda: torch.tensor(SPECIAL),
    "rows": lambda: torch.randn(5, 7),
    "in steps": lambda: torch.randn(5, 14)[:, ::2],
    "one": lambda: torch.randn(1, 1),
}


@pytest.mark.parametrize(
    "names", [tuple(OPERANDS)[:3], pytest.param(tuple(OPERANDS)[3:], marks=pytest.mark.slow)], ids=", ".join
)
def test_results_are_those_of_eager_mode_and_kernels_are_put_back(names):
    for x in (OPERANDS[name]() for name in names):
        wanted = x.softmax(-1), x.sigmoid()
        with eager_operators([SOFTMAX, "aten::sigmoid"]) as found:
            results = x.softmax(-1), x.sigmoid()
            again = x.softmax(-1)
        assert found.counts["calls"] == 3, found.refusals
        assert [r.stride() for r in results] == [w.stride() for w in wanted]
        torch.testing.assert_close(results, wanted, equal_nan=True)
        assert torch.equal(again.nan_to_num(), results[0].nan_to_num())
        x.softmax(-1)
        assert found.counts["calls"] == 3


def test_gradients_are_those_of_eager_mode():
    x, w = torch.randn(6, 9, requires_grad=True), torch.randn(6, 9)
    (wanted,) = torch.autograd.grad((x.softmax(-1) * w).sum(), x)
    with eager_operators([SOFTMAX, "aten._softmax_backward_data"]) as found:
        y = x.softmax(-1)
        assert y.requires_grad
        (result,) = torch.autograd.grad((y * w).sum(), x)
    assert found.counts["calls"] == 2, found.refusals
    torch.testing.assert_close(result, wanted)
    with eager_operators([SOFTMAX]) as found:
        double = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x: x.softmax(-1), (double,))
    assert found.counts["calls"] > 0


def test_a_second_process_compiles_nothing(own_cache):
    done = preforked.run(SCRIPT)
    assert done.returncode == 0, done.stderr[-3000:]
    first = json.loads(done.stdout.splitlines()[-1])
    second = in_a_process(SCRIPT, POLYFUSE_CACHE_DIR=str(own_cache))
    assert first[0] == {"compiled": 2, "calls": 1, "eager": 1}
    assert second[0] == {"found": 2, "calls": 1, "eager": 1}
    assert second[1] == pytest.approx(first[1])
    compiler = {"sympy", "torch._dynamo", "polyfuse.compiler.packages.package", "polyfuse.lowering"}
    assert sorted(compiler & set(second[2])) == []


def test_a_deleted_or_damaged_package_is_a_miss(own_cache):
    x = torch.randn(4, 6)

    def counts():
        with eager_operators([SOFTMAX]) as found:
            torch.testing.assert_close(x.softmax(-1), wanted)
        return dict(found.counts)

    wanted = x.softmax(-1)
    assert counts() == {"compiled": 1, "calls": 1}
    assert counts() == {"found": 1, "calls": 1}
    (package,) = own_cache.rglob("*.pf")
    package.unlink()
    assert counts() == {"compiled": 1, "calls": 1}
    package.write_bytes(b"no package")
    assert counts() == {"found": 1, "compiled": 1, "calls": 1}
    for text in ("{", "[]", '{"call": {"fiel": "x"}}'):
        listing(own_cache).write_text(text)
        assert counts() == {"compiled": 1, "calls": 1}
    assert counts() == {"found": 1, "calls": 1}


def test_a_listing_leads_nowhere_else(own_cache):
    folder = OperatorFolder(own_cache, SOFTMAX, "cpu")
    folder.folder.mkdir(parents=True)
    write_record(listing(own_cache), {"call": {"file": "../../x.pf"}})
    (folder.folder.parent / "x.pf").touch()
    assert folder.find("call") is None


def test_processes_side_by_side_leave_a_whole_listing(own_cache):
    script = """
import sys, torch
from polyfuse.aot import eager_operators
with eager_operators(["aten._softmax"]) as found:
    for n in (3, int(sys.argv[1])):
        torch.randn(n, 4).softmax(-1)
assert found.counts["calls"] == 2, found.refusals
"""
    environment = {**child_environment(), "POLYFUSE_CACHE_DIR": str(own_cache)}
    running = [preforked.start(script, str(n), environment=environment) for n in (5, 6, 7)]
    for process in running:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said[-2000:]
    rows = parse_record(listing(own_cache).read_text())
    assert len(rows) == 4 and len(list(own_cache.rglob("*.pf"))) == 4


@pytest.mark.slow
def test_one_form_for_all_sizes():
    with eager_operators([SOFTMAX], dynamic=True) as found:
        for shape in ((3, 5), (8, 9), (2, 2), (31, 4)):
            x = torch.randn(shape)
            exponentials = (x - x.amax(-1, keepdim=True)).exp()
            torch.testing.assert_close(x.softmax(-1), exponentials / exponentials.sum(-1, keepdim=True))
        assert found.counts == {"compiled": 1, "calls": 4}
        torch.randn(1, 5).softmax(-1)
        torch.randn(5, 3).t().softmax(-1)
    assert found.counts["compiled"] == 3 and found.counts["calls"] == 6


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("aten.add_.Tensor", "it writes to its arguments"),
        ("aten.transpose.int", "returns views"),
        ("aten.bernoulli", "it draws random numbers"),
        ("aten.softmax.int", "it is made of other operators"),
        ("aten.zeros", "no tensors among its arguments"),
        ("aten.add", "no single overload|no tensors"),
        ("aten.no_such_operator", "torch has no operator"),
    ],
)
def test_what_cannot_be_replaced_is_refused(name, reason):
    with pytest.raises(UnsupportedError, match=reason):
        eager_operators([SOFTMAX, name])
    with eager_operators([SOFTMAX]):  # nothing was left replaced
        pass


def test_calls_that_cannot_be_compiled_are_left_to_torch():
    x = torch.randn(3, 4)
    with eager_operators([SOFTMAX, "aten.mm"], options={"backends": []}) as found:
        torch.testing.assert_close(x @ x.t(), torch.einsum("ik,jk->ij", x, x))
        with pytest.raises(IndexError):
            x.softmax(7)
    assert found.counts["eager"] >= 1 and "a library computes it" in found.refusals["aten.mm.default"]
    assert "cannot be compiled" in found.refusals[SOFTMAX]


def test_replaced_twice_and_taken_back_in_turn():
    x = torch.randn(3, 4)
    with eager_operators([SOFTMAX]) as outer:
        with eager_operators([SOFTMAX]) as inner:
            x.softmax(-1)
        assert inner.counts["calls"] == 1 and outer.counts["calls"] == 0
        x.softmax(-1)
    assert outer.counts["calls"] == 1


def test_threads():
    x = torch.randn(6, 4)
    wanted = x.softmax(-1)
    results = []
    with eager_operators([SOFTMAX]) as found:
        threads = [threading.Thread(target=lambda: results.append(x.softmax(-1))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 6 and found.counts["compiled"] == 1
    for result in results:
        torch.testing.assert_close(result, wanted)


def test_compiled_functions_trace_as_ever():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.softmax(-1) + 1, backend="polyfuse")
    x = torch.randn(3, 4)
    with eager_operators([SOFTMAX]):
        torch.testing.assert_close(compiled(x), x.softmax(-1) + 1)
