"""Kernels that the model's author wrote by hand in Triton, and how they are launched.

Dynamo puts a call of such a kernel into the graph as a higher-order operator, which names the kernel and
those of its arguments that no graph can hold by their numbers in a table of torch's. Triton itself is needed
only where such a kernel is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.log import get_logger

_log = get_logger("lowering")

_CPU = torch.device("cpu")

Grid = tuple[Any, Any, Any]


def kernel_in_table(number: int) -> Any:
    """The kernel (plain or with configurations to choose from) that Dynamo gave this number."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table.get_kernel(number)


def kernel_constants(number: int) -> Mapping[str, Any]:
    """Arguments stored outside the graph, by name: constants of the kernel and options of its launch."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return dict(kernel_side_table.get_constant_args(number))


def kernel_name(kernel: Any) -> str:
    """The name of a kernel's function."""
    while not hasattr(kernel, "__name__") and hasattr(kernel, "fn"):
        kernel = kernel.fn
    return str(getattr(kernel, "__name__", type(kernel).__name__))


def mutated_arguments(
    number: int, constants: int, arguments: Mapping[str, Any], descriptors: Mapping[str, Any]
) -> tuple[str, ...]:
    """Names of the tensor arguments that a kernel may write to, by torch's analysis of its code.

    Where torch cannot tell, all of them.
    """
    from torch._higher_order_ops import triton_kernel_wrap as wrap

    tensors = tuple(k for k, v in arguments.items() if isinstance(v, torch.Tensor))
    everything = {**arguments, **kernel_constants(constants)}
    try:
        analyse = getattr(wrap, "identify_accessed_tensors", None)
        if analyse is not None:
            found = analyse(kernel_in_table(number), everything, dict(descriptors)).read_writes.writes
            written = {dep.name for dep in found}
        else:
            written = set(
                wrap.identify_mutated_tensors(kernel_in_table(number), everything, dict(descriptors))
            )
    except Exception as error:
        _log.info("which arguments a kernel writes is unknown (%s); all are taken for written", error)
        return tensors
    return tuple(name for name in tensors if name in written)


@dataclass(frozen=True)
class Dynamic:
    """Stands for value number `position` of those that a launch is given."""

    position: int


@dataclass(frozen=True)
class UserKernel:
    """A call of a hand-written kernel, all but the values that only a run knows.

    Called with one flat list: the arguments called `names`, in that order, then the numbers that a `Dynamic`
    in a grid or descriptor stands for.

    Attributes:
        kernel: as in torch's table.
        names: arguments that are given at run time.
        constants: all others.
        grids: a grid for each of the kernel's configurations, or one.
        descriptors: arguments that are handed over as tensor descriptors, with their block shapes.
    """

    kernel: Any
    names: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    grids: tuple[Grid, ...]
    descriptors: tuple[tuple[str, Any], ...] = ()

    def __call__(self, *flat: Any) -> None:
        """Launch it, on the device that its tensors are on."""
        where = next((value.device for value in flat if isinstance(value, torch.Tensor)), _CPU)
        module = None if where.type == "cpu" else torch.get_device_module(where)
        if module is None or module.current_device() == where.index:
            self._launch(flat)
        else:
            with module.device(where.index):
                self._launch(flat)

    def measure(self, examples: Sequence[Any]) -> bool:
        """Let a kernel that has configurations to choose from measure them now, on tensors and numbers like
        those of a run, so that the first call finds its choice made. Returns whether that was done; where it
        cannot be, the first call measures.
        """
        if len(getattr(self.kernel, "configs", None) or ()) < 2:
            return False
        try:
            self(*examples)
        except Exception as error:
            _log.info("kernel %s is measured at its first call (%s)", kernel_name(self.kernel), error)
            return False
        return True

    def _launch(self, flat: Sequence[Any]) -> None:
        values = dict(zip(self.names, flat, strict=False))
        for name, description in self.descriptors:
            values[name] = _descriptor(values[name], _filled(description, flat))
        values.update(self.constants)
        # hooks of a kernel with configurations see only what is passed by position
        positional = []
        for name in self.kernel.arg_names:
            if name not in values:
                break
            positional.append(values.pop(name))
        self.kernel[self._grid(flat)](*positional, **values)

    def same_as(self, other: object) -> bool:
        """Whether `other` is the same call; constants that cannot be compared are taken for different."""
        try:
            return isinstance(other, UserKernel) and self.kernel is other.kernel and self == other
        except Exception:
            return False

    def _grid(self, flat: Sequence[Any]) -> Grid | Callable[[Mapping[str, Any]], Grid]:
        grids: tuple[Grid, ...] = tuple(_filled(grid, flat) for grid in self.grids)
        if all(grid == grids[0] for grid in grids):
            return grids[0]
        configs = [dict(config.kwargs) for config in self.kernel.configs]

        def chosen(meta: Mapping[str, Any]) -> Grid:
            for config, grid in zip(configs, grids, strict=True):
                if all(meta.get(name) == value for name, value in config.items()):
                    return grid
            raise UnsupportedError(
                f"kernel {kernel_name(self.kernel)} runs with a configuration that was not there when it was"
                " captured",
                "keep the list of configurations as it is while the model is compiled",
            )

        return chosen


def _filled(nested: Any, flat: Sequence[Any]) -> Any:
    if isinstance(nested, Dynamic):
        return flat[nested.position]
    if isinstance(nested, (tuple, list)):
        return tuple(_filled(item, flat) for item in nested)
    return nested


def _descriptor(tensor: torch.Tensor, description: Any) -> Any:
    """A tensor descriptor as the kernel expects it, made of the tensor that stands for it in the graph."""
    kind, details = description
    if kind == "stable":
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor.from_tensor(tensor, list(details[0]))
    from triton.tools import experimental_descriptor as experimental

    dims, block_dims, element_size = details
    make = experimental.create_1d_tma_descriptor if len(dims) == 1 else experimental.create_2d_tma_descriptor
    return make(tensor.data_ptr(), *dims, *block_dims, element_size)
