"""Signatures of packages: Ed25519 over the description, which holds the digests of everything else.

Needs the package `cryptography` (the extra `signing`). A package that is not signed by a key which the caller
trusts is refused before anything of it is executed, imported or believed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

from polyfuse.aot.container import Archive
from polyfuse.base.digest import stable_json
from polyfuse.base.errors import PackageError

Key = Any
"""A key of `cryptography`, its 32 raw bytes, or the path of a file in PEM format."""

_ALGORITHM: Final = "ed25519"
# What is signed is nothing but a package, whatever else the key signs.
_CONTEXT: Final = b"polyfuse package\0"
_RAW: Final = 32


def signer(key: Key) -> Callable[[bytes], bytes]:
    """What makes the signature of a description with a private key.

    Raises:
        PackageError: it is no such key, or `cryptography` is not installed.
    """
    ed25519, serialization = _library()
    private = _loaded(
        key,
        ed25519.Ed25519PrivateKey,
        ed25519.Ed25519PrivateKey.from_private_bytes,
        lambda content: serialization.load_pem_private_key(content, None),
        "sign",
        "private",
    )
    public = private.public_key().public_bytes_raw()

    def sign(content: bytes) -> bytes:
        row = {"algorithm": _ALGORITHM, "key": public.hex()}
        made = base64.b64encode(private.sign(_CONTEXT + content)).decode()
        return stable_json({**row, "signature": made}).encode()

    return sign


def check_signature(archive: Archive, trust: Sequence[Key]) -> None:
    """Compare a package's signature with public keys.

    Raises:
        PackageError: none of them made it.
    """
    ed25519, serialization = _library()
    from cryptography.exceptions import InvalidSignature

    keys = [
        _loaded(
            key,
            ed25519.Ed25519PublicKey,
            ed25519.Ed25519PublicKey.from_public_bytes,
            serialization.load_pem_public_key,
            "trust",
            "public",
        )
        for key in trust
    ]
    if archive.signature is None:
        raise PackageError(
            f"the package {archive.path} is not signed", "make it with sign=, or load it without trust="
        )
    try:
        row = json.loads(archive.signature)
        signature = base64.b64decode(row["signature"], validate=True)
        right = row["algorithm"] == _ALGORITHM
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageError(
            f"the signature of the package {archive.path} is damaged", "copy the package again"
        ) from error
    for key in keys if right else ():
        try:
            key.verify(signature, _CONTEXT + archive.content)
        except InvalidSignature:
            continue
        return
    raise PackageError(
        f"the package {archive.path} is not signed by any of the {len(keys)} keys that are trusted",
        "get it from who holds one of them, or add the key of its maker to trust=",
    )


def _loaded(
    key: Key,
    kind: type,
    of_raw: Callable[[bytes], Any],
    of_pem: Callable[[bytes], Any],
    option: str,
    which: str,
) -> Any:
    try:
        if isinstance(key, (str, PathLike)):
            key = of_pem(Path(key).read_bytes())
        elif isinstance(key, bytes) and len(key) == _RAW:
            key = of_raw(key)
        elif isinstance(key, bytes):
            key = of_pem(key)
    except (OSError, ValueError, TypeError) as error:
        raise PackageError(
            f"{option}= got no {which} key ({error})",
            "openssl genpkey -algorithm ed25519 makes a private one",
        ) from error
    except Exception as error:  # what the library raises for algorithms that it lacks
        raise PackageError(f"{option}= got no {which} key ({error})", "give an Ed25519 key") from error
    if not isinstance(key, kind):
        raise PackageError(
            f"{option}= got a {type(key).__name__} where a {which} key is needed", "give an Ed25519 key"
        )
    return key


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise PackageError(
            f"signatures need the package cryptography ({error})", "pip install 'polyfuse[signing]'"
        ) from error
    return ed25519, serialization
