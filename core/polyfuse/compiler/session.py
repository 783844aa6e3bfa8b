"""A compile session: settings, plugins, kernel store and build workers, shared by every graph compiled with
one set of options. Passed explicitly; nothing here is global but the table that finds an equal session
again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from polyfuse.base import log
from polyfuse.base.code import code_digest
from polyfuse.base.process import ForkedLock
from polyfuse.cache import KernelStore
from polyfuse.frontend.graph import ChannelsLast
from polyfuse.ir.types import DType, from_torch
from polyfuse.plugin import Backend, Config, Extensions, PluginManager, TargetInfo
from polyfuse.plugin.hooks.registry import generation
from polyfuse.plugin.session.discovery import find_candidates
from polyfuse.plugin.session.inventory import code_of
from polyfuse.runtime.devices.registry import device_of, find_devices_with
from polyfuse.workers import BuildPool

if TYPE_CHECKING:
    from polyfuse.autotune.tuner import Tuner
    from polyfuse.base.settings import Settings
    from polyfuse.checking.calls import Origins
    from polyfuse.checking.records import Records
    from polyfuse.distributed.exchange import RankExchange
    from polyfuse.ir.kernel import Kernel


# About as many operators of a captured graph become one kernel.
_OPERATORS_PER_KERNEL = 8


# Largest windows, in elements, of depthwise convolutions for which libraries have kernels with channels last:
# of any in 16 bits, and of gradients in single precision. Beyond, they take 1.5 to 6 times as long (H100).
_DEPTHWISE_WINDOW = 49
_DEPTHWISE_GRADIENT_WINDOW = 25

_NARROW = 2
"""Bytes of the types that GPUs multiply as fast as what they round f32 to."""


class CompileSession:
    """What the stages need besides the graph.

    Attributes:
        settings: the options.
        plugins: the backends installed.
        extensions: what plugins add besides code generators.
        pool: builds kernels.
        store: keeps built kernels.
        key_facts: what plugins add to keys; None where one cannot say: nothing is cached between runs.
        choose_config: the configuration of a kernel by a backend, None for its first one, instead of what
            the tuner decides: for tests that build kernels in configurations of their own choice.
        exchange: by which ranks that do not see the cache folder get what is compiled; None: there is none.
    """

    def __init__(
        self,
        settings: Settings,
        plugins: PluginManager,
        pool: BuildPool,
        store: KernelStore,
        key_facts: tuple[str, ...] | None = (),
        choose_config: Callable[[Backend, Kernel], Config | None] | None = None,
    ) -> None:
        self.settings = settings
        self.key_facts = key_facts
        self.plugins = plugins
        self.extensions = Extensions(plugins)
        self.pool = pool
        self.store = store
        self.choose_config = choose_config
        self.exchange: RankExchange | None = None
        self._lock = ForkedLock()
        self._tuner: Tuner | None = None
        self._records: Records | None = None

    @property
    def exchanges(self) -> bool:
        """Whether graphs come from ranks that do not see the cache folder: each when it has its kernels."""
        return self.exchange is not None and bool(self.exchange.needed)

    @property
    def tuner(self) -> Tuner:
        """Times what can be done in several ways, and records what each took."""
        with self._lock:
            if self._tuner is None:
                from polyfuse.autotune.tuner import Tuner  # a graph found in the graph cache needs none

                helpers = lambda: self.exchange.helpers if self.exchange is not None else None  # noqa: E731
                self._tuner = Tuner(self.settings, self.extensions, self.pool, self.store, helpers)
            return self._tuner

    @property
    def records(self) -> Records:
        """Which kernels agreed with the interpreter, and which are barred."""
        with self._lock:
            if self._records is None:
                from polyfuse.checking.records import records_in

                self._records = records_in(self.store.root)
            return self._records

    def checked_calls(self, objects: Mapping[str, object], origins: Origins) -> Mapping[str, object]:
        """Objects of a program, with kernels that plugins wrote by hand as the option `check` says."""
        from polyfuse.checking.calls import checked_calls

        folder = Path(self.settings.dump_folder() or self.store.root / "repros")
        return checked_calls(objects, origins, self.settings, self.records, folder) if origins else objects

    def is_barred(self, backend: Backend, address: str) -> bool:
        """Whether what was built under an address must not be used on this machine."""
        records = self.records
        return records.any_barred and bool(records.barred(records.bar_key(address, backend.machine()), ""))

    def target_info(self, device: str) -> TargetInfo:
        """What the first backend for a device says about it."""
        for backend in self.backends(device.partition(":")[0]):
            return backend.target_info(device)
        return TargetInfo()

    def reads_narrow(self, device_type: str) -> bool:
        """Whether the first backend for a device multiplies few rows with a weight of fewer bits as it is."""
        first = next(iter(self.backends(device_type)), None)
        return first is not None and type(first).narrow_weight_rows is not Backend.narrow_weight_rows

    def wants_channels_last(self, value: torch.Tensor, weight: torch.Tensor, training: bool) -> ChannelsLast:
        """Which operands of a convolution of `value` get their channels last, in a graph with gradients or
        without.
        """
        single = value.dtype == torch.float32
        device = value.device.type
        info, option = self.target_info(device), self.settings.channels_last
        if value.dim() == 3 and (training or not (single or from_torch(value.dtype) in info.convolved_types)):
            return ChannelsLast.NONE  # along one axis: not timed as images
        last = ChannelsLast.ALL if info.channels_last_weights else ChannelsLast.ACTIVATIONS
        if option != "auto":
            return last if option == "on" else ChannelsLast.NONE
        # where libraries want weights as they are, gradients may gain less than bringing those of the weights
        # into their layout costs
        gains = info.channels_last_weights or from_torch(value.dtype) in info.channels_last_gradients
        if training and not gains:
            return ChannelsLast.NONE
        if single and DType.f32 in info.channels_last and self.settings.numerics == "fast":
            return last
        rounded = single and device_of(device).rounds("convolutions")
        limit = _DEPTHWISE_GRADIENT_WINDOW if single and training else _DEPTHWISE_WINDOW
        if _depthwise_window(weight) > limit:
            return ChannelsLast.NONE
        narrow = {kind for kind in info.channels_last if kind.itemsize == _NARROW}
        wanted = bool(narrow) if rounded else from_torch(value.dtype) in narrow
        if wanted and last is ChannelsLast.ACTIVATIONS and not training and weight.size(1) != 1:
            # their kernels gain more than converting the image and the result costs
            last = ChannelsLast.ACTIVATIONS_ALONE if from_torch(value.dtype) in info.convolved_types else last
        return last if wanted else ChannelsLast.NONE

    def expect(self, device_types: Iterable[str], operators: int, graph: str) -> None:
        """Prepare to build kernels for a graph of so many operators on these types of device, unless it was
        compiled before: then its kernels will be found.
        """
        if self.store.seen(graph):
            return
        for device_type in device_types:
            try:
                first = next(iter(self.backends(device_type)), None)
            except Exception:  # whoever needs the backend will meet it again
                continue
            if first is not None:
                self.pool.prepare(first, 1 + operators // _OPERATORS_PER_KERNEL)

    def device_types(self) -> tuple[str, ...]:
        """The types of device that plugins serve, by name."""
        manifests = (state.manifest for state in self.plugins.states())
        return tuple(sorted({kind for m in manifests if m is not None for kind in m.device_types} - {"*"}))

    def backends(self, device_type: str) -> Iterator[Backend]:
        """Usable backends for a device type, in the order in which they are asked."""
        return self.plugins.each_backend(device_type)


_SESSIONS: dict[str, CompileSession] = {}
_LOCK = ForkedLock()


def decided(settings: Settings) -> Settings:
    """Settings in which what follows torch's own switches is fixed, for the backward too, which may be
    compiled later. Dynamo compiles anew when such a switch changes."""
    if settings.deterministic != "auto":
        return settings
    asked = torch.are_deterministic_algorithms_enabled()
    return settings.with_options(deterministic="on" if asked else "off")


def session_for(settings: Settings) -> CompileSession:
    """The session of these settings; made at first use, and retained, with its workers, by the process."""
    key = f"{generation()} {settings!r}"
    with _LOCK:
        found = _SESSIONS.get(key)
        if found is None:
            plugins = [candidate.name for candidate in find_candidates()] if settings.log else ()
            log.configure(settings.log, plugins)
            found = _SESSIONS[key] = _new_session(settings)
        return found


def _new_session(settings: Settings) -> CompileSession:
    plugins = PluginManager(settings)
    extensions = Extensions(plugins)
    find_devices_with(extensions.device)
    facts = extensions.key_facts()
    # where a plugin cannot say what its results depend on, what earlier sessions stored may be stale
    store = KernelStore.temporary() if facts is None else KernelStore.open(settings, shared=True)
    code = partial(code_digest, memory=store.root / "code")
    pool = BuildPool(settings, facts or (), lambda backend: code_of(plugins, backend, code))
    return CompileSession(settings, plugins, pool, store, facts)


def autotuned_problems() -> tuple[str, ...]:
    """The addresses of the problems that autotuning was asked about in this process, each once."""
    with _LOCK:
        tuners = [session.tuner for session in _SESSIONS.values() if session.settings.autotunes]
    return tuple(dict.fromkeys(key for tuner in tuners for key in tuner.asked))


def forget_sessions() -> None:
    """Drop all sessions, so that plugins are discovered and options read anew."""
    with _LOCK:
        _SESSIONS.clear()


def _depthwise_window(weight: torch.Tensor) -> int:
    """Elements of the window of a depthwise convolution; 0 of others, and where sizes are not known."""
    channels, *window = weight.shape[1:]
    known = all(isinstance(size, int) for size in (channels, *window))
    return math.prod(window) if known and channels == 1 else 0
