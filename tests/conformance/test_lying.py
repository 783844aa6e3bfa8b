"""The conformance kit finds every defect that the lying backend plants, and the backend is what it says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import preforked
from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.plugin import PluginManager
from polyfuse.testing.cases.case import Case
from polyfuse.testing.conformance import Run, all_cases
from polyfuse.testing.lying import DEFECTS, Defect, Lying, defect
from polyfuse.testing.lying.programs import PROGRAMS
from polyfuse.testing.lying.trial import caught_by_kit

INTERPRETER = PluginManager(Settings.resolve()).backend("interpreter")
CASES = tuple(all_cases(quick=True))
BY_NAME = [pytest.param(row, id=row.name) for row in DEFECTS]


@pytest.mark.quick(6)
@pytest.mark.parametrize("planted", BY_NAME)
def test_the_kit_finds_it(planted: Defect) -> None:
    found = caught_by_kit(INTERPRETER, planted, cases=CASES)
    assert found is not None, f"no case of the kit fails with {planted.name}: {planted.description}"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cpp", "halide"])
@pytest.mark.parametrize("planted", [row for row in BY_NAME if row.id != "random-repeated"])
def test_the_kit_finds_it_in_built_kernels(planted: Defect, name: str) -> None:
    """Random numbers are not claimed by these."""
    state = PluginManager(Settings.resolve())
    if name not in state.order("cpu"):
        pytest.skip(f"{name} is not installed")
    assert caught_by_kit(state.backend(name), planted, cases=CASES) is not None


def applicable() -> Iterator[tuple[Defect, Case]]:
    for row in DEFECTS:
        fitting = [case for case in CASES if row.planted(case.kernel) is not None]
        assert fitting or row.launched is not None, f"no kernel of the kit has anything for {row.name}"
        yield from ((row, case) for case in fitting)


def test_planted_kernels_obey_the_rules() -> None:
    """What is wrong with them is what they compute: a generator takes them as it takes others."""
    for row, case in applicable():
        planted = row.planted(case.kernel)
        assert planted is not None and planted != case.kernel
        verify_kernel(planted)
        assert [arg.name for arg in planted.args] == [arg.name for arg in case.kernel.args]


def test_a_wrong_kernel_has_a_key_of_its_own() -> None:
    """Also where its text is that of an honest kernel."""
    planted = defect("swapped-operands")
    case = next(case for case in CASES if planted.applies(case.kernel))
    wrong = planted.planted(case.kernel)
    assert wrong is not None
    lying = Lying(INTERPRETER, planted).emit(case.kernel)
    assert lying.text == INTERPRETER.emit(wrong).text
    assert lying.key != INTERPRETER.emit(wrong).key
    assert "planted" in lying.note and "swapped-operands" in lying.note


def test_kernels_without_anything_to_spoil_are_right() -> None:
    planted = defect("lost-update")
    spared = [case for case in CASES if not planted.applies(case.kernel)][:40]
    assert Run(Lying(INTERPRETER, planted)).matrix(spared, contract=False).ok


def test_everything_else_is_the_honest_backends_answer() -> None:
    class Particular(type(INTERPRETER)):  # type: ignore[misc]
        min_unit = 7
        worker = "somewhere:else"

        def machine(self) -> dict[str, str]:
            return {"machine": "mine"}

        def shiny(self) -> str:
            return "what only later interfaces have"

    lying = Lying(Particular(Settings.resolve()), defect("race"))
    assert lying.machine() == {"machine": "mine"} and lying.min_unit == 7
    assert lying.shiny() == "what only later interfaces have"
    assert lying.describe()["lying"] == "race"
    # where launches misbehave, nothing may go past what is launched
    assert lying.worker == "" and Lying(lying.honest, defect("equality")).worker == "somewhere:else"


def test_there_is_a_program_for_each() -> None:
    known = [row.name for row in DEFECTS]
    assert len(set(known)) == len(known) >= 50
    assert [p.defect for p in PROGRAMS] == [name for name in known if name != "random-repeated"]


def test_an_unknown_defect_is_answered_with_the_nearest() -> None:
    with pytest.raises(InvalidOptionError, match="stale-row"):
        defect("stale-rows")


AUTHORS_TESTS = """
import pytest, torch
from polyfuse.testing.lying.installed import planted

x = torch.randn(7, 37)

def the_tests_of_its_author():
    options = {"backends": ["interpreter"], "graph_cache": False}
    found = torch.compile(torch.exp, backend="polyfuse", options=options, dynamic=False)(x)
    torch.testing.assert_close(found, x.exp())

the_tests_of_its_author()
with planted("interpreter", "tail-clamped"), pytest.raises(AssertionError, match="not close"):
    the_tests_of_its_author()
the_tests_of_its_author()
"""


def test_an_installed_backend_can_be_made_to_lie() -> None:
    """Tests of that backend run as they stand, and fail; in a process that compiled nothing before.

    Of a function that tells all elements apart: to `relu`, two negative ones are the same.
    """
    done = preforked.run(AUTHORS_TESTS)
    assert done.returncode == 0, done.stderr[-2000:]


def test_misbehaving_launches_touch_what_they_write_alone() -> None:
    row = defect("stale-memory")
    assert row.launched is not None

    def copies(x: torch.Tensor, y: torch.Tensor) -> None:
        y.copy_(x)

    wrong = row.launched(copies, (1,))
    x, y = torch.arange(8.0), torch.zeros(8)
    wrong(x, y)
    assert torch.equal(x, y)
    wrong(x + 1, y)
    assert y.tolist() == [0, 1, 2, 4, 5, 6, 7, 8] and x.tolist() == list(range(8))
