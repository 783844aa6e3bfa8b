"""Packing parameters: names of calls that are made once for each, and how many bytes the copies may take."""

from __future__ import annotations

from polyfuse.runtime.frozen.calls import CHECKED, FROZEN

_BYTES = 64 << 20
_PART = 10


def once(op: str, freezing: bool) -> str:
    """The name of a call of an operator that is made once for each parameter: with the option `freezing`
    again after writes that torch counts, else after any write.
    """
    return f"{FROZEN if freezing else CHECKED}{op}"


def room_of(parameters: int) -> int:
    """Bytes that packed copies may take without the option `freezing`, beside parameters of so many: 64 MB,
    or a tenth of them.
    """
    return max(_BYTES, parameters // _PART)
