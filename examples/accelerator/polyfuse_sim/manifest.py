"""What the plugin is, and its hooks. Polyfuse reads this in every session: it imports the interface alone."""

from polyfuse.plugin import Manifest, Offer, Requires, hookimpl


@hookimpl
def polyfuse_manifest():
    return Manifest(
        name="sim",
        version="0.1.0",
        distribution="polyfuse-sim",
        api=(2, 0),
        device_types=("sim",),
        load="polyfuse_sim.backend:SimBackend",
        loader="polyfuse_sim.backend:load_packaged",
        priority={"sim": 100},
        offers=(Offer.KERNELS,),
        requires=Requires(programs=("g++",)),
        summary="Kernels for a simulated accelerator: an example",
    )


@hookimpl
def polyfuse_device(device_type):
    if device_type != "sim":
        return None
    from polyfuse_sim.device import SimDevice

    return SimDevice("sim")
