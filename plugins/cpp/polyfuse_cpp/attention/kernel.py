"""The kernel of attention: its text, its build, and how a program calls it.

Its frame is written by hand (``prelude/attention.h``). Sizes and strides are its arguments, so that a process
builds one for each width of a head and each way in which scores become weights.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.folders import writable_root
from polyfuse.base.log import warn_once
from polyfuse.base.process import ForkedLock
from polyfuse.base.settings import Settings
from polyfuse.ir.types import DType
from polyfuse.plugin import Expected, Launchable, Source
from polyfuse_cpp.attention.built import BuiltKernel
from polyfuse_cpp.attention.expected import MORE, STRIDED, Form, expected_attention
from polyfuse_cpp.backend import KERNEL_LANGUAGE, CppBackend

SIZES: Final = ("images", "heads", "key_heads", "queries", "keys")

_LOCK = ForkedLock()
_KERNELS: dict[tuple[object, ...], AttentionKernel] = {}


def attention_source(width: int, form: Form, isa: str, dtype: DType = DType.bf16) -> Source:
    """The kernel for heads of `width` numbers of a type, bf16 or f32."""
    pointers = ", ".join(f"{'f32' if name == 'logs' else dtype}* {name}" for name in STRIDED)
    sizes = [*SIZES, *(f"{name}_{k}" for name in STRIDED for k in range(3)), *MORE]
    lines = [
        "namespace pf {",
        f'extern "C" __attribute__((visibility("default"))) void {Source.SYMBOL}({pointers}, '
        + ", ".join(f"i64 {name}" for name in sizes)
        + ") {",
        f"  attention_call<{dtype}> c;",
        *(f"  c.{name} = {name};" for name in ("query", "key", "value", "mask", "result")),
        "  c.logs = has_logs ? logs : nullptr;",
        "  c.greatest = nullptr;",
        *(f"  c.{name} = {name};" for name in SIZES),
        *(f"  c.{name}_step[{k}] = {name}_{k};" for name in STRIDED for k in range(3)),
        "  c.scale = bits_as<f32>(i32(scale_bits));",
        "  c.causal = is_causal != 0;",
        f"  attention<{width}>(c, attention_rule<{int(form)}>{{}});",
        "}",
        "}  // namespace pf",
        f"using pf::{Source.SYMBOL};",
        "",
    ]
    signature = "p" * len(STRIDED) + "i" * len(sizes)
    return Source("attention", "\n".join(lines), KERNEL_LANGUAGE, meta=f"{signature};attention;{isa}")


class AttentionKernel(BuiltKernel):
    """A call of the kernel, whose build begins when this is made and is waited for by the first call.

    Called with the tensors of `STRIDED` in their order, then sizes. A mask that there is not, and logarithms
    that nobody reads, are other tensors, of which nothing is touched. Calls are the library's where the
    kernel cannot be built, and for fewer than `FEWEST_QUERIES`.
    """

    def __init__(self, width: int, form: Form, settings: Settings, dtype: DType = DType.bf16) -> None:
        kind = "" if dtype is DType.bf16 else f"_{dtype}"
        self._parts = width, form, settings, dtype
        self._launch: Launchable | None = None
        super().__init__(f"attention_{width}_{form.name.lower()}{kind}", settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return attention_kernel, self._parts

    def __call__(self, *operands: Any) -> None:
        """Compute `result`, and `logs` where they are read."""
        if self._launch is None:
            self._launch = self._found()
        return self._launch(*operands)

    def _found(self) -> Launchable:
        try:
            return self.launchable()
        except (OSError, PolyfuseError) as error:
            cause = error.cause if isinstance(error, PolyfuseError) else str(error)
            warn_once(
                "cpp",
                f"attention is the library's, for its kernel cannot be had ({cause}); install a compiler that"
                " knows bf16 and AMX, such as g++ 12 or later, or name it in CXX",
            )
            return self.by_library

    def expected(self, *operands: Any) -> Expected | None:
        """What a call has to give; None where it is the library's."""
        self._launch = self._launch or self._found()
        return None if self._launch == self.by_library else expected_attention(self._parts[1], operands)

    def by_library(self, *operands: Any) -> None:
        """Let the library compute `result`, and `logs` where they are read."""
        form = self._parts[1]
        query, key, value, mask, result, logs = operands[: len(STRIDED)]
        scale_bits, is_causal, has_logs = operands[-len(MORE) :]
        scale = torch.tensor(scale_bits, dtype=torch.int32).view(torch.float32).item()
        found, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *(query, key, value, 0.0, bool(is_causal)),
            attn_mask=mask if form >= Form.ADDED else None,
            scale=scale,
        )
        result.copy_(found)
        if has_logs:
            logs.copy_(sums)

    def source(self, backend: CppBackend) -> Source:
        """Its text for a backend's instruction set."""
        width, form, _, dtype = self._parts
        return attention_source(width, form, backend.isa.name, dtype)


def attention_kernel(
    width: int, form: Form, settings: Settings, dtype: DType = DType.bf16
) -> AttentionKernel:
    """The kernel for heads of `width` numbers, one for all programs that were made with the same compiler."""
    options = (settings.plugin_option("cpp", name, "") for name in ("isa", "compiler", "flags"))
    key = width, form, dtype, writable_root(settings), *map(str, options)
    with _LOCK:
        if key not in _KERNELS:
            _KERNELS[key] = AttentionKernel(width, form, settings, dtype)
        return _KERNELS[key]
