"""What a plugin says about itself before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Offer(StrEnum):
    """A kind of extension that a plugin provides."""

    KERNELS = "kernels"
    CHOICES = "choices"
    FUSION_RULES = "fusion rules"
    TIMER = "timer"
    LOWERINGS = "lowerings"
    REWRITES = "rewrites"
    NATIVE_HOST = "native host"


@dataclass(frozen=True)
class Requires:
    """What a plugin needs in order to work here.

    `packages` are requirement texts (`"numpy>=2"`), checked against what is installed. `programs` are names
    looked up on the search path; alternatives are written `"first|second"`, and `"$NAME|first"` also accepts
    a program named by an environment variable. `hardware` is prose for people: the backend itself refuses
    with `BackendUnavailableError` when it is loaded without it.
    """

    packages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    hardware: tuple[str, ...] = ()


@dataclass(frozen=True)
class Manifest:
    """The description of a plugin that is read before it is loaded.

    `load` is a dotted path `"package.module:attribute"`. The attribute is called with the session's
    `Settings` and returns a `Backend`; a class derived from `Backend` serves as it is. It is empty, and so is
    `device_types`, for a plugin that brings no code generator, only lowerings or rewrites.

    `loader` is a dotted path too, to a function `loader(folder, facts)` that does what `Backend.load` does
    without the code generator, where ahead-of-time packages are loaded. `facts` is what `describe` and
    `machine` said when the package was made: where kernels cannot run on this machine, it raises
    `KernelLoadError` with the reason. Empty: packages need the whole backend.

    `host_loader` is a dotted path to a function `host_loader(folder)` that returns the kernels of a folder
    that `Backend.build` filled, by `Source.key`, as models that run without Python launch them
    (`polyfuse.plugin.host_library.DeviceKernel`). Empty: they cannot. Kernels that are C functions need
    none.

    `priority` orders backends for a device type, higher first. A device type that is in `device_types` but
    not in `priority` is served only when the user names this backend. In both, `"*"` stands for every device
    type that is not listed.

    `last_resort` says that the backend takes any kernel, but slowly: what no other backend generates goes to
    it with a warning, or with an error under the option `strict`, unless the user names it.

    `specialist` says that the plugin computes some operators better than backends that compute everything:
    its lowerings are tried before those of the backend in charge, wherever the plugin serves the device type
    and the user does not name other backends.

    `options` documents the plugin's own options, name to text; users write them `"plugin.option"`.
    """

    name: str
    version: str
    distribution: str
    api: tuple[int, int]
    device_types: tuple[str, ...] = ()
    load: str = ""
    loader: str = ""
    host_loader: str = ""
    priority: Mapping[str, int] = field(default_factory=dict)
    offers: tuple[Offer, ...] = (Offer.KERNELS,)
    requires: Requires = Requires()
    options: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    last_resort: bool = False
    specialist: bool = False

    def serves(self, device_type: str) -> bool:
        """Return whether the backend can be used for a device type."""
        return device_type in self.device_types or "*" in self.device_types

    def rank(self, device_type: str) -> int | None:
        """Return the priority for a device type, or None where users must name the backend."""
        return self.priority.get(device_type, self.priority.get("*"))


@dataclass(frozen=True)
class Finding:
    """One line of a toolchain report: a subject, whether it is well, details, and what to do if it is not."""

    subject: str
    ok: bool
    detail: str
    fix: str = ""
