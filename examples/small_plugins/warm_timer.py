"""A plugin of one timer, for kernels of every backend on the CPU: they are timed on operands that are still
in the cache, as in a model whose tensors are small. Without it, operands are cold.
"""

from polyfuse.plugin import API_VERSION, HostTimer, Manifest, Offer, hookimpl


@hookimpl
def polyfuse_manifest():
    return Manifest("warm-timer", "1.0", "polyfuse-warm-timer", API_VERSION, offers=(Offer.TIMER,))


@hookimpl
def polyfuse_timer(device_type, backend):
    return HostTimer() if device_type == "cpu" else None
