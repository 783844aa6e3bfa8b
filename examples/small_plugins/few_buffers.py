"""A plugin of one fusion rule, for kernels of every backend on the CPU: none accesses more than eight
buffers.

`polyfuse.plugin.register(few_buffers)` uses it in this process; an entry point in the group
`polyfuse.backends` with its name and this module does so everywhere. The option `disable_fusion_rules` names
rules that are left out.
"""

from polyfuse.plugin import API_VERSION, Claim, FusionPair, FusionRule, Manifest, No, Offer, Yes, hookimpl

MOST = 8


def fits(pair: FusionPair) -> Claim:
    if pair.buffers > MOST:
        return No(f"together they access {pair.buffers} buffers, more than {MOST}")
    return Yes()


@hookimpl
def polyfuse_manifest():
    return Manifest("few-buffers", "1.0", "polyfuse-few-buffers", API_VERSION, offers=(Offer.FUSION_RULES,))


@hookimpl
def polyfuse_fusion_rules(device_type):
    return [FusionRule("few-buffers", allows=fits)] if device_type == "cpu" else []
