"""Guards as bytes."""

from __future__ import annotations

import copyreg
import io
import pickle
from dataclasses import fields
from typing import Any

from torch._guards import Source


def pickled(value: object) -> bytes:
    """What `pickle.loads` makes an equal value of, in which sources of guards have the fields of these.

    torch has a source made again from its fields. Torch 2.11 and 2.12 count those among them that a source
    computes when it is made, so that one of an argument's default cannot be read: each BERT has some.

    Raises:
        Exception: whatever a part raises that cannot be pickled.
    """
    stream = io.BytesIO()
    _Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Reads the fields of sources, and sets them on a new one."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Source):
            return NotImplemented
        state = {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
        return copyreg.__newobj__, (type(value),), state  # type: ignore[attr-defined]
