"""Halide's automatic schedulers: which there are, and of which kernels they can be asked.

What they decide is looked at when a kernel is built (`autoschedule.py`). Refused here is what shows before.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from polyfuse.base.errors import BackendUnavailableError, UnsupportedError
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.statements import Load, Store
from polyfuse.kit import without_aliases
from polyfuse.plugin import Config
from polyfuse.symbolic import axis_size
from polyfuse_halide.codegen.address import injective_affine

if TYPE_CHECKING:
    from polyfuse_halide.codegen.kernel import KernelText

SCHEDULERS = ("Mullapudi2016", "Adams2019", "Li2018", "Anderson2021")
"""Their names; a configuration says `auto=1` for the first."""
_FOR_DEVICES = ("Anderson2021",)


def scheduler_named(text: str) -> str:
    """The scheduler that the option names; empty: none.

    Raises:
        BackendUnavailableError: Halide has none of that name.
    """
    wanted = text.strip().lower()
    for name in SCHEDULERS:
        if name.lower() == wanted:
            return name
    if wanted:
        raise BackendUnavailableError(
            f"the option halide.autoscheduler says {text!r}, which Halide does not have",
            f"write one of {', '.join(SCHEDULERS)}",
        )
    return ""


def automatic_configs(kernel: Kernel, only: str = "") -> Sequence[Config]:
    """Configurations by the schedulers that can be asked of a kernel; `only`: by one of them."""
    names = [n for n in SCHEDULERS if (n in _FOR_DEVICES) == (kernel.device != "cpu") and only in ("", n)]
    if not names or automatic_fault(without_aliases(kernel)):
        return ()
    return [Config.of(auto=SCHEDULERS.index(name) + 1) for name in names]


def automatic_fault(kernel: Kernel) -> str:
    """Why automatic schedulers cannot be asked of a kernel, or an empty text."""
    sizes = [axis_size(a) for a in (*kernel.axes, *kernel.raxes)]
    if not all(isinstance(size, int) for size in (*sizes, *(a.numel for a in kernel.args))):
        return "automatic schedules are proven for one size, and this kernel's sizes change"
    if not kernel.axes or 0 in sizes:
        return "there is nothing to schedule in a kernel of one point, or of none"
    local = {b.name for b in kernel.row_buffers}
    stmts = [(section, s) for section in kernel.sections for s in section.body]
    loaded = {s.buffer for _, s in stmts if isinstance(s, Load)}
    stores = [(section, s) for section, s in stmts if isinstance(s, Store) and s.buffer not in local]
    for section, stmt in stores:
        space = (*kernel.axes, *(kernel.raxes if section.looped else ()))
        if stmt.indirect or stmt.mask or stmt.mode != "set" or injective_affine(stmt.index, space) is None:
            return "it stores at computed indices, or adds to what is there"
        if stmt.buffer in loaded:
            return "it reads what it overwrites"
    if any(isinstance(s, Load) and s.indirect for _, s in stmts):
        return "it reads at computed indices"
    if kernel.aliases and (kernel.raxes or len(stores) > 1):
        return "a result may lie over what the kernel still reads"
    return ""


def automatic_text(kernel: Kernel, scheduler: str, parallelism: int) -> KernelText:
    """The program of a kernel that a scheduler divides among so many parallelism.

    Raises:
        UnsupportedError: the scheduler cannot be asked about the kernel.
    """
    from polyfuse_halide.codegen.forward import forwarded, with_plain_names
    from polyfuse_halide.codegen.kernel import Emitter, check_sizes

    fault = automatic_fault(kernel)
    if fault:
        raise UnsupportedError(f"no automatic schedule: {fault}", "leave out the option halide.autoscheduler")
    check_sizes(kernel)
    once = bool(kernel.aliases)
    plain = with_plain_names(forwarded(kernel))
    call = f'p.scheduled_by("{scheduler}", {parallelism}, once={once})'
    found = Emitter(plain, call, extents=True).emit()
    facts = {**json.loads(found.meta), "automatic": scheduler}
    if kernel.device != "cpu":
        facts.update(device=kernel.device, loose=False)
    return replace(found, meta=json.dumps(facts, sort_keys=True), note=f"scheduled by {scheduler}")
