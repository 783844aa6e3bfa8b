"""From the text of a host program to something that can be called. Kernels have their names in torch's
profiler while it records; launchers of other devices than the CPU mark each launch themselves.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import count
from types import CodeType
from typing import TYPE_CHECKING, Any, Protocol

import torch

from polyfuse.base.errors import InputLayoutError, KernelLoadError
from polyfuse.base.process import ForkedLock
from polyfuse.runtime.checks import (
    Aligned,
    aligning,
    has_layout,
    watched,
    with_memory,
    with_views,
)
from polyfuse.runtime.devices.series import attach_series
from polyfuse.runtime.explain import explain, layout_error, line_map, not_a_tensor, shown_name
from polyfuse.runtime.frozen import PackedInputs
from polyfuse.runtime.graphs.status import GraphStatus
from polyfuse.runtime.launching import alone, profiler_flag
from polyfuse.runtime.native import on_device, record_function
from polyfuse.runtime.program_code import code_of, inputs_of
from polyfuse.runtime.provisional import Provisional
from polyfuse.runtime.ranks.agreement import Agreement, compiling_for_others
from polyfuse.torch_compat.bindings import has_no_memory, is_fake, may_skip_guards, plain

if TYPE_CHECKING:
    from polyfuse.runtime.graphs.replay import GraphFacts
    from polyfuse.runtime.native_program import HostStatus, NativeCall
    from polyfuse.runtime.ranks.collectives import CollectiveRow
    from polyfuse.runtime.sized import SizedPrograms


class Pending(Protocol):
    """A kernel that is still being built, such as a `concurrent.futures.Future`."""

    def result(self) -> Callable[..., Any]:
        """Wait for it; raises what its build raised."""


class Native(Protocol):
    """A native host program on its way.

    Attributes:
        status: what became of it.
    """

    status: HostStatus

    def open(
        self,
        launchables: Mapping[str, Callable[..., Any]],
        objects: Mapping[str, Any],
        aligned: Aligned,
        replaced: Collection[str],
    ) -> NativeCall | None:
        """Wait for it; None where it cannot be had."""


KernelEntry = Callable[..., Any] | Pending
"""A kernel that can be launched, or the promise of one."""

_numbers = count()


class CompiledModule:
    """A loaded host program: call it with one list of inputs, which it empties, and get a tuple of results.

    Attributes:
        name: of the graph.
        text: the program's source.
        filename: under which tracebacks and debuggers know it.
        namespace: the globals of the program.
        code: the byte code of the text; None: it was not loaded from one.
        output_strides: strides that the compiler chose for results, where it may; None if it changed none.
        graph_status: what becomes of recording its work; None where that was not asked for.
        cache_record: what the graph cache stores of it, or why it stores nothing.
        native: the same program in its native form, if that was asked for.
        collectives: that it starts, in their order.
        agreement: the check with other processes before it runs for the first time; None: nothing.
        sized: the programs of its graph for other sizes; None: this one serves all.
        packed_inputs: inputs that it takes behind those of its graph; None: there are none.
    """

    _boxed_call = True

    def __init__(
        self,
        name: str,
        text: str,
        filename: str,
        namespace: dict[str, Any],
        kernels: Mapping[str, KernelEntry],
        output_strides: Sequence[tuple[Any, ...] | None] | None = None,
    ) -> None:
        self.name = name
        self.text = text
        self.filename = filename
        self.output_strides = output_strides
        self.namespace = namespace
        self.code: CodeType | None = None
        self.graph_status = GraphStatus() if namespace.get("GRAPH") is not None else None
        self.cache_record: object = "it was not compiled for the graph cache"
        self.native: Native | None = None
        self.collectives: tuple[CollectiveRow, ...] = ()
        self.agreement: Agreement | None = None
        self.sized: SizedPrograms[Callable[[list[Any]], Any]] | None = None
        self.packed_inputs: PackedInputs | None = None
        self._pending = dict(kernels)
        self._provisional: dict[str, Provisional] = {}
        self._lock = ForkedLock()
        self._run: Callable[[list[Any]], tuple[Any, ...]] = self._first_run
        on_host = not namespace["DEVICE"]  # launchers of other devices mark launches themselves
        self._marking = Marking(namespace, namespace["KERNELS"] if on_host else ())

    def __call__(self, args: list[Any]) -> tuple[Any, ...]:
        if self.sized is not None:
            program = self.sized(args)
            if program is not self:
                found: tuple[Any, ...] = program(args)
                return found
        try:
            marking = self._marking
            if marking.flags[marking.flag] or marking.marked:
                marking.follow()
            return self._run(args)
        except Exception as error:
            better = explain(error, self.text, self.filename)
            if better is error:
                raise
            raise better from None

    def wait(self) -> None:
        """Wait for the kernels that are still being built, and put all of them in place.

        Raises:
            KernelBuildError, KernelLoadError: a kernel could not be had.
        """
        with self._lock:
            for name in list(self._pending):
                entry = self._pending[name]
                kernel = entry if callable(entry) else entry.result()
                self._put(name, kernel)
                if isinstance(kernel, Provisional):
                    self._provisional[name] = kernel
                    kernel.attach(partial(self._put, name))
                del self._pending[name]

    def _put(self, name: str, kernel: Callable[..., Any]) -> None:
        self.namespace[name] = alone(kernel) if self.namespace.get("ALONE") else kernel

    def replace_run(self, run: Callable[[list[Any]], tuple[Any, ...]]) -> None:
        """Let calls run something else than the program: to look at its text alone."""
        self._run = run

    @property
    def lines(self) -> dict[int, str]:
        """The origin (operators and lines of the model) of each line of the text that has one."""
        return line_map(self.text)

    @property
    def kernels(self) -> dict[str, Callable[..., Any]]:
        """The kernels in place, by their names in the program."""
        names: tuple[str, ...] = self.namespace["KERNELS"]
        return {name: self.namespace[name] for name in names if self.namespace[name] is not None}

    def _first_run(self, args: list[Any]) -> tuple[Any, ...]:
        self._check_inputs(args)
        args[:] = map(plain, args)
        with self._reporting_failure():
            self.wait()
        self._marking.follow()
        # a native program calls kernels by their addresses, past what checks their first launch
        checking = self.native is not None and any(k.pending for k in self._provisional.values())
        if not checking:
            self._open_native(args)
        run = self._recorded(self._entry)
        if may_skip_guards():
            names = [shown_name(self.namespace, row[0]) for row in self.namespace["INPUTS"]]
            run = watched(run, args, self.namespace["CHECKS"], names)
        # which inputs are such is guarded: a call with others is another program's
        bare = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor) and has_no_memory(a)]
        run = partial(with_memory, run, positions=bare) if bare else run
        views = self.namespace.get("VIEWS")
        run = partial(with_views, run, views=views) if views else run
        if not checking:
            self._run = run
        if self.agreement is None or not self.collectives:
            return run(args)
        agreement, self.agreement = self.agreement, None
        found: tuple[Any, ...] = agreement.around(self.collectives, self.name, partial(run, args))
        return found

    def _reporting_failure(self) -> AbstractContextManager[None]:
        """Report to other processes of a program with collectives that kernels cannot be had."""
        return compiling_for_others() if self.agreement and self.collectives else nullcontext()

    def _open_native(self, args: Sequence[Any]) -> None:
        """Run the native program instead of the Python program, if there is one."""
        if self.native is None:
            return
        space = self.namespace
        for value, (name, kind, *_) in zip(args, space["INPUTS"], strict=True):
            if kind == "symint" and not isinstance(value, int):
                # which inputs are such is guarded, as what has no memory is
                self.native.status.refused = (
                    f"{shown_name(space, name)} is the length of ragged tensors, which is no number"
                )
                return
        objects = {key: space[variable] for variable, key in space["OBJECTS"].items()}
        replaced = [name for name, kernel in self._provisional.items() if kernel.replaced]
        program = self.native.open(self.kernels, objects, space["ALIGNED"], replaced)
        if program is not None:
            space["call_python"], space["call"] = space["call"], program

    def _entry(self, name: str) -> Callable[[list[Any]], Any]:
        """A function of the program that takes all inputs, wherever its parameters are."""
        call: Callable[[list[Any]], Any] = self.namespace[name]
        return on_device(aligning(call, self.namespace["ALIGNED"]), self.namespace["DEVICE"])

    def _recorded(self, entry: Callable[[str], Callable[[list[Any]], Any]]) -> Callable[[list[Any]], Any]:
        """The program, with its work recorded and replayed if that was asked for."""
        program = entry("call")
        facts = self.namespace.get("GRAPH")
        if facts is None or self.graph_status is None:
            return program
        from polyfuse.runtime.graphs.guided import Text
        from polyfuse.runtime.graphs.replay import GraphFacts, recorded_program

        inputs = self.namespace["INPUTS"]
        sizes = [i for i, row in enumerate(inputs) if row[1] == "symint"]
        objects = [self.namespace[variable] for variable in self.namespace["OBJECTS"]]
        generators = [o for o in objects if isinstance(o, torch.Generator)]
        known = GraphFacts(**facts, names=tuple(row[0] for row in inputs))

        def partitioned() -> Callable[[list[Any]], Any]:
            self._record_partitions(generators)
            return entry("call_partitioned")

        fallback = None
        if known.refused:
            self._record_partitions(generators)
        elif "PARTITIONS" in self.namespace:
            fallback = partitioned
        text = Text.of(self.namespace, known.device)
        return recorded_program(
            program, known, sizes, generators, self.name, self.graph_status, fallback, text
        )

    def _record_partitions(self, generators: Sequence[torch.Generator]) -> None:
        from polyfuse.runtime.graphs.replay import GraphFacts

        for name, own, tensors in self.namespace.get("PARTITIONS", ()):
            self._record_partition(name, GraphFacts(**own), tensors, generators)

    def _record_partition(
        self, name: str, facts: GraphFacts, tensors: int, generators: Sequence[torch.Generator]
    ) -> None:
        """Replace a function of the program by what records it. Inputs behind `tensors` are numbers."""
        from polyfuse.runtime.graphs.guided import Text
        from polyfuse.runtime.graphs.replay import recorded_program

        assert self.graph_status is not None
        status = GraphStatus()
        self.graph_status.partitions.append(status)
        sizes = range(tensors, len(facts.names))
        self.namespace[name] = recorded_program(
            self.namespace[name],
            facts,
            sizes,
            generators,
            f"{name} of {self.name}",
            status,
            text=Text.of(self.namespace, facts.device),
        )

    def _check_inputs(self, args: Sequence[Any]) -> None:
        """Check once: number, types and devices of inputs, and the layout of parameters (of their strides, if
        Dynamo guards those; elsewhere a call runs on copies)."""
        expected: tuple[tuple[Any, ...], ...] = self.namespace["INPUTS"]
        if len(args) != len(expected):
            raise InputLayoutError(
                f"{self.name} was called with {len(args)} inputs where {len(expected)} were expected",
                "pass one list with all of the graph's inputs",
            )
        for value, (variable, kind, dtype, device, *_) in zip(args, expected, strict=True):
            if kind != "tensor":
                continue
            name = shown_name(self.namespace, variable)
            if not isinstance(value, torch.Tensor):
                raise not_a_tensor(name, value)
            if is_fake(value):
                raise InputLayoutError(
                    f"input {name} is a fake tensor, which has no memory that kernels could read",
                    "call the function itself, not its compiled form, with fake tensors",
                )
            elsewhere = device and value.device.type != device.split(":")[0]
            if str(value.dtype) != f"torch.{dtype}" or elsewhere:
                raise InputLayoutError(
                    f"input {name} is {value.dtype} on {value.device} where torch.{dtype} on {device} was"
                    " expected",
                    "call the compiled program with inputs like those it was compiled with",
                )
        for position, size, stride, _ in self.namespace["CHECKS"]:
            tensor = args[position]
            # torch's function takes an empty tensor for any
            fits = has_layout(tensor, size, stride) and (tensor.numel() or tuple(tensor.shape) == tuple(size))
            if not fits and not (may_skip_guards() and tuple(tensor.shape) == tuple(size)):
                name = shown_name(self.namespace, expected[position][0])
                raise layout_error(name, tensor, size, stride)


def load(
    text: str,
    kernels: Mapping[str, KernelEntry],
    objects: Mapping[str, Any],
    *,
    filename: str = "",
    output_strides: Sequence[tuple[Any, ...] | None] | None = None,
    code: bytes = b"",
) -> CompiledModule:
    """Make a host program callable.

    Args:
        text: what `polyfuse.program.text` printed.
        kernels: a launchable, or a future of one, for each name in the program's ``KERNELS``.
        objects: the graph's object table: constants and other host values by key.
        filename: of the text on disk, if it is there.
        output_strides: an attribute of the result for the caller of the compiler.
        code: the byte code of the text, as `stored_code` returned it; empty: the text is compiled.

    Raises:
        KernelLoadError: a kernel or an object is missing.
    """
    name = filename or f"<polyfuse program {next(_numbers)}>"
    namespace: dict[str, Any] = {"__name__": "polyfuse_program", "__file__": name}
    compiled = code_of(text, name, code)
    exec(compiled, namespace)
    inputs = inputs_of(text)
    if inputs is not None:
        namespace["INPUTS"] = inputs
    wanted: tuple[str, ...] = namespace["KERNELS"]
    missing = [kernel for kernel in wanted if kernel not in kernels]
    missing += [key for key in namespace["OBJECTS"].values() if key not in objects]
    if missing:
        raise KernelLoadError(
            f"the program needs {', '.join(missing)}, which it was not given", "compile the graph again"
        )
    for variable, key in namespace["OBJECTS"].items():
        namespace[variable] = objects[key]
    attach_series(namespace, text)
    module = CompiledModule(
        namespace["NAME"], text, name, namespace, {k: kernels[k] for k in wanted}, output_strides
    )
    module.code = compiled
    if not filename:
        # lets tracebacks and debuggers show the lines of a text that is in no file
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        weakref.finalize(module, linecache.cache.pop, name, None)
    return module


class _Marked:
    """A kernel whose launches are marked."""

    def __init__(self, name: str, kernel: Callable[..., Any]) -> None:
        self.name = name
        self.kernel = kernel

    def __call__(self, *operands: Any) -> Any:
        with record_function(self.name):
            return self.kernel(*operands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


class Marking:
    """Marks the kernels of a program while the profiler records.

    Args:
        namespace: of the program, where its kernels are globals.
        names: of kernels.

    Attributes:
        flags: where the profiler says under `flag` whether it records.
        flag: the key there.
        marked: whether kernels are marked; if they are, or the profiler records, `follow` is called.
    """

    def __init__(self, namespace: dict[str, Any], names: Collection[str]) -> None:
        self._namespace = namespace
        self._names = names
        self.flags, self.flag = profiler_flag() or ({"": False}, "")
        self.marked = False

    def follow(self) -> None:
        """Be called before each call of the program, and where kernels were put in place."""
        wanted: bool = self.flags[self.flag]
        if not wanted and not self.marked:
            return
        self.marked = wanted
        for name in self._names:
            kernel = self._namespace[name]
            if isinstance(kernel, _Marked):
                if not wanted:
                    self._namespace[name] = kernel.kernel
            elif wanted and callable(kernel):  # also one that has replaced another since
                self._namespace[name] = _Marked(name, kernel)
