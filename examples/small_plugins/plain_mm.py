"""A plugin of one choice, for whatever backend: a matmul that makes its result, in place of one that writes
it into planned memory.

With `gemm="fastest"` it is timed against what torch calls, and used where it is faster.
"""

from polyfuse.plugin import (
    API_VERSION,
    CallSite,
    Choice,
    ExternCall,
    Manifest,
    Offer,
    ReplacementCalls,
    Yes,
    hookimpl,
)


def plain(site: CallSite) -> ReplacementCalls:
    call = site.call
    return ReplacementCalls(
        (ExternCall(f"{call.name}_plain", "aten.mm.default", call.args, (), call.outputs),)
    )


@hookimpl
def polyfuse_manifest():
    return Manifest("plain-mm", "1.0", "polyfuse-plain-mm", API_VERSION, offers=(Offer.CHOICES,))


@hookimpl
def polyfuse_choices(device_type):
    return [Choice("plain", ("aten.mm.out",), applies=lambda site: Yes(), instead=plain)]
