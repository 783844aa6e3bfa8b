"""Seals of what machines exchange: HMAC-SHA256 with a secret that they share.

Compiled graphs are pickles of torch, and reading a pickle can execute anything. So those that come from a
remote store or a file are read only where a seal tells that a machine with the secret made them; without a
secret, compiled graphs are not exchanged at all.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from polyfuse.base.errors import InvalidOptionError

_SHORTEST: Final = 16
_LONGEST: Final = 1 << 16


def read_secret(path: str) -> bytes | None:
    """The secret in the file that the option `remote_key` names; None where it names none.

    Raises:
        InvalidOptionError: there is no such file, or too little in it.
    """
    if not path:
        return None
    try:
        with open(Path(path).expanduser(), "rb") as file:
            found = file.read(_LONGEST).strip()
    except (OSError, RuntimeError) as error:
        raise InvalidOptionError(
            f"the option 'remote_key' names {path}, which cannot be read ({error})",
            "write a secret there: head -c 32 /dev/urandom | base64",
        ) from error
    if len(found) < _SHORTEST:
        raise InvalidOptionError(
            f"the option 'remote_key' names {path}, which holds {len(found)} bytes",
            f"write at least {_SHORTEST} there: head -c 32 /dev/urandom | base64",
        )
    return found


def seal_of(secret: bytes, parts: Iterable[tuple[str, bytes]]) -> str:
    """The seal of named contents, in any order."""
    made = hmac.new(secret, b"polyfuse cache\0", hashlib.sha256)
    for name, content in sorted(parts):
        made.update(f"{name}\0{len(content)}\0".encode())
        made.update(hashlib.sha256(content).digest())
    return made.hexdigest()


def seals_equal(one: str, other: str) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())
