"""The C++ code generator as a backend. Thin: each method hands over to the module that does the work, which
is imported when it is asked for: a process that finds its kernels built imports none of the generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from polyfuse.base.digest import digest
from polyfuse.base.errors import KernelLoadError
from polyfuse.ir.types import DType, e4m3_saturates
from polyfuse.plugin import Backend, Claim, Config, HostCall, Launchable, No, Source, TargetInfo
from polyfuse.runtime.frozen import offer_checksum, offer_look
from polyfuse_cpp.bindings import CALL_KINDS, bindings_text
from polyfuse_cpp.isa import (
    Isa,
    choose_isa,
    dot_instructions,
    gathers,
    has_matrix_registers,
    has_pair_products,
)
from polyfuse_cpp.loading import KEYS, LIBRARY, load_folder
from polyfuse_cpp.prelude import headers_digest, prelude_for
from polyfuse_cpp.threads.source import ChecksumSource, LookSource, PoolSource
from polyfuse_cpp.toolchain import Toolchain, build_library, find_toolchain

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.ir.kernel import Kernel
    from polyfuse.ir.nodes import Node, Reduction
    from polyfuse.plugin.host import HostProgram
    from polyfuse.plugin.host_library import HostLibrary

_VERSION = "1"

KERNEL_LANGUAGE = "c++"

_COLUMN_BYTES = 256 << 10
"""Half of what a core's second cache holds."""

_TWO_PASS_ROW = 64 << 10
"""Numbers of a row that a core's second cache holds, where two passes are faster than one that divides."""

_SIZE_CLASSES = (9, 16, 128, 1024)
"""Below the first, layers have few rows (`streaming_parts`); below the second, a row fills few vectors; from
the last on, it is longer than what a thread is given.
"""
_TUNED_CLASSES = (3, 5, 7, *_SIZE_CLASSES)
"""Where GEMMs are measured: a tile of eight rows may be the fastest for eight, and computes eight for 5."""


