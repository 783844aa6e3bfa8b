"""Random numbers: eager operators in program order, so that a compiled model draws what eager mode draws."""

from __future__ import annotations

from typing import Any

from polyfuse.lowering.calls.extern import call
from polyfuse.lowering.context import LoweringContext
from polyfuse.lowering.registry import lowers
from polyfuse.torch_compat import ops

DRAWING = [
    "rand.default",
    "rand.generator",
    "randn.default",
    "randn.generator",
    "rand_like.default",
    "randn_like.default",
    "randint.default",
    "randint.low",
    "randint.generator",
    "randint.low_generator",
    "randint_like.default",
    "randint_like.low_dtype",
    "randperm.default",
    "randperm.generator",
    "bernoulli.default",
    "bernoulli.p",
    "bernoulli.Tensor",
    "uniform.default",
    "normal_functional.default",
    "normal.Tensor_Tensor",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "exponential.default",
    "geometric.default",
    "cauchy.default",
    "log_normal.default",
    "random.default",
    "random.from",
    "random.to",
    "multinomial.default",
    "poisson.default",
    "binomial.default",
    "rrelu_with_noise.default",
    "rrelu_with_noise_functional.default",
    "native_dropout.default",
]


@lowers(*(f"aten.{name}" for name in DRAWING), library=True)
def draw(ctx: LoweringContext, node: Any, *args: Any, **named: Any) -> Any:
    return call(ctx, node.meta["val"], ops.op_name(node.target), args, named, ordered=True)
