"""Checks of what a backend promises besides right numbers: emission, builds, loading, claims."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from polyfuse.base.errors import KernelBuildError, PolyfuseError
from polyfuse.ir.nodes import ExternCall
from polyfuse.plugin import Backend, No, Source, Yes
from polyfuse.testing.cases.case import Case
from polyfuse.testing.launch import check

_GROUP = "contract"


@dataclass(frozen=True)
class Trial:
    """What the checks of the contract work on."""

    backend: Backend
    cases: tuple[Case, ...]
    folder: Path
    device: str

    def again(self) -> Backend:
        """Another object of the same backend."""
        other = type(self.backend)(self.backend.settings)
        other.name = self.backend.name
        return other

    def sources(self, backend: Backend | None = None) -> list[Source]:
        """The sources of all cases."""
        return [(backend or self.backend).emit(case.kernel) for case in self.cases]

    def fresh_folder(self, name: str) -> Path:
        """An empty folder."""
        folder = self.folder / name
        folder.mkdir()
        return folder


def contract_checks() -> Iterator[tuple[str, Callable[[Trial], str]]]:
    """(name, check) pairs; a check returns what is wrong, or an empty text."""
    yield "emission is deterministic", _emission_is_deterministic
    yield "equal kernels of other names share a key", _names_do_not_matter
    yield "configurations are emitted", _configurations
    yield "several kernels in one build", _several_in_one_build
    yield "a built folder may move", _folder_may_move
    yield "the same kernel twice in one build", _twice_in_one_build
    yield "a failing source raises KernelBuildError", _failing_source
    yield "a failing source leaves the others alone", _failing_beside_good
    yield "calls from several threads", _threads
    yield "claims answers for any node", _claims_any_node
    yield "facts are text and stay the same", _facts


def _emission_is_deterministic(trial: Trial) -> str:
    other = trial.again()
    for case in trial.cases:
        found = {trial.backend.emit(case.kernel), trial.backend.emit(case.kernel), other.emit(case.kernel)}
        if len(found) != 1:
            return f"kernel {case.kernel.name} was emitted in {len(found)} ways"
    return ""


def _names_do_not_matter(trial: Trial) -> str:
    for case in trial.cases:
        first = trial.backend.emit(case.kernel)
        second = trial.backend.emit(replace(case.kernel, name="quite_another_name"))
        if first.key != second.key:
            return f"the source of kernel {case.kernel.name} depends on its name"
    return ""


def _configurations(trial: Trial) -> str:
    for case in trial.cases[:3]:
        for config in list(trial.backend.configs(case.kernel))[:4]:
            source = trial.backend.emit(case.kernel, config)
            folder = trial.fresh_folder(f"config_{source.key[:16]}_{abs(hash(config)) % 10**8}")
            trial.backend.build([source], folder)
            faults = check(case, trial.backend.load(folder)[source.key], trial.backend, trial.device)
            if faults:
                return f"kernel {case.kernel.name} with {config}: {next(iter(faults.values()))}"
    return ""


def _several_in_one_build(trial: Trial) -> str:
    folder = trial.fresh_folder("several")
    sources = trial.sources()
    trial.backend.build(sources, folder)
    return _right(trial, trial.backend, sources, folder)


def _folder_may_move(trial: Trial) -> str:
    folder = trial.fresh_folder("before")
    sources = trial.sources()[:2]
    trial.backend.build(sources, folder)
    moved = folder.rename(trial.folder / "after")
    return _right(trial, trial.again(), sources, moved)


def _twice_in_one_build(trial: Trial) -> str:
    folder = trial.fresh_folder("twice")
    source = trial.sources()[0]
    trial.backend.build([source, source.renamed("other")], folder)
    return _right(trial, trial.backend, [source], folder)


def _right(trial: Trial, backend: Backend, sources: Sequence[Source], folder: Path) -> str:
    loaded = backend.load(folder)
    for case, source in zip(trial.cases, sources, strict=False):
        if source.key not in loaded:
            return f"kernel {source.name} is not among those loaded"
        faults = check(case, loaded[source.key], backend, trial.device)
        if faults:
            return f"kernel {source.name}: {next(iter(faults.values()))}"
    return ""


def _broken(trial: Trial) -> Source:
    good = trial.sources()[0]
    return replace(good, name="broken", text=good.text + "\n}} this is ) not well formed ((\n", key="")


def _failing_source(trial: Trial) -> str:
    try:
        trial.backend.build([_broken(trial)], trial.fresh_folder("broken"))
    except KernelBuildError:
        return ""
    except Exception as error:
        return f"build raised {type(error).__name__} instead of KernelBuildError"
    return "build accepted a malformed source"


def _failing_beside_good(trial: Trial) -> str:
    """Built together, something must be raised; built alone, the good ones must work still."""
    sources = trial.sources()[:2]
    try:
        trial.backend.build([sources[0], _broken(trial), sources[1]], trial.fresh_folder("mixed"))
    except KernelBuildError:
        pass
    except Exception as error:
        return f"build raised {type(error).__name__} instead of KernelBuildError"
    else:
        return "build accepted a malformed source beside others"
    folder = trial.fresh_folder("alone")
    trial.backend.build(sources, folder)
    return _right(trial, trial.backend, sources, folder)


def _threads(trial: Trial) -> str:
    folder = trial.fresh_folder("threads")
    source = trial.sources()[0]
    trial.backend.build([source], folder)
    launchable = trial.backend.load(folder)[source.key]
    problems: list[str] = []

    def work() -> None:
        for _ in range(5):
            faults = check(trial.cases[0], launchable, trial.backend, trial.device)
            problems.extend(faults.values())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return problems[0] if problems else ""


def _claims_any_node(trial: Trial) -> str:
    node = ExternCall("call", op="aten.nonzero.default", args=(), kwargs=(), outputs=())
    try:
        answer = trial.backend.claims(node)
    except Exception as error:
        return f"claims raised {type(error).__name__} for an extern call"
    if isinstance(answer, No) and not answer.reason:
        return "a refusal gives no reason"
    return "" if isinstance(answer, (Yes, No)) else f"claims answered {answer!r}"


def _facts(trial: Trial) -> str:
    facts, others = dict(trial.backend.describe()), dict(trial.again().describe())
    if any(not isinstance(k, str) or not isinstance(v, str) for k, v in facts.items()):
        return "describe gives something other than text"
    return "" if facts == others else "describe differs between two objects"


def run_contract(trial: Trial) -> Iterator[tuple[str, str, str]]:
    """(group, name, fault) of every check; what it raises is a fault."""
    for name, judge in contract_checks():
        try:
            fault = judge(trial)
        except PolyfuseError as error:
            fault = str(error)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        yield _GROUP, name, fault
