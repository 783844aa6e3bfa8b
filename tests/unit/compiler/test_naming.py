from __future__ import annotations

from dataclasses import replace

from ir_samples import softmax_kernel
from polyfuse.compiler.reports.naming import readable_name
from polyfuse.ir.nodes import Origin


def test_styles() -> None:
    origins = (Origin("aten.relu.default", "relu_3"), Origin("aten.add.Tensor", "add_1"))
    kernel = replace(softmax_kernel(), origins=origins)
    assert readable_name(kernel) == "fused_relu_add"
    assert readable_name(kernel, "graph") == "fused_relu_3_add_1"
    assert readable_name(kernel, "plain") == kernel.name


def named(*ops: str) -> str:
    return readable_name(replace(softmax_kernel(), origins=tuple(Origin(op, "x") for op in ops)))


def test_names_are_those_of_the_operators_each_once():
    assert named("aten.relu.default", "aten.mul.Tensor", "aten.relu.default") == "fused_relu_mul"
    assert named("aten._softmax.default", "mylib.swiglu.default") == "fused_softmax_swiglu"


def test_many_are_cut_short():
    name = named(*(f"aten.op{i}.default" for i in range(9)))
    assert name == "fused_op0_op1_op2_op3_etc"
    assert len(named("aten." + "x" * 200 + ".default")) == 80


def test_without_operators_the_kernels_own_name_serves():
    assert named() == softmax_kernel().name and named("<lambda>") == softmax_kernel().name
