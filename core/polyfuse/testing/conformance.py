"""The conformance run: all cases for one backend, in few builds, as a matrix."""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from polyfuse.base.errors import BackendUnavailableError, KernelBuildError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.base.text import shorten
from polyfuse.ir.aliasing import permitted_aliases
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_kernel
from polyfuse.plugin import Backend, Config, Extensions, Launchable, No, PluginManager, Source
from polyfuse.runtime.devices.registry import device_of, find_devices_with
from polyfuse.runtime.provisional import is_out_of_memory
from polyfuse.testing.cases.alias import alias_cases
from polyfuse.testing.cases.case import Case, Part
from polyfuse.testing.cases.large import large_cases
from polyfuse.testing.cases.matmul import matmul_cases
from polyfuse.testing.cases.memory import memory_cases
from polyfuse.testing.cases.reduction import reduction_cases
from polyfuse.testing.cases.scalar import scalar_cases
from polyfuse.testing.cases.section import section_cases
from polyfuse.testing.contract import Trial, run_contract
from polyfuse.testing.device_checks import check_device
from polyfuse.testing.launch import Faults, check
from polyfuse.testing.matrix import Cell, Matrix, Status

BATCH = 24
"""Kernels built together."""
_CONFIGS = 3
"""Configurations, and as many neighbours of the first, that are tried with outputs over inputs."""
_STOPS = "a device stops its own program there"
_CONTRACT_CASES = 4
"""Kernels on which the contract is checked."""


def all_cases(quick: bool = False) -> Iterator[Case]:
    """Every case of the kit; `quick` leaves out those that differ only in type or size."""
    yield from scalar_cases(quick)
    yield from reduction_cases(quick)
    yield from memory_cases(quick)
    yield from section_cases(quick)
    yield from matmul_cases(quick)
    yield from large_cases(quick)
    yield from alias_cases(quick)


def run(
    backend: str | Backend, quick: bool = False, device: str = "cpu", jobs: int = 1, contract: bool = True
) -> Matrix:
    """Run the whole kit for a backend, given as an object or by its name.

    A backend given by its name can be run in several processes (`jobs`), each with a part of the cases.
    Without `contract`, kernels alone are run: what the contract and the device promise is not tried.
    """
    if not isinstance(backend, str):
        return Run(backend, device, quick).matrix(tuple(all_cases(quick)), contract)
    if jobs > 1:
        return _in_processes(backend, quick, device, jobs, contract)
    return _share(backend, quick, device, contract=contract)


def _share(
    backend: str, quick: bool, device: str, number: int = 0, jobs: int = 1, contract: bool = True
) -> Matrix:
    """The outcome of every case of a number modulo `jobs`; the first process checks the contract."""
    plugins = PluginManager(Settings.resolve())
    find_devices_with(Extensions(plugins).device)
    made = plugins.backend(backend)
    _require_device(device)
    return Run(made, device, quick).matrix(tuple(all_cases(quick))[number::jobs], contract and number == 0)


def _require_device(device: str) -> None:
    """Raise `BackendUnavailableError` where a device, `cuda:1` say, is not there or has no memory left."""
    device_of(device)  # a plugin that brings the type registers it with torch
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        if is_out_of_memory(error):
            raise BackendUnavailableError(
                f"the memory of device {device!r} is used up ({shorten(str(error), 120)})",
                "end other processes that use the device, or wait for them; this one holds nothing on it yet",
            ) from error
        # torch lists all that it knows
        cause = f"there is no device {device!r} here ({shorten(str(error), 120)})"
        fix = "`polyfuse backends` shows which types of device the backends serve"
        raise BackendUnavailableError(cause, fix) from error


def _in_processes(backend: str, quick: bool, device: str, jobs: int, contract: bool) -> Matrix:
    start = time.perf_counter()
    # one executor for each process: a process that dies takes only its own part with it
    context = multiprocessing.get_context("spawn")
    pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(jobs)]
    futures = [
        pool.submit(_share, backend, quick, device, number, jobs, contract)
        for number, pool in enumerate(pools)
    ]
    cases = tuple(all_cases(quick))
    parts: list[Matrix] = []
    for number, future in enumerate(futures):
        try:
            parts.append(future.result())
        except BrokenProcessPool:
            reason = "the process that ran it and others died"
            lost = [_cell(part, Status.FAIL, reason) for case in cases[number::jobs] for part in case.parts]
            parts.append(Matrix(backend, tuple(lost)))
    for pool in pools:
        pool.shutdown()
    labels = dict.fromkeys(part.label for case in cases for part in case.parts)
    rank = {label: number for number, label in enumerate(labels)}
    cells = sorted(
        (cell for part in parts for cell in part.cells), key=lambda cell: rank.get(cell.label, len(rank))
    )
    facts = next((part.facts for part in parts if part.facts), {})
    return Matrix(backend, tuple(cells), facts, time.perf_counter() - start)


