"""Kernels of packages while they are launched: errors that name them, and checks if these are asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from polyfuse.aot.description import Description, Entry, Function
from polyfuse.base.errors import BackendError, KernelLaunchError, PackageError
from polyfuse.base.log import warn_once
from polyfuse.base.settings import Settings
from polyfuse.base.text import shorten
from polyfuse.cache.store import KernelStore
from polyfuse.runtime.native import synchronize
from polyfuse.runtime.provisional import Provisional, is_recoverable

if TYPE_CHECKING:
    from polyfuse.checking.launch import CheckResult
    from polyfuse.checking.operands import Layout
    from polyfuse.checking.tally import Subject

_FIX = (
    "see that the package was made for this device, and make it again with this version of Polyfuse;"
    " POLYFUSE_CHECK=first tells a kernel that is wrong from one that cannot be launched"
)


class NamedLaunch(Provisional):
    """A kernel until its first launch has succeeded: one that raises is named, with its package."""

    def __init__(self, launch: Callable[..., Any], failed: Callable[[Exception], Callable[..., Any]]) -> None:
        super().__init__(launch)
        self._failed = failed
        self._works = False

    @property
    def works(self) -> Callable[..., Any] | None:
        """The kernel, once a launch has succeeded."""
        return self.current or (self.launch if self._works else None)

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        try:
            self.launch(*operands)
        except Exception as error:
            if not is_recoverable(error):
                raise
            self._failed(error)
        self._works = True
        # one of dynamic sizes may be launched with sizes that are too many for it
        if not any(isinstance(operand, int) for operand in operands):
            self.use(self.launch)


@dataclass(frozen=True)
class Launching:
    """How the kernels of one package are launched.

    Attributes:
        path: of the package, for messages.
        description: of the package.
        settings: whether kernels are checked.
        texts: by member, what kernels of a program were generated from.
    """

    path: str
    description: Description
    settings: Settings
    texts: Mapping[str, bytes]

    def kernels(
        self, program: Entry | Function, units: Mapping[str, Mapping[str, Callable[..., Any]]]
    ) -> dict[str, Callable[..., Any]]:
        """The kernels of a program, by their names there.

        Raises:
            PackageError: the package lacks one of them.
        """
        self._check_all_there(program.kernels, units)
        return {
            name: self._kernel(program, name, unit, key, units[unit][key])
            for name, (unit, key) in program.kernels.items()
        }

    def calls(
        self, program: Entry | Function, units: Mapping[str, Mapping[str, Callable[..., Any]]]
    ) -> dict[str, Callable[..., Any]]:
        """The kernels of a program that were written by hand, by their keys there: nothing but their plugin
        says what they compute, so that they are not checked.

        Raises:
            PackageError: the package lacks one of them.
        """
        self._check_all_there(program.calls, units)
        return {name: units[unit][key] for name, (unit, key) in program.calls.items()}

    def _check_all_there(
        self, kernels: Mapping[str, tuple[str, str]], units: Mapping[str, Mapping[str, Callable[..., Any]]]
    ) -> None:
        absent = [name for name, (unit, key) in kernels.items() if key not in units[unit]]
        if absent:
            raise PackageError(
                f"the package {self.path} has no kernel {absent[0][:100]}", "copy the package again"
            )

    def _kernel(
        self, program: Entry | Function, name: str, unit: str, key: str, launch: Callable[..., Any]
    ) -> Callable[..., Any]:
        backend = self.description.units[unit].backend
        failed = partial(self._failed, name, backend)
        if self.settings.check == "off" or backend == "interpreter":
            return NamedLaunch(launch, failed)
        subject = self._subject(program, name, unit, key)
        from polyfuse.checking.checked import CheckedKernel
        from polyfuse.checking.records import records_in

        return CheckedKernel(
            subject,
            launch,
            records_in(KernelStore.open(self.settings).root),
            self.settings.check == "all",
            partial(synchronize, subject.kernel.device),
            partial(self._differs, subject),
            failed,
        )

    def _subject(self, program: Entry | Function, name: str, unit: str, key: str) -> Subject:
        from polyfuse.base.digest import digest, stable_json
        from polyfuse.checking.records import FORMAT
        from polyfuse.checking.tally import Subject
        from polyfuse.ir.nodes import Origin
        from polyfuse.ir.text.parse import parse_kernel

        backend = self.description.units[unit].backend
        try:
            label, config, ops, text = json.loads(self.texts[program.kernel_texts])[name]
            kernel = replace(parse_kernel(text), origins=tuple(Origin(op, "", "") for op in ops))
        except Exception as error:
            raise PackageError(
                f"kernels of the package {self.path} cannot be checked: what {name} was generated from cannot"
                f" be read ({type(error).__name__}: {error})",
                "make the package again with this version of Polyfuse, or load it with check='off'",
            ) from error
        facts = stable_json(dict(self.description.backends[backend].facts))
        address = digest("packaged", str(FORMAT), unit, key, facts, text)
        return Subject(kernel, label, backend, address, config)

    def _failed(self, name: str, backend: str, error: Exception) -> Callable[..., Any]:
        raise KernelLaunchError(
            f"kernel {name} of the package {self.path}, generated by {backend!r}, could not be launched"
            f" ({type(error).__name__}: {shorten(str(error), 200)})",
            _FIX,
        ) from error

    def _differs(
        self, subject: Subject, found: CheckResult, operands: Sequence[Any], layout: Layout
    ) -> Callable[..., Any]:
        """Tell of a kernel that differs from the interpreter, which replaces it: packages have no other."""
        from polyfuse.checking.tally import report_difference
        from polyfuse.ir.interpreter.interpret import run_kernel

        folder = KernelStore.open(self.settings).root / "repros"
        finding = report_difference(subject, found, operands, layout, folder, {})
        if self.settings.strict:
            raise BackendError(
                str(finding), "make the package again, and report the file to the backend's author"
            )
        warn_once(
            "checking",
            f"{finding}; the interpreter, which is slow, replaces it in the package {self.path}: make it"
            " again with another backend",
        )
        count = len(subject.kernel.args)
        return lambda *given: run_kernel(subject.kernel, given[:count])