class CppBackend(Backend):
    """Kernels for the CPU in C++."""

    autotunes_gemm = True
    joins_launches = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.isa: Isa = choose_isa(str(settings.plugin_option("cpp", "isa", "") or ""))
        # At once: without a compiler this backend is of no use, and the next one should know it.
        self.toolchain: Toolchain = find_toolchain(
            str(settings.plugin_option("cpp", "compiler", "") or ""),
            str(settings.plugin_option("cpp", "flags", "") or ""),
        )
        self._size_classes = _TUNED_CLASSES if settings.gemm == "fastest" else _SIZE_CLASSES
        self._pool = PoolSource(self.toolchain, settings)
        offer_checksum(ChecksumSource(self.toolchain, settings).find)
        offer_look(LookSource(self.toolchain, settings).find)

    def target_info(self, device: str) -> TargetInfo:
        """Tell that oneDNN convolves faster with the channels last than with them second: in f32, and in the
        types of 16 bits that the CPU has instructions for, whose gradients are faster so, too. Without these,
        depthwise convolutions took six times as long so.
        """
        from polyfuse_cpp.onednn.library import convolved_types, narrow_types

        tiles = has_matrix_registers(self.isa)
        bf16, none = frozenset((DType.bf16,)), frozenset[DType]()
        info = super().target_info(device)
        return replace(
            info,
            channels_last=convolved_types(),
            channels_last_gradients=narrow_types(),
            paired_types=bf16 if tiles or has_pair_products(self.isa) else none,
            convolved_types=bf16 if tiles else none,
            depthwise_loops=True,
            loops_by_ranges=True,
            column_bytes=_COLUMN_BYTES,
            column_reductions=True,
            two_pass_row=_TWO_PASS_ROW,
            size_classes=self._size_classes,
            machine=self.toolchain.other_machine,
        )

    def claims(self, node: Node) -> Claim:
        """All loop nodes on values of the IR's types; anything else is another backend's."""
        from polyfuse_cpp import generator

        return generator.claim(node)

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Other lane axes, tiles and ways to read operands."""
        from polyfuse_cpp import generator

        return generator.configs(kernel, self.isa)

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        """Other tiles and depths of a matmul."""
        from polyfuse_cpp import generator

        return generator.neighbours(kernel, config, self.isa)

    def estimate(self, kernel: Kernel, config: Config) -> float:
        """Seconds, roughly."""
        from polyfuse_cpp import generator

        return generator.estimate(kernel, config, self.isa)

    def packed_width(self, matmul: Reduction) -> int:
        """Up to four vectors of columns."""
        from polyfuse_cpp.packed_blocks import packed_width

        return packed_width(matmul, self.isa)

    def machine(self) -> Mapping[str, str]:
        """The machine, and what is in its caches where that is not as usual."""
        caches = str(self.settings.plugin_option("cpp", "caches", "") or "cold")
        return {**super().machine(), **({} if caches == "cold" else {"caches": caches})}

    def preferred_gemm(self, matmul: Reduction, hints: Mapping[str, int]) -> bool:
        """Whether oneDNN's is called through torch otherwise, and the sums are many."""
        from polyfuse_cpp import generator

        rows = generator.most_rows(torch.get_num_threads(), bool(self.settings.freezing), self.isa)
        return generator.prefers(matmul, hints, self.isa, rows)

    def prepacks_gemm(self, matmul: Reduction, hints: Mapping[str, int]) -> bool:
        """Whether there are many pixels, or groups of channels; of windows of 1x1, some and not too many."""
        from polyfuse_cpp import generator

        return generator.prepacks(matmul, hints, self.isa, torch.get_num_threads())

    def narrow_weight_rows(self, matmul: Reduction) -> tuple[int, int]:
        """Many where the weight lies along the depth, which is converted once for all rows."""
        from polyfuse_cpp.matmul.narrow.converted import narrow_rows

        return narrow_rows(matmul, self.isa)

    def streaming_parts(self, matmul: Reduction) -> int:
        """One, where the library is slower at few rows: its depth is not split."""
        from polyfuse_cpp.matmul.few_rows import streaming_parts

        return streaming_parts(matmul, self.isa)

    def may_group(self, kernel: Kernel) -> Claim:
        """All but matmuls."""
        from polyfuse_cpp import generator

        return generator.may_group(kernel)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel's text and, as meta, its signature and the headers it needs."""
        from polyfuse_cpp import generator

        self._pool.start()
        found = generator.text(kernel, config, self.isa)
        meta = f"{found.signature};{','.join(found.features)};{self.isa.name}"
        return Source(
            kernel.name, found.text, KERNEL_LANGUAGE, meta=meta, refused_aliases=found.refused_aliases
        )

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """One unit of all kernels, one library; or host programs, or models, each a library of its own."""
        if sources[0].language != KERNEL_LANGUAGE:
            from polyfuse_cpp.native_host.model_text import LIBRARY_LANGUAGE, public_headers
            from polyfuse_cpp.native_host.program import host_unit

            for source in sources:
                is_model = source.language == LIBRARY_LANGUAGE
                path = folder / f"{source.key}.cpp"
                path.write_text(source.text if is_model else host_unit(source), encoding="utf-8")
                self._build_library(path, path.with_suffix(".so"), source.name)
                for name, text in public_headers().items() if is_model else ():
                    (folder / name).write_text(text, encoding="utf-8")
            return
        signatures = {source.symbol: source.meta.split(";")[0] for source in sources}
        unit = self._head(sources) + _texts(sources) + bindings_text(signatures)
        path = folder / "kernels.cpp"
        path.write_text(unit, encoding="utf-8")
        names = ", ".join(dict.fromkeys(s.name for s in sources))
        self._build_library(path, folder / LIBRARY, names)
        rows = "".join(f"{source.key} {source.symbol}\n" for source in sources)
        (folder / KEYS).write_text(rows, encoding="utf-8")

    def _build_library(self, source: Path, output: Path, name: str) -> None:
        timeout = float(self.settings.build_timeout)
        build_library(self.toolchain, self.isa, source, output, name=name, timeout=timeout)

    def _head(self, sources: Sequence[Source]) -> str:
        """The part of the vector layer that kernels need."""
        features = {name for source in sources for name in source.meta.split(";")[1].split(",")}
        return prelude_for(
            sorted(features),
            lanes=self.isa.lanes,
            register_bytes=self.isa.register_bytes,
            gathers=gathers(),
            dots=self._dots(),
            saturates=e4m3_saturates(),
        )

    def _dots(self) -> tuple[str, ...]:
        """What `dot_instructions` finds, where code for the instruction set has it: not another machine's."""
        return dot_instructions() if self.isa.name == "avx512" else ()

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The kernels of a built folder by key, or its host programs.

        Raises:
            KernelLoadError: they were built for another machine.
        """
        if self.toolchain.other_machine:
            raise KernelLoadError(
                f"kernels that {self.toolchain.path} builds run on {self.toolchain.other_machine} alone",
                "package the model with `polyfuse.aot.package`, or leave out the option cpp.compiler",
            )
        if (folder / KEYS).exists():
            return load_folder(folder, self._pool.share)
        from polyfuse_cpp.native_host.program import load_hosts

        return load_hosts(folder)

    def host(self, source: Source) -> HostCall | None:
        """Kernels are C functions: pointers and sizes in the order of the kernel's arguments."""
        signature, _, _ = source.meta.split(";")
        return HostCall(LIBRARY, source.symbol, tuple(CALL_KINDS[letter] for letter in signature))

    def host_program(self, program: HostProgram) -> Source | No:
        """A function over the plain C interface of `host/host.h`."""
        from polyfuse_cpp.native_host.program import host_source

        return host_source(program)

    def host_library(self, library: HostLibrary) -> Source | No:
        """A shared library over ``model/polyfuse_model.h``, which needs the C library and OpenMP alone; on a
        device, the driver of that instead of OpenMP.
        """
        from polyfuse_cpp.native_host.model_text import (
            LIBRARY_LANGUAGE,
            device_library_text,
            library_text,
            public_headers,
        )

        if library.device is not None:
            text = device_library_text(library, library.device, self.isa)
        elif any(source.language != KERNEL_LANGUAGE for source in library.kernels):
            return No("another backend made some of its kernels")
        else:
            head, kernels = self._head(library.kernels), _texts(library.kernels)
            text = library_text(library, head, kernels, self.isa, self._dots())
        return Source(library.name, text, LIBRARY_LANGUAGE, meta=digest(*public_headers().values()))

    def describe(self) -> Mapping[str, str]:
        """Compiler, instruction set, and the headers that every kernel is built with."""
        return {
            "compiler": self.toolchain.fingerprint,
            "isa": self.isa.name,
            "gathers": str(gathers()),
            "dots": " ".join(self._dots()),
            "headers": headers_digest(),
            "float8": "saturates" if e4m3_saturates() else "overflows",
            "cpp": _VERSION,
        }


def _texts(sources: Sequence[Source]) -> str:
    """Kernels, each once."""
    return "\n".join({source.symbol: source.rendered() for source in sources}.values())