class Run:
    """One run of the kit. `quick`: not every configuration is tried with arguments that are one memory."""

    def __init__(self, backend: Backend, device: str = "cpu", quick: bool = True) -> None:
        self.backend = backend
        self.device = device
        self.quick = quick
        self._builds = 0

    def matrix(self, cases: Sequence[Case], contract: bool = True) -> Matrix:
        """The outcome of some cases, and of the contract's checks."""
        start = time.perf_counter()
        cells: list[Cell] = []
        with tempfile.TemporaryDirectory(prefix="polyfuse-conformance-") as name:
            folder = Path(name)
            claimed = [self._on_device(claimed) for case in cases for claimed in self._claimed(case, cells)]
            for number in range(0, len(claimed), BATCH):
                self._batch(claimed[number : number + BATCH], folder, cells)
            labels = dict.fromkeys(part.label for case in cases for part in case.parts)
            rank = {label: number for number, label in enumerate(labels)}
            ordered = sorted(cells, key=lambda cell: rank[cell.label])
            if contract:
                ordered += self._contract(claimed, folder)
                ordered += self._device()
        seconds = time.perf_counter() - start
        label = self.backend.name or type(self.backend).__name__
        return Matrix(label, tuple(ordered), dict(self.backend.describe()), seconds)

    def _on_device(self, case: Case) -> Case:
        """The case with its kernel made for the device that it runs on."""
        return replace(case, kernel=replace(case.kernel, device=self.device.partition(":")[0]))

    def _claimed(self, case: Case, cells: list[Cell]) -> Iterator[Case]:
        """The case without the parts that the backend refuses."""
        verify_kernel(case.kernel)
        claimed: list[int] = []
        stopped = case.stops and not device_of(self.device).is_host
        for position, part in enumerate(case.parts):
            refusal = self._refusal(part) or (_STOPS if stopped else "")
            if refusal:
                cells.append(_cell(part, Status.REFUSED, refusal))
            else:
                claimed.append(position)
        if len(claimed) == len(case.parts):
            yield case
        elif claimed and case.only is not None:
            yield case.only(tuple(claimed))
        else:
            for position in claimed:
                part = case.parts[position]
                cells.append(_cell(part, Status.REFUSED, "another part of its kernel is refused"))

    def _refusal(self, part: Part) -> str:
        for node in part.nodes:
            answer = self.backend.claims(node)
            if isinstance(answer, No):
                return answer.reason or "no reason is given"
        return ""

    def _batch(self, cases: Sequence[Case], folder: Path, cells: list[Cell]) -> None:
        """Emit, build and run cases; where something fails, each alone, and its parts each alone."""
        emitted: list[tuple[Case, Source]] = []
        for case in cases:
            try:
                emitted.append((case, self.backend.emit(case.kernel)))
            except UnsupportedError as error:
                self._apart(case, error.cause, folder, cells, Status.REFUSED)
            except Exception as error:
                self._apart(case, f"emit raised {type(error).__name__}: {error}", folder, cells)
        if not emitted:
            return
        build = folder / f"unit{self._builds}"
        self._builds += 1
        build.mkdir()
        try:
            self.backend.build([source for _, source in emitted], build)
            loaded = self.backend.load(build)
        except Exception as error:
            if len(emitted) > 1:
                middle = len(emitted) // 2
                self._batch([c for c, _ in emitted[:middle]], folder, cells)
                self._batch([c for c, _ in emitted[middle:]], folder, cells)
            else:
                status = Status.REFUSED if isinstance(error, UnsupportedError) else Status.FAIL
                self._apart(emitted[0][0], _words(error), folder, cells, status)
            return
        in_place = self._in_place([case for case, _ in emitted], loaded, folder)
        for case, source in emitted:
            faults = check(case, loaded[source.key], self.backend, self.device)
            faults = {**in_place.get(id(case), {}), **faults}
            for position, part in enumerate(case.parts):
                fault = faults.get(position, "")
                cells.append(_cell(part, Status.FAIL if fault else Status.PASS, fault, case))

    def _in_place(
        self, cases: Sequence[Case], loaded: Mapping[str, Launchable], folder: Path
    ) -> dict[int, Faults]:
        """What is wrong where outputs lie over inputs, by the case's identity."""
        faults: dict[int, Faults] = {}
        runs: list[tuple[Case, Aliased]] = []
        for case in cases:
            most = (_CONFIGS if self.quick else None) if case.configured else 0 if self.quick else _CONFIGS
            try:
                runs += [(case, found) for found in aliased_sources(self.backend, case, most)]
            except Exception as error:
                faults[id(case)] = {0: f"emit with aliases raised {type(error).__name__}: {error}"}
        known = dict(loaded)
        new = {run.source.key: run.source for _, run in runs if run.source.key not in known}
        troubles: dict[str, str] = {}
        for number in range(0, len(new), BATCH):
            known |= self._built(list(new.values())[number : number + BATCH], folder, troubles)
        for case, run in runs:
            if run.source.key in known:
                launch = known[run.source.key]
                found = check(case, launch, self.backend, self.device, run.pairs)
            elif run.source.key in troubles:
                found = {0: troubles[run.source.key]}
            else:
                continue
            for position, fault in found.items():
                faults.setdefault(id(case), {}).setdefault(position, f"{run.about}: {fault}")
        return faults

    def _built(
        self, sources: Sequence[Source], folder: Path, troubles: dict[str, str]
    ) -> Mapping[str, Launchable]:
        """Kernels by key; where they cannot be built together, each alone, and what is wrong with it. What
        the backend refuses is in neither.
        """
        build = folder / f"unit{self._builds}"
        self._builds += 1
        build.mkdir()
        try:
            self.backend.build(sources, build)
            return self.backend.load(build)
        except Exception as error:
            if len(sources) == 1:
                if not isinstance(error, UnsupportedError):
                    troubles[sources[0].key] = _words(error)
                return {}
        middle = len(sources) // 2
        first = self._built(sources[:middle], folder, troubles)
        return {**first, **self._built(sources[middle:], folder, troubles)}

    def _apart(
        self, case: Case, reason: str, folder: Path, cells: list[Cell], status: Status = Status.FAIL
    ) -> None:
        halves = case.split()
        for half in halves:
            self._batch([self._on_device(half)], folder, cells)
        if not halves:
            for part in case.parts:
                cells.append(_cell(part, status, reason, case))

    def _contract(self, cases: Sequence[Case], folder: Path) -> Iterator[Cell]:
        whole = [case for case in cases if case.only is None] or cases
        chosen = tuple(itertools.islice(filter(self._is_emitted, whole), _CONTRACT_CASES))
        if not chosen:
            return
        trial = Trial(self.backend, chosen, folder, self.device)
        for group, name, fault in run_contract(trial):
            status = Status.FAIL if fault else Status.PASS
            yield Cell(group, name, "", status, shorten(fault, 300))

    def _device(self) -> Iterator[Cell]:
        """What a device promises; the host promises nothing that could be tried."""
        if not device_of(self.device).is_host:
            for name, fault in check_device(self.device):
                yield Cell("device", name, "", Status.FAIL if fault else Status.PASS, shorten(fault, 300))

    def _is_emitted(self, case: Case) -> bool:
        """Whether the backend does not refuse the kernel of a case after all."""
        try:
            self.backend.emit(case.kernel)
        except UnsupportedError:
            return False
        except Exception:
            return True  # the checks report it
        return True


