"""What torch imports with AOTAutograd and no compilation needs."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_USERS = tuple(
    f"torch._functorch._activation_checkpointing.{name}"
    for name in ("graph_info_provider", "knapsack_evaluator")
)
_SPARED = "networkx"


def spare_networkx() -> None:
    """Have torch import `networkx` when it draws a graph or searches one for memory budgets, not before.

    Its 290 modules take 0.07 s, and AOTAutograd imports the modules of torch that name them. Those are
    imported here, with a module in place of `networkx` that imports the real one when something of it is
    asked for. To be called before AOTAutograd is imported; else, and if `networkx` is imported already,
    nothing happens.
    """
    if _SPARED in sys.modules or any(user in sys.modules for user in _USERS):
        return
    late = sys.modules[_SPARED] = _Late(_SPARED)
    try:
        for user in _USERS:
            import_module(user)
    except ImportError:  # a torch without it
        pass
    finally:
        late.imported()


class _Late(ModuleType):
    """Has the attributes of the module of its name, which the first one that is asked for imports."""

    def __getattr__(self, name: str) -> Any:
        # torch's modules name classes as types of results, which are not looked at
        if sys.modules.get(_SPARED) is self and sys._getframe(1).f_globals.get("__name__") in _USERS:
            return Any
        self.imported()
        return getattr(import_module(_SPARED), name)

    def imported(self) -> None:
        """From here on, an import finds the real module."""
        if sys.modules.get(_SPARED) is self:
            del sys.modules[_SPARED]
