"""The C++ code generator as a backend: what it claims, and how kernels are emitted, built and loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfuse.base.digest import digest
from polyfuse.base.settings import Settings, environment
from polyfuse.ir.expr import walk
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import LoopNode, Node, Reduction, Scan, Scatter
from polyfuse.ir.ops import CONTRACTIONS, REDUCTIONS, SCANS, STORE_MODES
from polyfuse.plugin import Backend, Claim, Config, HostCall, HostProgram, Launchable, No, Source, Yes
from polyfuse.plugin.host_library import HostLibrary
from polyfuse_cpp.bindings import CALL_KINDS, bindings_text
from polyfuse_cpp.facts import analyse
from polyfuse_cpp.host_program import host_source, host_unit, load_hosts
from polyfuse_cpp.isa import Isa, choose_isa, dot_instructions, gathers_pay
from polyfuse_cpp.kernel import KernelText, kernel_text
from polyfuse_cpp.loading import KEYS, LIBRARY, load_folder
from polyfuse_cpp.loop_estimate import loop_seconds
from polyfuse_cpp.model_text import LIBRARY_LANGUAGE, library_text, public_headers
from polyfuse_cpp.ops import unsupported_op
from polyfuse_cpp.phases import planned
from polyfuse_cpp.prelude import headers_digest, prelude_for
from polyfuse_cpp.product_plans import (
    configs_of,
    nearby_plans,
    panel_width,
    plan_of,
    plan_seconds,
    product_plans,
)
from polyfuse_cpp.product_slices import product_text
from polyfuse_cpp.products import has_product, product_of
from polyfuse_cpp.tiling import lane_choices
from polyfuse_cpp.toolchain import Toolchain, build_library, find_toolchain

__all__ = ["CppBackend"]

_VERSION = "1"

KERNEL_LANGUAGE = "c++"


class CppBackend(Backend):
    """Kernels for the processor in C++."""

    races_products = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.isa: Isa = choose_isa(str(settings.plugin_option("cpp", "isa", "") or ""))
        # At once: without a compiler this backend is of no use, and the next one should know it.
        self.toolchain: Toolchain = find_toolchain(
            str(settings.plugin_option("cpp", "compiler", "") or environment("CXX"))
        )

    def claims(self, node: Node) -> Claim:
        """All loop nodes on values of the IR's types; anything else is somebody else's."""
        if not isinstance(node, LoopNode):
            return No(f"{type(node).__name__} is not a loop")
        if isinstance(node, Reduction) and node.kind not in (*REDUCTIONS, *CONTRACTIONS):
            return No(f"the reduction {node.kind} is unknown")
        if isinstance(node, Scan) and (node.kind not in SCANS or len(node.raxes) != 1):
            return No(f"the scan {node.kind} over {len(node.raxes)} axes is unknown")
        if isinstance(node, Scatter) and node.mode not in ("set", *STORE_MODES):
            return No(f"the store mode {node.mode} is unknown")
        for expr in walk(*node.expressions()):
            if expr.dtype.is_eight_bit_float:
                return No(f"the C++ code generator has no {expr.dtype}")
            operand = expr.args[-1].dtype if expr.args else expr.dtype
            reason = unsupported_op(expr.op, operand)
            if reason:
                return No(reason)
        return Yes()

    def configs(self, kernel: Kernel) -> Sequence[Config]:
        """Other lane axes and, where something is accumulated, other numbers of vectors side by side; for a
        product of matrices, other tiles and other ways to read its operands.
        """
        if has_product(kernel):
            return configs_of(product_plans(product_of(kernel), self.isa))
        if self.isa.lanes == 1:
            return ()
        facts = analyse(kernel)
        found = [Config()]
        if facts.raxes:
            found.extend(Config.of(unroll=count) for count in (1, 2, 4, 8))
        lanes = lane_choices(kernel, facts)
        if len(lanes) > 1:
            found.extend(Config.of(lane=place) for place in lanes)
        return found if len(found) > 1 else ()

    def neighbours(self, kernel: Kernel, config: Config) -> Sequence[Config]:
        """Other tiles and depths of a product of matrices."""
        if not has_product(kernel):
            return ()
        return configs_of(nearby_plans(product_of(kernel), self.isa, plan_of(config)))

    def estimate(self, kernel: Kernel, config: Config) -> float:
        """Seconds, roughly: by tiles and layouts for a product, by the reach of the lanes for other loops."""
        if has_product(kernel):
            return plan_seconds(product_of(kernel), self.isa, plan_of(config))
        return loop_seconds(*planned(kernel, self.isa.lanes, config.get("lane"), config.get("unroll")))

    def panel_width(self, product: Reduction) -> int:
        """Up to four vectors of columns."""
        return panel_width(product, self.isa)

    def emit(self, kernel: Kernel, config: Config | None = None) -> Source:
        """The kernel's text and, as meta, its signature and the headers it needs."""
        found = self._text(kernel, config)
        meta = f"{found.signature};{','.join(found.features)};{self.isa.name}"
        return Source(kernel.name, found.text, KERNEL_LANGUAGE, meta=meta)

    def _text(self, kernel: Kernel, config: Config | None) -> KernelText:
        if has_product(kernel):
            product = product_of(kernel)
            plan = plan_of(config) if config else product_plans(product, self.isa)[0]
            return product_text(product, plan, self.isa)
        chosen = config or Config()
        return kernel_text(kernel, self.isa.lanes, chosen.get("lane"), chosen.get("unroll"))

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        """One unit of all kernels, one library; or host programs, or models, each a library of its own."""
        if sources[0].language != KERNEL_LANGUAGE:
            for source in sources:
                is_model = source.language == LIBRARY_LANGUAGE
                path = folder / f"{source.key}.cpp"
                path.write_text(source.text if is_model else host_unit(source), encoding="utf-8")
                build_library(self.toolchain, self.isa, path, path.with_suffix(".so"), name=source.name)
                for name, text in public_headers().items() if is_model else ():
                    (folder / name).write_text(text, encoding="utf-8")
            return
        signatures = {source.symbol: source.meta.split(";")[0] for source in sources}
        unit = self._head(sources) + _texts(sources) + bindings_text(signatures, release_gil=False)
        path = folder / "kernels.cpp"
        path.write_text(unit, encoding="utf-8")
        names = ", ".join(dict.fromkeys(s.name for s in sources))
        build_library(self.toolchain, self.isa, path, folder / LIBRARY, name=names)
        rows = "".join(f"{source.key} {source.symbol}\n" for source in sources)
        (folder / KEYS).write_text(rows, encoding="utf-8")

    def _head(self, sources: Sequence[Source]) -> str:
        """The part of the vector layer that kernels need."""
        features = {name for source in sources for name in source.meta.split(";")[1].split(",")}
        return prelude_for(
            sorted(features),
            lanes=self.isa.lanes,
            register_bytes=self.isa.register_bytes,
            gathers=gathers_pay(),
            dots=dot_instructions(),
        )

    def load(self, folder: Path) -> Mapping[str, Launchable]:
        """The kernels of a built folder by key, or its host programs."""
        return load_folder(folder) if (folder / KEYS).exists() else load_hosts(folder)

    def host(self, source: Source) -> HostCall | None:
        """Kernels are C functions: pointers and sizes in the order of the kernel's arguments."""
        signature, _, _ = source.meta.split(";")
        return HostCall(LIBRARY, source.symbol, tuple(CALL_KINDS[letter] for letter in signature))

    def host_program(self, program: HostProgram) -> Source | No:
        """A function over the plain C interface of `host/host.h`."""
        return host_source(program)

    def host_library(self, library: HostLibrary) -> Source | No:
        """A shared library over ``model/polyfuse_model.h``, which needs the C library and OpenMP alone."""
        if any(source.language != KERNEL_LANGUAGE for source in library.kernels):
            return No("another backend made some of its kernels")
        head, kernels = self._head(library.kernels), _texts(library.kernels)
        text = library_text(library, head, kernels, self.isa, dot_instructions())
        return Source(library.name, text, LIBRARY_LANGUAGE, meta=digest(*public_headers().values()))

    def describe(self) -> Mapping[str, str]:
        """Compiler, instruction set, and the headers that every kernel is built with."""
        return {
            "compiler": self.toolchain.fingerprint,
            "isa": self.isa.name if gathers_pay() else f"{self.isa.name} without gathers",
            "dots": " ".join(dot_instructions()),
            "headers": headers_digest(),
            "cpp": _VERSION,
        }


def _texts(sources: Sequence[Source]) -> str:
    """Kernels, each once."""
    return "\n".join({source.symbol: source.rendered() for source in sources}.values())