def _words(error: Exception) -> str:
    if isinstance(error, UnsupportedError):
        return error.cause
    if isinstance(error, KernelBuildError):
        lines = [line for line in error.output.splitlines() if "error" in line]
        return f"the build failed: {error.cause}; {lines[0] if lines else ''}"
    return f"the build raised {type(error).__name__}: {error}"


def _cell(part: Part, status: Status, reason: str, case: Case | None = None) -> Cell:
    kernel = text(case.kernel) if case is not None and status is Status.FAIL else ""
    return Cell(part.group, part.row, part.column, status, shorten(reason, 300), kernel)


@dataclass(frozen=True)
class Aliased:
    """A kernel to be launched with arguments that are one memory.

    Attributes:
        source: as it was generated.
        pairs: positions of an output and of the input whose memory it gets.
        about: which pairs and which configuration, in words.
    """

    source: Source
    pairs: tuple[tuple[int, int], ...]
    about: str


def aliased_sources(backend: Backend, case: Case, most: int | None) -> Iterator[Aliased]:
    """The kernel of a case that permits all it can, in its first configurations and their neighbours: `most`
    of each, or all. One whose generator refuses every pair is left out.

    What a kernel computes must not depend on whether an output lies where an input lay, if its generator
    accepted that (`Kernel.aliases`, `Source.refused_aliases`).
    """
    kernel = replace(case.kernel, aliases=permitted_aliases(case.kernel))
    if not kernel.aliases:
        return
    position = {arg.name: k for k, arg in enumerate(kernel.args)}
    seen: set[tuple[str, tuple[tuple[int, int], ...]]] = set()
    for config in _configs(backend, kernel, most):
        try:
            source = backend.emit(kernel, config)
        except UnsupportedError:
            continue
        accepted = [a for a in kernel.aliases if a not in source.refused_aliases]
        pairs = tuple((position[a.output], position[a.input]) for a in accepted)
        if pairs and (source.key, pairs) not in seen:
            seen.add((source.key, pairs))
            words = ", ".join(f"{a.output} over {a.input}" for a in accepted)
            yield Aliased(source, pairs, f"with {words}" + (f" and {config}" if config is not None else ""))


def _configs(backend: Backend, kernel: Kernel, most: int | None) -> Iterator[Config | None]:
    yield None
    if most == 0:
        return
    try:
        offered: Sequence[Config] = backend.configs(kernel)
    except UnsupportedError:
        return
    chosen = list(islice(offered, most))
    yield from chosen
    if chosen:
        yield from islice(backend.neighbours(kernel, chosen[0]), most)
