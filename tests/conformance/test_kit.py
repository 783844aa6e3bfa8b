"""The kit notices what is wrong: backends that misbehave in one way each."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from polyfuse import cli
from polyfuse.base.errors import KernelBuildError, PolyfuseError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.checking.compare import agree
from polyfuse.cli.conformance import update_pass_list
from polyfuse.compiler.reports.replay import replay
from polyfuse.compiler.session import session_for
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Node, Pointwise
from polyfuse.plugin import Claim, Config, Launchable, No, Source
from polyfuse.reference.backend import InterpreterBackend
from polyfuse.testing import conformance
from polyfuse.testing.cases.alias import alias_cases
from polyfuse.testing.cases.case import EXACT, Tolerance
from polyfuse.testing.cases.memory import memory_cases
from polyfuse.testing.cases.scalar import scalar_cases
from polyfuse.testing.conformance import Run
from polyfuse.testing.device_checks import DEVICE_CHECKS
from polyfuse.testing.matrix import Cell, Matrix, Status
from polyfuse.testing.pytest_plugin import conformance_tests


class Wrong(InterpreterBackend):
    """Computes sums as differences."""

    name = "wrong"

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        source = super().emit(kernel, config)
        return replace(source, text=source.text.replace("= add f32", "= sub f32"), key="")


class Refusing(InterpreterBackend):
    """Has no sine, and nothing but pointwise nodes."""

    name = "refusing"

    def claims(self, node: Node) -> Claim:
        if not isinstance(node, Pointwise):
            return No("only pointwise nodes")
        if any(e.op == "sin" for root in node.expressions() for e in (root,)):
            return No("no sine here")
        return super().claims(node)


class Breaking(InterpreterBackend):
    """Cannot build anything with a cosine."""

    name = "breaking"

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        for source in sources:
            if "= cos " in source.text:
                raise KernelBuildError("no cosine", output="error: cos")
        super().build(sources, folder)


class Sloppy(InterpreterBackend):
    """Names its kernels in their text, writes to inputs, and accepts any source."""

    name = "sloppy"

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        source = super().emit(kernel, config)
        return replace(source, text=f"# {kernel.name}\n{source.text}", key="")

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        for source in sources:
            (folder / f"{source.key}.ir").write_text(source.rendered())

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def spoiling(launch: Launchable) -> Launchable:
            def call(*args: object) -> None:
                launch(*args)
                if isinstance(args[0], torch.Tensor) and args[0].is_floating_point() and args[0].numel():
                    args[0][0] = 77.0

            return call

        return {key: spoiling(launch) for key, launch in super().load(folder).items()}


class Spilling(InterpreterBackend):
    """Writes one element behind its outputs."""

    name = "spilling"

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def spilling(launch: Launchable) -> Launchable:
            def call(*args: object) -> None:
                launch(*args)
                last = args[-1]
                assert isinstance(last, torch.Tensor)
                last.as_strided((1,), (1,), last.storage_offset() + last.numel()).fill_(3)

            return call

        return {key: spilling(launch) for key, launch in super().load(folder).items()}


class Clearing(InterpreterBackend):
    """Clears its outputs before it reads: right, unless one of them lies over an input."""

    name = "clearing"
    refuses = False

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        source = super().emit(kernel, config)
        return replace(source, refused_aliases=kernel.aliases if self.refuses else ())

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        def clearing(launch: Launchable) -> Launchable:
            def call(*args: object) -> None:
                for arg, value in zip(launch.kernel.args, args, strict=True):  # type: ignore[attr-defined]
                    if arg.kind == "out":
                        value.zero_()
                launch(*args)

            return call

        return {key: clearing(launch) for key, launch in super().load(folder).items()}


def matrix_of(backend: type[InterpreterBackend], cases, contract: bool = False) -> Matrix:
    made = backend(Settings())
    return Run(made).matrix(tuple(cases), contract)


def failed(matrix: Matrix) -> set[str]:
    return {cell.row for cell in matrix.failures()}


def test_a_wrong_operation_fails_alone():
    matrix = matrix_of(Wrong, scalar_cases(True))
    assert failed(matrix) == {"add"}
    (cell,) = matrix.failures()
    assert "elements differ" in cell.reason and not matrix.ok


def test_a_refusal_is_an_answer():
    matrix = matrix_of(Refusing, [*scalar_cases(True), *memory_cases(True)])
    assert matrix.ok
    refused = {(c.row, c.reason) for c in matrix.cells if c.status is Status.REFUSED}
    assert ("sin", "no sine here") in refused
    assert ("add, colliding", "only pointwise nodes") in refused
    assert all(c.status is Status.PASS for c in matrix.cells if c.row == "cos")


def test_kernels_are_made_for_the_device_that_they_run_on():
    seen: list[str] = []

    class Curious(InterpreterBackend):
        def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
            seen.append(kernel.device)
            raise PolyfuseError("no kernels today")

    cases = list(scalar_cases(True))[:2]
    Run(Curious(Settings()), "elsewhere:1").matrix(cases, contract=False)
    assert len(seen) > 2 and set(seen) == {"elsewhere"}


def test_a_kernel_may_be_refused_when_it_is_emitted():
    class Late(InterpreterBackend):
        def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
            raise UnsupportedError("not on a Sunday", "wait until Monday")

    matrix = Run(Late(Settings())).matrix(list(scalar_cases(True))[:1], contract=False)
    assert {(cell.status, cell.reason) for cell in matrix.cells} == {(Status.REFUSED, "not on a Sunday")}


def test_a_kernel_may_be_refused_when_it_is_built():
    class Later(InterpreterBackend):
        """Refuses a cosine, and another configuration of anything, when it is built."""

        def configs(self, kernel: Kernel) -> Sequence[Config]:
            return [Config.of(wide=1)]

        def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
            source = super().emit(kernel, config)
            return replace(source, text=f"# {config}\n{source.text}", key="") if config else source

        def build(self, sources: Sequence[Source], folder: Path) -> None:
            if any("= cos " in source.text or source.text.startswith("#") for source in sources):
                raise UnsupportedError("not today", "wait")
            super().build(sources, folder)

    matrix = matrix_of(
        Later, [*scalar_cases(True), *[c for c in alias_cases(True) if c.kernel.name == "points"]]
    )
    refused = {(cell.row, cell.reason) for cell in matrix.cells if cell.status is Status.REFUSED}
    assert matrix.ok and refused == {("cos", "not today")}
    assert any(cell.row == "points" and cell.status is Status.PASS for cell in matrix.cells)


def test_a_failing_build_costs_its_own_operation():
    matrix = matrix_of(Breaking, scalar_cases(True))
    assert failed(matrix) == {"cos"}


def test_broken_promises_are_found():
    cases = [c for c in memory_cases(True) if c.parts[0].row in ("contiguous", "transposed", "offset")]
    found = failed(matrix_of(Sloppy, cases, contract=True))
    assert {"contiguous", "equal kernels of other names share a key"} <= found
    assert "a failing source raises KernelBuildError" in found


def test_writing_beside_a_buffer_is_found():
    cases = [c for c in memory_cases(True) if c.parts[0].row == "contiguous"]
    (cell,) = matrix_of(Spilling, cases).failures()
    assert cell.reason == "memory beside the buffer out0 was written to"


def test_an_output_over_an_input_that_is_spoilt_is_found():
    cases = [c for c in alias_cases(True) if c.kernel.name in ("points", "two_results")]
    matrix = matrix_of(Clearing, cases)
    reasons = [cell.reason for cell in matrix.failures()]
    assert failed(matrix) == {"points", "two results"}
    assert all(reason.startswith("with out0 over in0") for reason in reasons)
    honest = type("Honest", (Clearing,), {"refuses": True})
    assert matrix_of(honest, cases).ok


@pytest.fixture
def forked(monkeypatch):
    """Processes of the kit begin with what this one has imported and patched."""
    context, threads = multiprocessing.get_context("fork"), torch.get_num_threads()
    monkeypatch.setattr(conformance.multiprocessing, "get_context", lambda method: context)
    torch.set_num_threads(1)  # OpenMP's threads do not live on in a process that was forked
    yield
    torch.set_num_threads(threads)


def test_processes_share_the_cases(forked, monkeypatch):
    some = list(conformance.all_cases(True))[::5]
    monkeypatch.setattr(conformance, "all_cases", lambda quick: iter(some))
    matrix = conformance.run("interpreter", quick=True, jobs=2)
    labels = [part.label for case in some for part in case.parts]
    found = [cell.label for cell in matrix.cells if cell.group != "contract"]
    assert sorted(found) == sorted(labels)
    assert list(dict.fromkeys(found)) == list(dict.fromkeys(labels))
    assert matrix.ok and matrix.facts
    assert any(cell.group == "contract" for cell in matrix.cells)


def dies(backend, quick, device, number, jobs, contract):
    """In place of a share of the cases."""
    if number == 1:
        os._exit(9)
    return Matrix(backend, (Cell("group", f"of process {number}", "", Status.PASS),))


def test_a_process_that_dies_takes_its_own_cells_with_it(forked, monkeypatch):
    monkeypatch.setattr(conformance, "_share", dies)
    cases = [*scalar_cases(True)][:5]
    monkeypatch.setattr(conformance, "all_cases", lambda quick: iter(cases))
    matrix = conformance.run("anybody", quick=True, jobs=3)
    lost = {part.label for number in (1, 4) for part in cases[number].parts}
    assert {cell.label for cell in matrix.failures()} == lost
    assert "died" in matrix.failures()[0].reason
    assert matrix.count(Status.PASS) == 2


def test_a_backend_that_is_not_there_is_an_error_in_any_number_of_processes(forked):
    with pytest.raises(PolyfuseError, match="nobody"):
        conformance.run("nobody", quick=True, jobs=2)


@pytest.mark.parametrize("device", ["npu", "cpu:7x", "sim:1"])
def test_a_device_that_is_not_there_is_an_error(device, capsys):
    assert cli.main(["conformance", "interpreter", "--quick", "--device", device]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"polyfuse: there is no device '{device}' here (") and "polyfuse backends" in line


@pytest.mark.parametrize("kind", [RuntimeError, torch.AcceleratorError, torch.OutOfMemoryError])
def test_a_device_without_memory_left_is_not_said_to_be_missing(kind, monkeypatch, capsys):
    def no_memory(*_, **__):
        raise kind("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", no_memory)
    assert cli.main(["conformance", "interpreter", "--quick", "--device", "cuda"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the memory of device 'cuda' is used up (CUDA error: out of memory)" in line
    assert "end other processes that use the device" in line and "there is no device" not in line


def test_as_tests_what_the_matrix_lacks_is_skipped_and_a_device_has_tests_too(monkeypatch):
    """A backend that claims nothing yet has no cells of the contract."""
    names = conformance_tests("mine", quick=True, device="sim").pytestmark[0].args[1]
    assert {f"device: {name}" for name in DEVICE_CHECKS} < set(names)
    test = conformance_tests(lambda: Idle(Settings()), quick=True)
    monkeypatch.setattr("polyfuse.testing.conformance.all_cases", lambda quick: scalar_cases(quick=True))
    with pytest.raises(pytest.skip.Exception, match="claims nothing"):
        test("contract: several kernels in one build")


class Idle(InterpreterBackend):
    def claims(self, node: Node) -> Claim:
        return No("not yet")


def test_markdown_and_table_show_every_status(capsys):
    from rich.console import Console

    matrix = matrix_of(Refusing, [*scalar_cases(True)][:4])
    text = matrix.markdown()
    assert "| sin | – |" in text and "| cos | ✓ |" in text and "no sine here" in text
    matrix.print(Console(width=120))
    assert "no sine here" in capsys.readouterr().out


def test_a_reason_is_printed_once_and_failures_come_last(capsys):
    from rich.console import Console

    cells = [Cell("scalars", f"op{n}", "f32", Status.REFUSED, "no [float]") for n in range(3)]
    cells.insert(1, Cell("scalars", "sin", "f32", Status.FAIL, "1 is not 2"))
    Matrix("some", tuple(cells)).print(Console(width=120))
    said = capsys.readouterr().out.splitlines()[-3:]
    assert said == [
        "refused scalars: op0 [f32] and 2 more: no [float]",
        "fail scalars: sin [f32]: 1 is not 2",
        "some: 0 passed, 3 refused, 1 failed, in 0 s",
    ]


class Picky(InterpreterBackend):
    """Refuses copies only when it emits them."""

    name = "picky"

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        if kernel.name.startswith("copy"):
            raise UnsupportedError("no copies", "another backend computes it")
        return super().emit(kernel, config)


def test_the_contract_is_checked_on_kernels_that_are_not_refused():
    matrix = Run(Picky(Settings.resolve()), "cpu").matrix((*memory_cases(True), *scalar_cases(True)))
    assert matrix.ok and any("no copies" in cell.reason for cell in matrix.cells)
    assert sum(cell.group == "contract" for cell in matrix.cells) > 5


def test_groups_of_which_all_is_refused_are_one_line():
    cells = [Cell("scans", f"row {n}", "f32", Status.REFUSED, f"reason {n % 5}") for n in range(7)]
    text = Matrix("some", (*cells, Cell("products", "plain", "bf16", Status.PASS))).markdown()
    assert "All 7 rows are refused: reason 0; reason 1; reason 2; and others." in text
    assert "| plain | ✓ |" in text and "row 3" not in text and "### Reasons" not in text


def test_sections_of_the_page_that_are_not_made_anew_stay(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    page = importlib.import_module("support_matrix")
    monkeypatch.setattr(page, "PAGE", tmp_path / "matrix.md")
    monkeypatch.setattr(page, "SUMMARY", tmp_path / "summary.md")
    monkeypatch.setattr(page, "run", lambda name, **_: Matrix(name, (Cell("g", "r", "", Status.PASS),)))
    assert page.main(["one", "two"]) == 0
    assert page.main(["two@cuda", "one"]) == 0
    text = page.PAGE.read_text()
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## Versions",
        "## one",
        "## two",
        "## two on cuda",
    ]
    assert page.main(["two"]) == 0 and page.PAGE.read_text() == text


@pytest.mark.parametrize(
    ("found", "wanted", "tolerance", "same"),
    [
        (0.0, -0.0, EXACT, False),
        (0.0, -0.0, Tolerance(signed_zero=False), True),
        (float("nan"), float("nan"), EXACT, True),
        (1.0, float("nan"), Tolerance(relative=1.0), False),
        (float("inf"), float("inf"), EXACT, True),
        (3e38, float("inf"), Tolerance(relative=0.1), False),
        (1.0000001, 1.0, EXACT, False),
        (1.0000001, 1.0, Tolerance(ulp=1), True),
        (1.0000003, 1.0, Tolerance(ulp=1), False),
        (1e-40, 0.0, Tolerance(absolute=1.2e-38), True),
    ],
)
def test_comparison(found, wanted, tolerance, same):
    a, b = torch.tensor([found]), torch.tensor([wanted])
    assert bool(agree(a, b, tolerance.allowed(b), tolerance.signed_zero)) is same


def test_the_first_failing_kernel_can_be_run_again(tmp_path, monkeypatch, capsys):
    matrix = matrix_of(Wrong, [*scalar_cases(True)])
    failure = matrix.first_failure()
    assert failure is not None and failure.row == "add" and "= add f32" in failure.kernel
    monkeypatch.setattr("polyfuse.cli.conformance.run_conformance", lambda *_: matrix)
    repro, passes = tmp_path / "add.ir", tmp_path / "passes.txt"
    assert cli.main(["conformance", "wrong", "--repro", str(repro), "--passes", str(passes)]) == 1
    assert f"polyfuse replay {repro} --backend wrong" in capsys.readouterr().err
    assert not replay(repro.read_text(), session_for(Settings(backends=("interpreter",))))[0].problem
    assert any("cos" in line for line in passes.read_text().splitlines())


def test_a_pass_list_only_grows(tmp_path):
    path = tmp_path / "passes.txt"

    def run(**statuses: Status) -> tuple[str, ...]:
        cells = (Cell("g", row, "f32", status, "") for row, status in statuses.items())
        return update_pass_list(path, Matrix("some", tuple(cells)))

    assert run(a=Status.PASS, b=Status.FAIL, c=Status.REFUSED) == ()
    assert run(b=Status.PASS, c=Status.PASS) == ()
    assert run(a=Status.REFUSED, b=Status.FAIL, c=Status.PASS) == ("g: a [f32]", "g: b [f32]")
    assert path.read_text().splitlines() == ["g: a [f32]", "g: b [f32]", "g: c [f32]"]


def test_the_matrix_as_json_and_as_a_page():
    cells = (Cell("g", "row <1>", "f32", Status.PASS), Cell("g", "row 2", "f32", Status.REFUSED, 'no "f32"'))
    matrix = Matrix("some", cells, {"version": "3"})
    found = json.loads(matrix.json())
    assert found["counts"] == {"pass": 1, "refused": 1, "fail": 0} and found["facts"] == {"version": "3"}
    assert found["cells"][1]["reason"] == 'no "f32"'
    page = ElementTree.fromstring(matrix.html().partition("\n")[2].replace('<meta charset="utf-8">', ""))
    assert [cell.get("class") for cell in page.iter("td") if cell.get("class")] == ["pass", "refused"]
    assert [row.text for row in page.iter("th") if row.get("scope") == "row"] == ["row <1>", "row 2"]
