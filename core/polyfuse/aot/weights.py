"""The weights of a package: written one after the other, mapped into memory instead of read."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from polyfuse.aot.container import ALIGNMENT, Archive, ArchiveWriter
from polyfuse.aot.description import Weight
from polyfuse.base.errors import PackageError

WEIGHTS = "weights.bin"
"""The member that holds them."""

MAPPED = 1 << 20
"""Weights of fewer bytes in all are read: a mapping costs more."""


def spanned(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a tensor reaches, as a vector: its elements, with gaps and without repetition."""
    extent = (
        0
        if tensor.numel() == 0
        else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    )
    return tensor.detach().as_strided((extent,), (1,))


def write_weights(writer: ArchiveWriter, at_offsets: Sequence[tuple[int, torch.Tensor]]) -> None:
    """Write tensors as one member, each at its offset, which is a multiple of `ALIGNMENT`, in order."""
    end = 0
    for offset, tensor in at_offsets:
        end = offset + spanned(tensor).nbytes
    if at_offsets:
        writer.add_aligned(WEIGHTS, end, _chunks(at_offsets))


def _chunks(at_offsets: Sequence[tuple[int, torch.Tensor]]) -> Iterator[Any]:
    done = 0
    for offset, tensor in at_offsets:
        if offset > done:
            yield bytes(offset - done)
        memory = spanned(tensor).cpu()
        if memory.nbytes:
            yield (ctypes.c_ubyte * memory.nbytes).from_address(memory.data_ptr())
        done = offset + memory.nbytes


class Mapped:
    """The bytes of a package's weights in memory. Packages loaded from one file share them."""

    def __init__(self, memory: mmap.mmap | bytearray, start: int) -> None:
        self._memory = memory
        self._start = start

    def tensor(self, weight: Weight) -> torch.Tensor:
        """One weight on the CPU; its memory is that of the mapping.

        Raises:
            PackageError: it reaches beyond the bytes that are there.
        """
        dtype = dtype_of(weight.dtype)
        extent = weight.bytes // dtype.itemsize
        reached = 1 + sum((n - 1) * s for n, s in zip(weight.size, weight.stride, strict=True))
        if (0 if 0 in weight.size else reached) > extent:
            raise PackageError(
                f"the weight {weight.name} reaches beyond its bytes in the package", "copy the package again"
            )
        if not extent:
            return torch.empty_strided(weight.size, weight.stride, dtype=dtype)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=extent, offset=self._start + weight.offset)
        found = flat.as_strided(weight.size, weight.stride)
        return found if found.data_ptr() % ALIGNMENT == 0 else aligned_copy(found)


_MappingKey = tuple[int, int, int, int, int]

_MAPPINGS: weakref.WeakValueDictionary[_MappingKey, Mapped] = weakref.WeakValueDictionary()
"""By device, inode, time and size of the file, and the offset in it: the file's own words prove nothing."""


def map_weights(archive: Archive, member: str) -> Mapped:
    """Map the weights of a package. Writing to them changes this process's memory alone, never the file."""
    row, start = archive.members[member], archive.offset_of(member)
    if row.size < MAPPED or start % ALIGNMENT:
        return Mapped(bytearray(archive.read(member)), 0)
    facts = os.fstat(archive.fileno())
    key = facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size, start
    found = _MAPPINGS.get(key)
    if found is None:
        found = _MAPPINGS[key] = _mapped(archive, start, row.size)
    return found


def _mapped(archive: Archive, start: int, size: int) -> Mapped:
    page = start % mmap.ALLOCATIONGRANULARITY
    try:
        memory = mmap.mmap(archive.fileno(), page + size, access=mmap.ACCESS_COPY, offset=start - page)
    except (OSError, ValueError) as error:
        raise PackageError(
            f"the weights of the package {archive.path} cannot be mapped into memory ({error})",
            "copy it to a local file system",
        ) from error
    return Mapped(memory, page)


def aligned_copy(tensor: torch.Tensor) -> torch.Tensor:
    """The same layout in new memory that begins at a multiple of `ALIGNMENT` bytes."""
    memory = spanned(tensor)
    room = torch.empty(memory.nbytes + ALIGNMENT, dtype=torch.uint8, device=tensor.device)
    skipped = -room.data_ptr() % ALIGNMENT
    copy = room[skipped : skipped + memory.nbytes].view(tensor.dtype)
    return copy.copy_(memory).as_strided(tensor.shape, tensor.stride())


def dtype_of(name: str) -> torch.dtype:
    """The type of elements of a name such as `float32`.

    Raises:
        PackageError: this torch has no such type.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise PackageError(f"this torch has no type of elements {name}", "use a later release of torch")
    return found
