"""Conversions of modules, which invalidate what Dynamo assumed of their parameters.

Where Dynamo skips the guards of tensors in a module's dictionaries as long as these hold the same entries,
which is the default up to torch 2.11, it does not see that `module.half()` and `module.to(memory_format=...)`
give parameters other types and strides in place. A compiled graph would read the wrong elements.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any

_NONE = "converted by polyfuse"


@cache
def watch_conversions() -> None:
    """Have a converted module's dictionaries change, so that their guards are looked at by the next call."""
    from torch import nn
    from torch._dynamo import config

    if not getattr(config, "use_recursive_dict_tags_for_guards", False):
        return
    convert: Any = nn.Module._apply

    @wraps(convert)
    def converted(self: nn.Module, *args: Any, **named: Any) -> Any:
        found = convert(self, *args, **named)
        for entries in (self._parameters, self._buffers):
            if entries:
                entries[_NONE] = None  # nobody who reads meanwhile misses an entry
                del entries[_NONE]
        return found

    nn.Module._apply = converted
