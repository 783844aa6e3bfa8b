"""What objects for a GPU call: the functions of Halide's runtime, as far as kernels need them.

Tensors are on the device already and stay there, the stream is torch's, and nothing is copied. So all that is
left of Halide's runtime is to load code and to start kernels. The instructions that start one are written
here; what happens once, such as loading, is Python.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable
from functools import lru_cache

from polyfuse_cuda.driver import MAX_DYNAMIC_SHARED, USUAL_SHARED, Driver
from polyfuse_halide.launch.executable_memory import Code, address_of, executable, writable

_TABLE = 4096
"""Bytes of a table of kernels: pairs of the address of a name and a function, until a name is zero."""


class HalideRuntime:
    """Addresses of what kernels call, made of the driver's functions.

    Attributes:
        symbols: addresses by name.
        stream: address of the stream that the next launch goes to.
        status: address of the driver's answer to the last launch that failed, -1 where there was no kernel
            to launch; 0: none failed. Halide's own code does not pass it on.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        address, memory = writable(64)
        self._cells, self.stream = memory, address
        self.status = address + 8
        self._tables: dict[int, ctypes.c_void_p] = {}
        self._lock = threading.RLock()
        self._error = ""
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
        self._load = kind(self._load_module)
        self._find = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(self._find_kernel)
        self.symbols = self._functions()

    def _functions(self) -> dict[str, int]:
        code, starts = Code(), {}

        def begin(name: str) -> None:
            while len(code.bytes) % 16:
                code.raw("90")
            starts[name] = len(code.bytes)

        for name in ("halide_copy_to_device", "halide_cuda_finalize_kernels", "halide_cuda_device_interface"):
            begin(name)
            code.raw("31c0 c3")
        begin("halide_cuda_initialize_kernels")  # (context, state **, text, size)
        code.raw("48833e00").jump("0f85", "loaded")  # cmp qword [rsi], 0; jne
        code.tail_call(address_of(self._load))
        code.label("loaded").raw("31c0 c3")
        begin("halide_cuda_run")
        launch = address_of(self.driver.library.cuLaunchKernel)
        _run(code, self.stream, self.status, address_of(self._find), launch)
        address = executable(code.finished())
        return {name: address + start for name, start in starts.items()}

    # --- called by kernels ----------------------------------------------------------------------------------

    def _load_module(self, _context: int, state: int, text: int, size: int) -> int:
        """Load an object's code; 0 where it worked."""
        try:
            self.enter_context()
            # Halide's text ends with a zero
            status, module = self.driver.load_module(ctypes.c_void_p(text))
            if status:
                self._error = f"its code could not be loaded: {self.driver.words(status)}"
                return 1
            table, _ = writable(_TABLE)
            with self._lock:
                self._tables[table] = module
            ctypes.c_uint64.from_address(state).value = table
        except Exception as error:
            self._error = str(error)
            return 1
        return 0

    def _find_kernel(self, slot: int, name: bytes) -> int:
        """The function of a name that a table lacks; 0 where there is none."""
        driver = self.driver
        status, function = driver.function(self._tables[slot & ~(_TABLE - 1)], name)
        if status:
            self._error = f"it has no kernel {name.decode()}: {driver.words(status)}"
            return 0
        most = driver.shared_limit(driver.device())
        if most > USUAL_SHARED:
            driver.set_attribute(function, MAX_DYNAMIC_SHARED, most)
        return function.value or 0

    # --- called by launchers --------------------------------------------------------------------------------

    def enter_context(self) -> None:
        """Make the current device's own context current, where this thread has none."""
        import torch

        if not self.driver.has_context():
            self.driver.enter_context(torch.cuda.current_device())

    def streamed(
        self, call: Callable[..., None], current: Callable[[int], int], index: int
    ) -> Callable[..., None]:
        """A launcher that asks for the stream in Python, where torch has no C function for it."""

        def launch(*operands: object) -> None:
            # between this and the launch, another thread may want another stream
            with self._lock:
                struct.pack_into("<Q", self._cells, 0, current(index))
                call(*operands)

        return launch

    def reason(self) -> str:
        """Why the last launch failed."""
        (status,) = struct.unpack_from("<i", self._cells, 8)
        struct.pack_into("<i", self._cells, 8, 0)
        words, self._error = self._error or self.driver.words(status), ""
        return words


def _run(code: Code, stream: int, status: int, find: int, launch: int) -> None:
    """int halide_cuda_run(context rdi, state rsi, name rdx, blocks ecx r8d r9d, then on the stack: threads,
    shared bytes, types, arguments, which of them are buffers).

    A buffer's first field is its address on the device, so the arguments are what the driver wants.
    """
    code.raw("85c9").jump("0f8e", "nothing")  # test ecx, ecx; jle
    code.raw("4585c0").jump("0f8e", "nothing")
    code.raw("4585c9").jump("0f8e", "nothing")
    code.raw("4885f6").jump("0f84", "lost")  # test rsi, rsi; jz
    code.label("next").raw("4c8b16 4d85d2").jump("0f84", "miss")  # r10 = [rsi]; test r10, r10; jz
    code.raw("4939d2").jump("0f84", "hit")  # cmp r10, rdx; je
    code.raw("4883c610").jump("e9", "next")  # rsi += 16
    code.label("hit").raw("4c8b5608")  # r10 = [rsi + 8]
    code.label("go").raw("4883ec38")  # sub rsp, 56
    code.raw("8b442450 48890424")  # [rsp] = threads z
    code.raw("8b442458 4889442408")  # [rsp + 8] = shared
    code.i64("48b8", stream).raw("488b00 4889442410")  # [rsp + 16] = stream
    code.raw("488b442468 4889442418")  # [rsp + 24] = arguments
    code.raw("48c744242000000000")  # [rsp + 32] = 0
    code.raw("4c89d7 89ce 4489c2 4489c9")  # rdi = r10; esi = ecx; edx = r8d; ecx = r9d
    code.raw("448b442440 448b4c2448")  # r8d = threads x; r9d = threads y
    code.call(launch).raw("4883c438")
    code.raw("85c0").jump("0f84", "done")
    code.i64("48ba", status).raw("8902")  # [rdx] = eax
    code.label("done").raw("c3")
    code.label("nothing").raw("31c0 c3")
    code.label("miss").raw("4883ec38")
    code.raw("48893424 4889542408 894c2410 4489442414 44894c2418")  # rsi, rdx, ecx, r8d, r9d
    code.raw("4889f7 4889d6").call(find)
    code.raw("488b3424 488b542408 8b4c2410 448b442414 448b4c2418 4883c438")
    code.raw("4885c0").jump("0f84", "lost")
    code.raw("488916 48894608").jump("e9", "hit")  # [rsi] = rdx; [rsi + 8] = rax
    code.label("lost").raw("b8ffffffff")
    code.i64("48ba", status).raw("8902 c3")


@lru_cache(maxsize=1)
def runtime() -> HalideRuntime:
    """That of this process."""
    return HalideRuntime(Driver.open())
