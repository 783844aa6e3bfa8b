"""A remote store in anything that fsspec knows: `s3://bucket/folder`, `gs://bucket/folder`, `memory://folder`.

fsspec comes with torch; what it needs for a scheme, such as s3fs, does not.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from polyfuse.base.errors import InvalidOptionError


def is_filesystem(address: str) -> bool:
    """Whether an address is a scheme and a path, such as `s3://bucket`."""
    scheme, colon, _ = address.partition("://")
    return bool(colon) and scheme.replace("+", "").replace("-", "").isalnum()


class FilesystemStore:
    """A folder of a file system that fsspec opens.

    Args:
        address: of the folder, with its scheme.
        most: bytes that a file may have.

    Raises:
        InvalidOptionError: the scheme is unknown, or a package for it is missing.
    """

    def __init__(self, address: str, most: int) -> None:
        self._files: Any
        try:
            core: Any = import_module("fsspec.core")  # it has no types
            self._files, self._root = core.url_to_fs(address)
        except (ImportError, ValueError) as error:
            raise InvalidOptionError(
                f"the option 'remote_cache' names {address}, which cannot be opened ({error})",
                "install the package that fsspec needs for it, such as s3fs for s3:// and gcsfs for gs://",
            ) from error
        self._most = most

    def get(self, name: str) -> bytes | None:
        """The content of a file.

        Raises:
            ValueError: it is larger than what may be read.
        """
        try:
            with self._files.open(f"{self._root}/{name}", "rb") as file:
                content: bytes = file.read(self._most + 1)
        except FileNotFoundError:
            return None
        if len(content) > self._most:
            raise ValueError(f"it has more than {self._most} bytes")
        return content

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        path = f"{self._root}/{name}"
        try:
            self._files.pipe_file(path, content)
        except FileNotFoundError:  # of a system with folders, in which there is none yet
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, content)
