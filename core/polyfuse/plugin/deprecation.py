"""What leaves the plugin interface: it works for two minor versions more, and warns once in that time.

Names of `polyfuse.plugin`, methods of `Backend` and hooks leave by a row of `DEPRECATED`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polyfuse.base.log import warn_once

_MINORS: Final = 2
"""Minor versions for which what is deprecated goes on working, at least."""


@dataclass(frozen=True)
class Deprecation:
    """Why something should not be used any more.

    Attributes:
        instead: what replaces it, as text: "the hook `polyfuse_timer`".
        since: the version of the interface that deprecated it, or, with `removed`, that has it no more.
        import_path: of what replaces a name of `polyfuse.plugin`, as `"package.module:name"`; it takes the
            same arguments. Empty for others.
        removed: whether it does not work any more.
    """

    instead: str
    since: tuple[int, int]
    import_path: str = ""
    removed: bool = False

    def says(self, name: str) -> str:
        """The warning of something by that name, without its user."""
        major, minor = self.since
        if self.removed:
            return (
                f"{name} left the plugin interface with {major}.{minor} and is not used; use {self.instead}"
            )
        until = f"{major}.{minor + _MINORS}"
        return (
            f"{name} is deprecated since plugin interface {major}.{minor} and works until {until} at least; "
            f"use {self.instead}"
        )


DEPRECATED: Final[Mapping[str, Deprecation]] = {
    "Backend.benchmark": Deprecation("the hook `polyfuse_timer`", (2, 0), removed=True),
    "Backend.can_fuse": Deprecation("the hook `polyfuse_fusion_rules`", (2, 0), removed=True),
}
"""Names of `polyfuse.plugin`, methods as `Backend.name`, and hooks."""


def warn_of_deprecated(name: str, user: str) -> None:
    """Warn once that `user`, such as "plugin 'x'", uses something by that name, if it is deprecated."""
    found = DEPRECATED.get(name)
    if found is not None:
        warn_once("plugin", f"{user}: {found.says(f'`{name}`')}", key=f"deprecated {name} {user}")


def deprecated_hooks() -> tuple[str, ...]:
    """The names of hooks that are deprecated."""
    return tuple(name for name in DEPRECATED if name.startswith("polyfuse_"))


def warn_of_methods(kind: type, base: type, user: str) -> None:
    """Warn once of each deprecated method of `base` that a class derived from it defines."""
    for method in dir(kind):
        if getattr(kind, method, None) is not getattr(base, method, None):
            warn_of_deprecated(f"{base.__name__}.{method}", user)


def replacements(name: str) -> Mapping[str, str]:
    """Return where what replaces a deprecated name of `polyfuse.plugin` lies, with a warning that names the
    module that asks; empty for other names.
    """
    found = DEPRECATED.get(name)
    if found is None or not found.import_path:
        return {}
    frame = sys._getframe(2)  # of whoever called the `__getattr__` that calls this
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("importlib"):
        frame = frame.f_back
    warn_of_deprecated(name, f"module {frame.f_globals.get('__name__')}")
    return {name: found.import_path}
