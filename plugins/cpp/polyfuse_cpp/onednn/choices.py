"""What is offered beside the calls of torch, and where it is preferred."""

from __future__ import annotations

from typing import Final

from polyfuse.plugin import Choice
from polyfuse_cpp.onednn import preferences
from polyfuse_cpp.onednn.convolution import (
    convolution,
    convolution_alone,
    convolution_and_more,
    convolution_fused,
)
from polyfuse_cpp.onednn.library import offered
from polyfuse_cpp.onednn.linear import linear, linear_alone, linear_and_more, linear_fused
from polyfuse_cpp.onednn.packed_weights import packing, with_packed

_LINEAR: Final = ("aten.addmm.out", "aten.mm.out")
_CONVOLUTION: Final = ("aten.convolution.default",)


def library_choices() -> tuple[Choice, ...]:
    """What is offered on this machine: nothing where torch is built without oneDNN, or it is switched off."""
    if not offered():
        return ()
    packed = (
        Choice(
            "onednn_fused_packed",
            _LINEAR,
            with_packed(linear_fused),
            instead=packing(linear_and_more),
            preferred=preferences.narrow_packed_pays,
        ),
        Choice(
            "onednn_packed",
            _LINEAR,
            with_packed(linear_alone),
            instead=packing(linear),
            preferred=lambda site: preferences.beats_mkl(site) or preferences.narrow_packed_pays(site),
        ),
        Choice(
            "onednn_fused_conv_packed",
            _CONVOLUTION,
            with_packed(convolution_fused, unasked=True),
            instead=packing(convolution_and_more),
            preferred=preferences.packing_pays,
        ),
        Choice(
            "onednn_conv_packed",
            _CONVOLUTION,
            with_packed(convolution_alone, unasked=True),
            instead=packing(convolution),
            preferred=preferences.packing_pays,
        ),
    )
    return (
        *packed,
        Choice("onednn", _LINEAR, applies=linear_alone, instead=linear, preferred=preferences.beats_mkl),
        Choice("onednn_fused", _LINEAR, applies=linear_fused, instead=linear_and_more),
        Choice(
            "onednn_fused_conv",
            _CONVOLUTION,
            applies=convolution_fused,
            instead=convolution_and_more,
            preferred=preferences.fusing_pays,
        ),
    )
