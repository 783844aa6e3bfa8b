"""What tests run on fake devices."""

from __future__ import annotations

import traceback
from typing import Any
from unittest.mock import patch

import torch

from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.ir.interpreter.interpret import run_kernel
from polyfuse.reference.backend import Interpreted, InterpreterBackend

F = torch.nn.functional


def _on_host(self: Interpreted, *operands: Any) -> None:
    """Interpret a kernel on addresses, which are the host's: a kernel neither allocates nor waits."""
    found = [o.data_ptr() if isinstance(o, torch.Tensor) else o for o in operands]
    for arg, value in zip(self.kernel.args, found, strict=True):
        assert not arg.aligned or value % 16 == 0, f"{arg.name} is not aligned"
    run_kernel(self.kernel, found)


Interpreted.__call__ = _on_host  # type: ignore[method-assign]


def _compile(function: Any, **options: Any) -> Any:
    torch.compiler.reset()
    return torch.compile(function, backend="polyfuse", options={"backends": ["interpreter"], **options})


def _check(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def every_case(cases: list[list[Any]]) -> dict[str, Any]:
    """Each case `[function, arguments...]` in turn: what it returns, or how it failed."""
    found: dict[str, Any] = {}
    for name, *arguments in cases:
        reset_reports()
        label = name if name == "native_packages" else " ".join([name, *arguments[:1]])
        try:
            found[label] = globals()[name](*arguments)
        except Exception:
            found[label] = {"failed": traceback.format_exc()[-4000:]}
    return found


def native_packages(folder: str, models: list[str]) -> dict[str, str]:
    """Paths of packages of these models with libraries that run without Python."""
    from fake_device.native_models import packages

    torch.compiler.reset()
    return packages(folder, models)


def training_step(device: str) -> dict[str, Any]:
    """A model forward and backward, with another device current than its own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3)
    ).to(device)
    x, target = torch.randn(5, 6, device=device), torch.randint(0, 3, (5,), device=device)

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(model(x), target)

    expected = loss(x, target)
    expected.backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    compiled = _compile(loss)
    before = torch.cuda.current_device()
    actual = compiled(x, target)
    actual.backward()
    _check(actual, expected)
    for p, grad in zip(model.parameters(), wanted, strict=True):
        assert p.grad is not None and p.grad.device == torch.device(device)
        _check(p.grad, grad)
    return {
        "device": str(actual.device),
        "current": [before, torch.cuda.current_device()],
        "eager": [r.eager for r in last_reports() if r.eager],
        "kernels": sum(r.kernels for r in last_reports()),
    }


def number_of_the_processor(device: str) -> dict[str, Any]:
    """Tensors of no dimensions on the CPU meet tensors on a device without waiting for it."""
    from fake_device.start import FAKE

    x = torch.randn(4, 5, device=device)
    scale, shift, count = torch.tensor(2.5), torch.tensor(3, dtype=torch.int64), torch.tensor(True)

    def model(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, count: torch.Tensor) -> Any:
        return x * scale + shift, torch.where(count, x, scale), x.sum() * (scale + 1)

    compiled = _compile(model)
    _check(compiled(x, scale, shift, count), model(x, scale, shift, count))
    before = FAKE.fake_synchronizations()
    y = compiled(x, scale + 1, shift, count)
    waited = FAKE.fake_synchronizations() - before
    _check(y, model(x, scale + 1, shift, count))
    return {"devices": [str(t.device) for t in y], "waited": waited, "graphs": len(last_reports())}


def copies() -> dict[str, Any]:
    """Tensors that move between devices in the middle of a graph."""

    def model(x: torch.Tensor, y: torch.Tensor) -> Any:
        far = (x + 1).to("cuda:1") * y
        near = far.cpu() * 2
        return far.relu(), near, near.to(x.device) + x, far.to(x.device, torch.float64)

    x, y = torch.randn(3, 4, device="cuda:0"), torch.randn(3, 4, device="cuda:1")
    actual, expected = _compile(model)(x, y), model(x, y)
    _check(actual, expected)
    assert [t.device for t in actual] == [t.device for t in expected]
    return {"eager": [r.eager for r in last_reports() if r.eager], "kernels": last_reports()[-1].kernels}


def two_devices_training() -> dict[str, Any]:
    """Halves of a model on two devices, forward and backward."""
    first, second = torch.nn.Linear(4, 6).to("cuda:0"), torch.nn.Linear(6, 2).to("cuda:1")
    x = torch.randn(3, 4, device="cuda:0")

    def model(x: torch.Tensor) -> torch.Tensor:
        return second(first(x).tanh().to("cuda:1")).square().sum()

    parameters = [*first.parameters(), *second.parameters()]
    expected = torch.autograd.grad(model(x), parameters)
    actual = torch.autograd.grad(_compile(model)(x), parameters)
    for a, b in zip(actual, expected, strict=True):
        assert a.device == b.device
        _check(a, b)
    return {"eager": [r.eager for r in last_reports() if r.eager]}


class _Mapped:
    """Symmetric memory of two processes that hold the same."""

    rank = 0

    def __init__(self) -> None:
        self.barriers = 0
        self.own = self.other = torch.empty(0)

    def empty(self, *size: int, **options: Any) -> torch.Tensor:
        self.own, self.other = (torch.zeros(*size, **options) for _ in range(2))
        return self.own

    def rendezvous(self, own: torch.Tensor, group: str) -> _Mapped:
        return self

    def get_buffer(self, rank: int, size: Any, dtype: torch.dtype) -> torch.Tensor:
        return self.other

    def barrier(self, channel: int) -> None:
        self.barriers += 1
        self.other.copy_(self.own)


def exchanges(device: str) -> dict[str, Any]:
    """Sums of two processes, of which each reads what the other one has."""
    from torch.distributed import _symmetric_memory as memory

    import delayed_group
    from polyfuse.torch_compat import symmetric

    def total(x: torch.Tensor) -> torch.Tensor:
        found = torch.ops._c10d_functional.all_reduce(x, "sum", "0")
        return torch.ops._c10d_functional.wait_tensor(found)

    def block(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        x = x + total(x @ w)
        return x + total(F.rms_norm(x, (16,)).relu() @ v)

    mapped, results = _Mapped(), list[Any]()
    delayed_group.start()
    try:
        generator = torch.Generator().manual_seed(3)
        x, w, v = (torch.randn(16, 16, generator=generator).bfloat16().to(device) / 4 for _ in range(3))
        with (
            memory._test_mode(),
            patch.object(memory, "empty", mapped.empty),
            patch.object(memory, "rendezvous", mapped.rendezvous),
            patch.object(symmetric, "_slots", {}),
        ):
            run = _compile(block, strict=True)
            results = [run(x + k, w, v) for k in range(3)]
        for k, result in enumerate(results):
            torch.testing.assert_close(result, block(x + k, w, v), rtol=2e-2, atol=2e-2)
    finally:
        delayed_group.stop()
    report = last_reports()[-1]
    return {"barriers": mapped.barriers, "kernels": report.kernels, "rewrites": dict(report.rewrites)}


def odd_addresses(device: str) -> dict[str, Any]:
    """Inputs that begin in the middle of others, on a device that loads several elements at once."""
    from wide_device import WIDE

    with patch.object(InterpreterBackend, "target_info", lambda self, device: WIDE):
        return _odd_addresses(device)


def _odd_addresses(device: str) -> dict[str, Any]:
    from polyfuse.compiler.session import forget_sessions

    forget_sessions()
    base = torch.randn(64, device=device)

    def model(x: torch.Tensor, y: torch.Tensor) -> Any:
        y.add_(1)
        return x.exp() + y, (x * 2).sum()

    compiled = _compile(model)
    for start in (0, 4, 1, 7):
        mine, theirs = base.clone(), base.clone()
        _check(
            compiled(mine[start : start + 20], mine[25 + start : 45 + start]),
            model(theirs[start : start + 20], theirs[25 + start : 45 + start]),
        )
        _check(mine, theirs)
    return {"graphs": len(last_reports()), "eager": [r.eager for r in last_reports() if r.eager]}


def memory(device: str) -> dict[str, Any]:
    """Intermediate tensors are made on the device of the graph, and reused."""
    from fake_device.start import FAKE

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = (x @ w).relu()
        return x

    x, w = torch.randn(8, 8, device=device), torch.randn(8, 8, device=device)
    compiled = _compile(model)
    _check(compiled(x, w), model(x, w))
    before = [FAKE.fake_allocations(k) for k in range(2)]
    compiled(x, w)
    after = [FAKE.fake_allocations(k) for k in range(2)]
    return {"made": [b - a for a, b in zip(before, after, strict=True)]}


def sizes_known_when_called(device: str) -> dict[str, Any]:
    def model(x: torch.Tensor) -> Any:
        return torch.softmax(x, -1), x.mean(0), torch.cat([x, x * 2], 1)

    torch.compiler.reset()
    compiled = torch.compile(model, backend="polyfuse", dynamic=True, options={"backends": ["interpreter"]})
    for rows, columns in ((3, 5), (7, 2), (4, 9)):
        x = torch.randn(rows, columns, device=device)
        _check(compiled(x), model(x))
    return {"graphs": len(last_reports())}


def random_numbers(device: str) -> dict[str, Any]:
    """Random numbers are those of eager mode."""
    x = torch.randn(40, 50, device=device)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.randn(50, device=device)

    torch.manual_seed(5)
    expected = model(x)
    torch.manual_seed(5)
    _check(_compile(model)(x), expected)
    scaled = _compile(lambda x: F.dropout(x, 0.5))(torch.ones_like(x))
    return {"share": (scaled == 0).float().mean().item(), "values": sorted(set(scaled.flatten().tolist()))}


def optimizer(device: str) -> dict[str, Any]:
    """A step of Adam over a list of parameters."""

    def parameters() -> list[torch.Tensor]:
        torch.manual_seed(1)
        return [torch.randn(n, 3, device=device, requires_grad=True) for n in (2, 4, 4)]

    mine, theirs = parameters(), parameters()
    ours, eagers = (torch.optim.Adam(p, lr=0.1, capturable=True) for p in (mine, theirs))

    def step(optimizer: Any, parameters: Any) -> None:
        for k, p in enumerate(parameters):
            p.grad = torch.full_like(p, 0.1 * (k + 1))
        optimizer.step()

    torch._dynamo.config.suppress_errors = False
    compiled = _compile(ours.step)
    for _ in range(3):
        step(eagers, theirs)
        for k, p in enumerate(mine):
            p.grad = torch.full_like(p, 0.1 * (k + 1))
        with torch.no_grad():
            compiled()
    _check(mine, theirs)
    return {"eager": [r.eager for r in last_reports() if r.eager]}


def side_stream(device: str) -> dict[str, Any]:
    """A launcher finds the stream that is current when the program is called."""
    from fake_device.start import FAKE

    seen: list[int] = []
    call = Interpreted.__call__

    def noting(self: Interpreted, *operands: Any) -> None:
        seen.append(FAKE.fake_current_stream(0))
        call(self, *operands)

    x = torch.randn(4, device=device)
    compiled = _compile(lambda x: x * 2)
    with patch.object(Interpreted, "__call__", noting):
        for stream in (0, 1, 0):
            FAKE.fake_set_stream(0, stream)
            _check(compiled(x), x * 2)
    return {"streams": seen}


def operators(device: str, names: list[str]) -> dict[str, Any]:
    """The check of operators that sweeps of the database make."""
    from polyfuse_bench.opdb.check import CheckSettings, check, items

    settings = CheckSettings("polyfuse", samples=1, gradients=True, device=device)
    with patch.dict("os.environ", {"POLYFUSE_BACKENDS": "interpreter"}):
        return {item.op: check(item, settings).status for item in items(["float32"], names, device)}


def without_memory(device: str) -> dict[str, Any]:
    """A training step, compiled anew, with no memory from the n-th allocation on, for each n: it ends in
    torch's own error, and the same function works when there is memory again.
    """
    from ctypes import c_int64

    from fake_device.start import FAKE

    x, w = torch.randn(4, 6, device=device), torch.randn(6, 6, device=device, requires_grad=True)
    scale = torch.tensor([2.0, 3.0] * 3, device=device)

    def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.softmax(x @ w, -1) * (scale + 1)).cumsum(0).sum()

    (expected,) = torch.autograd.grad(model(x, w), w)
    ended, number = 0, 0
    while True:
        run = _compile(model)
        FAKE.fake_allocations_left(c_int64(number))
        try:
            torch.autograd.grad(run(x, w), w)
            break
        except torch.OutOfMemoryError:
            ended += 1
        finally:
            FAKE.fake_allocations_left(c_int64(-1))
        for _ in range(2):
            (actual,) = torch.autograd.grad(run(x, w), w)
            _check(actual, expected)
        number += 1
    return {
        "ended": ended,
        "eager": [r.eager for r in last_reports() if r.eager],
        "launches": sorted({one.backend for r in last_reports() for one in r.launches}),
    }
