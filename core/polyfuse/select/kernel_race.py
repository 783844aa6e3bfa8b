"""The choice of a kernel's configuration and, in a tournament, of the backend that generates it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polyfuse.base.log import get_logger
from polyfuse.cache.timings import LOST, Measured
from polyfuse.ir.digest import ir_digest
from polyfuse.ir.kernel import Kernel
from polyfuse.plugin import Backend, Config
from polyfuse.schedule import Decision
from polyfuse.select.heat import Bout
from polyfuse.select.tolerance import tolerance
from polyfuse.select.tuner import Tuner
from polyfuse.select.work import Problem, Slot, Storage
from polyfuse.select.workshop import Entry, ordered
from polyfuse.symbolic import example_value

__all__ = ["KernelBout", "Verdict", "known_config", "remember", "settle_kernels", "spelled", "times_text"]

_log = get_logger("select")

# As many of the losers are named as people read.
_SHOWN = 6


@dataclass(frozen=True)
class Verdict:
    """How a kernel is generated.

    Attributes:
        backend: by whom.
        config: in which configuration; None: as the backend likes best.
        decision: what was measured.
    """

    backend: Backend
    config: Config | None
    decision: Decision


class KernelBout(Bout):
    """Which configuration of which backend is fastest for one kernel."""

    def __init__(self, tuner: Tuner, kernel: Kernel, backends: Sequence[Backend], uses: int = 1) -> None:
        self.kernel = kernel
        self.uses = uses
        self.backends = tuple(backends)
        self.key = tuner.key(ir_digest(kernel), backends, kernel.device)
        self._tuner = tuner
        self._searched: set[str] = set()
        storages, self._operands = _operands(kernel)
        results = tuple(
            o.number
            for o, arg in zip(self._operands, kernel.args, strict=True)
            if isinstance(o, Slot) and arg.kind != "in"
        )
        self.problem = Problem(
            f"kernel {kernel.name} of {' '.join(s.about for s in storages[:4])}",
            kernel.device,
            tuner.timer(kernel.device).name,
            storages,
            results,
            tolerance(storages),
        )

    def opening(self) -> Sequence[Entry]:
        """What the backends offer."""
        if len(self.backends) == 1:
            return self._entries(
                (backend, config) for backend in self.backends for config in self._all(backend)
            )
        return self._entries((backend, self._all(backend)[0]) for backend in self.backends)

    def usual(self) -> Sequence[Entry]:
        """The first guess of the backend that the kernel was scheduled for."""
        first = self.backends[0]
        return self._entries([(first, self._all(first)[0])])

    def around(self, best: Entry) -> Sequence[Entry]:
        """Of several backends, what else one offers that does well; then what lies around its best."""
        if best.backend is None:
            return ()
        if len(self.backends) > 1 and best.backend.name not in self._searched:
            self._searched.add(best.backend.name)
            return self._entries((best.backend, config) for config in self._all(best.backend)[1:])
        if best.config is None:
            return ()
        near = best.backend.neighbours(self.kernel, best.config)
        return self._entries((best.backend, config) for config in near)

    def verdict(self, measured: Measured) -> Verdict | None:
        """What was measured, as a decision; None where nothing could be."""
        if measured.best is None:
            return None
        backend, config = self.backends[0], measured.best
        if len(self.backends) > 1:
            name, _, config = measured.best.partition(" ")
            backend = next(b for b in self.backends if b.name == name)
        chosen = spelled(config)
        if chosen is None:
            return None
        alone = len(self.backends) > 1 and not config
        label = measured.best if len(self.backends) > 1 else f"{backend.name} {config}".strip()
        why = times_text(measured)
        if len(measured.milliseconds) == 1:
            why += ", too small a part of the graph to look for another"
        if self.spared:
            why += f", {self.spared} not built, as earlier races taught"
        decision = Decision("tune", self.kernel.name, label, why)
        return Verdict(backend, None if alone else chosen, decision)

    def _all(self, backend: Backend) -> Sequence[Config | None]:
        return self._tuner.configs(backend, self.kernel) or (None,)

    def _entries(self, wanted: Iterable[tuple[Backend, Config | None]]) -> list[Entry]:
        out: list[Entry] = []
        for backend, config in wanted:
            text = "" if config is None else str(config)
            name = text if len(self.backends) == 1 else f"{backend.name} {text}".strip()
            step = ordered(backend, self.kernel, config, self._operands)
            if step is not None:
                out.append(Entry(name, (step,), backend, config))
        return out


def settle_kernels(
    tuner: Tuner,
    wanted: Mapping[tuple[str, Kernel], Sequence[Backend]],
    uses: Mapping[tuple[str, Kernel], int],
    beside: float,
) -> dict[tuple[str, Kernel], Verdict]:
    """The fastest way to generate each kernel that has several, by (backend it was scheduled for, kernel).

    Args:
        wanted: the backends that may generate each, the first one being that it was scheduled for.
        uses: how often the graph launches each.
        beside: milliseconds that the graph spends otherwise, as far as they are known.
    """
    bouts: dict[tuple[str, Kernel], KernelBout] = {}
    for name, backends in wanted.items():
        try:
            if len(backends) > 1 or len(backends[0].configs(name[1])) > 1:
                bouts[name] = KernelBout(tuner, name[1], backends, uses[name])
        except Exception as error:
            tuner.note_trouble(backends[0], error, "offering configurations")
    answers = tuner.settle(bouts.values(), beside) if bouts else {}
    verdicts = {name: bout.verdict(answers[bout.key]) for name, bout in bouts.items()}
    return {name: verdict for name, verdict in verdicts.items() if verdict is not None}


def known_config(tuner: Tuner, backend: Backend, kernel: Kernel) -> Config | None:
    """The configuration that won before; None where none did."""
    best = tuner.timings.read(tuner.key(ir_digest(kernel), (backend,), kernel.device)).best
    return None if best is None else spelled(best)


def remember(
    tuner: Tuner, backend: Backend, kernel: Kernel, times: Mapping[str, float], best: str, about: str
) -> None:
    """Keep which configuration of a kernel won a race that was about more than this kernel."""
    key = tuner.key(ir_digest(kernel), (backend,), kernel.device)
    tuner.timings.write(key, Measured(times, best, about))


def spelled(text: str) -> Config | None:
    """The configuration that prints as a text."""
    try:
        pairs = [part.partition("=") for part in text.split()]
        return Config(tuple((name, int(value)) for name, _, value in pairs))
    except ValueError:
        return None


def times_text(measured: Measured) -> str:
    """The fastest of what was measured, in words."""
    timed = sorted((ms, name) for name, ms in measured.milliseconds.items() if ms != LOST)
    lost = sum(1 for ms in measured.milliseconds.values() if ms == LOST)
    words = [f"{name or 'first guess'} {ms:.4f} ms" for ms, name in timed[:_SHOWN]]
    if len(timed) > _SHOWN:
        words.append(f"{len(timed) - _SHOWN} slower ones")
    if lost:
        words.append(f"{lost} failed")
    return ", ".join(words) or "nothing could be timed"


def _operands(kernel: Kernel) -> tuple[tuple[Storage, ...], tuple[Slot | int, ...]]:
    """Operands of the example sizes.

    Floating-point numbers are random: zeros and NaN are unlike anything that is worth measuring. Whole
    numbers are zero, because they may be indices.
    """
    sizes = {arg.name: arg.hint if arg.hint is not None else 1 for arg in kernel.args if arg.kind == "size"}
    storages: list[Storage] = []
    operands: list[Slot | int] = []
    for arg in kernel.args:
        if arg.kind == "size":
            operands.append(sizes[arg.name])
            continue
        operands.append(Slot(len(storages)))
        count = example_value(arg.numel if arg.numel is not None else 0, sizes)
        fill = "normal" if arg.dtype.is_float and arg.kind != "out" else "zero"
        dtype = str(arg.dtype.torch).removeprefix("torch.")
        storages.append(Storage(dtype, kernel.device, max(1, count), fill, updated=arg.kind == "inout"))
    return tuple(storages), tuple(operands)
