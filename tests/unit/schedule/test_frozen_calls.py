"""Calls that are done once for each parameter: inputs of the program, or gathered at its beginning."""

from __future__ import annotations

from polyfuse.base.settings import Settings
from polyfuse.program import plan
from polyfuse.program.steps import ExternStep, Free
from polyfuse.runtime.frozen import FrozenOperand
from polyfuse.schedule import Call
from polyfuse.schedule.frozen_calls import as_inputs, together
from schedule_builder import Maker

LAYS_OUT = "frozen.aten.as_strided_copy.default"


def network(written: str = "", packs: int = 3, lays_out: str = LAYS_OUT) -> Maker:
    """Matmuls of layers, one after the other, each with a weight that is laid out; one may be written."""
    make = Maker()
    make.buffer("x0", 4, 4, kind="input")
    for k in range(packs):
        make.buffer(f"w{k}", 4, 4, kind="input")
    for k in range(packs):
        make.buffer(f"p{k}", 4, 4)
        make.buffer(f"x{k + 1}", 4, 4)
        make.call(lays_out, (f"p{k}",), f"w{k}", (4, 4), (1, 4), aliases=(f"w{k}",))
        make.call("aten.mm.out", (f"x{k + 1}",), f"x{k}", f"p{k}", out="out")
    if written:
        make.call("aten.neg_.default", (), written, out="none", mutates=(written,))
    return make


def calls(make: Maker, *outputs: str) -> list[tuple[str, tuple[str, ...]]]:
    schedule = together(make.schedule(*outputs))
    found = [(s.node.op, s.node.outputs) for s in schedule.steps if isinstance(s, Call)]
    program = plan(schedule, Settings())
    made: set[str] = set()
    for step in program.steps:  # nothing is used before it is made or after it is released
        if isinstance(step, ExternStep):
            made.update(step.outputs)
            if step.op == "aten.mm.out":
                assert {argument.name for argument in step.args} <= made | {"x0"}
        elif isinstance(step, Free):
            made.difference_update(step.names)
    return found


def test_one_call_begins_what_has_several() -> None:
    first, *others = calls(network(), "x3")
    assert first == ("frozen.together.aten.as_strided_copy.default", ("p0", "p1", "p2"))
    assert others == [("aten.mm.out", (f"x{k}",)) for k in (1, 2, 3)]


def test_a_parameter_that_is_written_and_a_single_one_stay() -> None:
    found = calls(network("w1"), "x3")
    assert found[0] == ("frozen.together.aten.as_strided_copy.default", ("p0", "p2"))
    assert found.index((LAYS_OUT, ("p1",))) < found.index(("aten.mm.out", ("x2",)))
    assert found.index((LAYS_OUT, ("p1",))) < [op for op, _ in found].index("aten.neg_.default")
    assert calls(network(packs=1), "x1")[0] == (LAYS_OUT, ("p0",))


def test_parameters_that_are_looked_at_are_gathered_and_stay_in_the_program() -> None:
    name = LAYS_OUT.replace("frozen", "checked")
    first, *others = calls(network(lays_out=name), "x3")
    assert first == ("checked.together.aten.as_strided_copy.default", ("p0", "p1", "p2"))
    assert others == [("aten.mm.out", (f"x{k}",)) for k in (1, 2, 3)]
    schedule = network(lays_out=name).schedule("x3")
    assert as_inputs(schedule, given=2) == (schedule, None)
    assert together(schedule, ("frozen.",)) == schedule


def test_arguments_of_the_call() -> None:
    step = together(network(packs=2).schedule("x2")).steps[0]
    assert isinstance(step, Call)
    operands, plain = step.node.args
    assert [view.buffer for view in operands] == ["w0", "w1"] and plain == (((4, 4), (1, 4)),) * 2
    assert step.reads == ("w0", "w1") and step.writes == ("p0", "p1") == step.node.writes()


def test_results_become_inputs_instead_of_what_nothing_reads() -> None:
    schedule, packed = as_inputs(network(packs=2).schedule("x2"), given=2)
    assert packed is not None and packed.unread == {2}  # `w0` is passed, `w1` follows from parameters
    assert [(step.op, step.args[0]) for step in packed.steps] == [
        ("aten.as_strided_copy.default", FrozenOperand(1)),
        ("aten.as_strided_copy.default", FrozenOperand(2)),
    ]
    assert packed.layouts == (((4, 4), (4, 1)),) * 2
    program = plan(schedule, Settings())
    assert [item.name for item in program.inputs] == ["x0", "w0", "p0", "p1"]
    assert [step.op for step in program.steps if isinstance(step, ExternStep)] == ["aten.mm.out"] * 2
    assert Free(("w0",)) in program.steps  # not held until the end of the call


def test_what_is_written_read_elsewhere_or_returned_stays() -> None:
    make = network("w1")
    make.buffer("y", 4, 4)
    make.call("aten.mm.out", ("y",), "x0", "w2", out="out")
    schedule, packed = as_inputs(make.schedule("x3", "y", "p0"), given=1)
    assert packed is not None and [step.args[0].number for step in packed.steps] == [3]
    assert packed.unread == set() and len(schedule.graph.inputs) == 5
    assert as_inputs(network(packs=0).schedule("x0"), given=1)[1] is None
