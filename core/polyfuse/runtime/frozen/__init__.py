"""Frozen constants: values that follow from the parameters of a model alone, such as weights laid out for a
library. They are computed when parameters are met for the first time, and again when these have changed.

`entries` sees whether parameters changed, and `looks` says with one call that none did. `values` has programs
that take such values as inputs and where the values lie, `calls` operators that a program calls once for each
parameter and how much memory packed copies may take, `checksums` what tells whether one that is not frozen
was written to. What is frozen is decided elsewhere, by `frontend.freezing` and by autotuning.
"""

from polyfuse.runtime.frozen.calls import (
    CHECKED,
    FROZEN,
    ONCE,
    TOGETHER,
    CheckedCall,
    CheckedCalls,
    FrozenCall,
    FrozenCalls,
    once,
    room_of,
)
from polyfuse.runtime.frozen.checksums import Checksum, FindChecksum, Region, has_checksum, offer_checksum
from polyfuse.runtime.frozen.looks import Look, MakeLook, ParameterState, offer_look
from polyfuse.runtime.frozen.values import (
    FrozenOperand,
    FrozenProgram,
    FrozenStep,
    FrozenValues,
    PackedInputs,
    laid_out,
)

__all__ = [
    "CHECKED",
    "FROZEN",
    "ONCE",
    "TOGETHER",
    "CheckedCall",
    "CheckedCalls",
    "Checksum",
    "FindChecksum",
    "FrozenCall",
    "FrozenCalls",
    "FrozenOperand",
    "FrozenProgram",
    "FrozenStep",
    "FrozenValues",
    "Look",
    "MakeLook",
    "PackedInputs",
    "Region",
    "ParameterState",
    "has_checksum",
    "laid_out",
    "offer_checksum",
    "offer_look",
    "once",
    "room_of",
]
