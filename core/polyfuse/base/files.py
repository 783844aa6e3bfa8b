"""Writing files so that no reader ever sees half of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from polyfuse.base.errors import CacheError
from polyfuse.base.log import warn_once


def atomic_write(path: Path, content: str | bytes, *, keep_equal: bool = False) -> Path:
    """Write `content` to `path` through a temporary file beside it and a rename; parents are created.

    Text is UTF-8 with newlines as given. With `keep_equal`, a file that already holds the same bytes is left
    alone, so that its time stamp stays. A failure leaves the old file and no temporary one.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    if keep_equal and _holds(path, data):
        return path
    # Mode "x" refuses an existing file and, unlike `tempfile`, leaves permissions to the user's umask.
    with replacing(path) as temporary, open(temporary, "xb") as stream:
        stream.write(data)
    return path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the name of a new file beside `path`, which replaces it when the block ends well; parents are
    created. A failure leaves the old file and no temporary one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold the lock of a file, among all processes; parents are created.

    Raises:
        CacheError: another process held it for so many seconds.
    """
    from filelock import FileLock, Timeout  # workers, which take no lock, do without

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(str(path), timeout=timeout):
            yield
    except Timeout as error:
        raise CacheError(
            f"another process held {path} for {timeout:.0f} seconds",
            "end it, or raise the option `build_timeout`",
        ) from error


def read_text(path: Path) -> str | None:
    """Return the text of a file, or None when it is missing or cannot be read as UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


@contextlib.contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """Yield a new folder in the folder of `beside`, on the same file system, and remove it afterwards
    unless it was renamed away."""
    beside.parent.mkdir(parents=True, exist_ok=True)
    folder = _temporary_name(beside)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish_folder(made: Path, final: Path) -> bool:
    """Rename a finished folder to its final name. Returns False when another process published it first:
    the content is addressed, so theirs serves as well."""
    try:
        os.rename(made, final)
    except OSError:
        if final.is_dir():
            return False
        raise
    return True


def built_folder(final: Path, build: Callable[[Path], None]) -> Path:
    """Return `final`. Unless it is there, `build` fills a folder that is given its name; other processes may
    do the same.
    """
    if not final.exists():
        with scratch_folder(final) as made:
            build(made)
            publish_folder(made, final)
    return final


def remove_folder(folder: Path) -> None:
    """Remove a folder so that nobody sees half of it under its name. One that is missing is left at that."""
    aside = _temporary_name(folder)
    try:
        os.rename(folder, aside)
    except OSError:  # it is gone, or cannot be renamed
        aside = folder
    shutil.rmtree(aside, ignore_errors=True)


def is_out_of_space(error: BaseException) -> bool:
    """Whether an error, or what led to it, is that a disk or a quota is full; compilers say it in words."""
    found: BaseException | None = error
    seen: set[int] = set()
    # an error that is raised again and again can be its own context
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        try:
            said = f"{found} {getattr(found, 'output', '')}"
        except (Exception, SystemExit):
            said = ""
        if "No space left on device" in said or "Disk quota exceeded" in said:
            return True
        found = found.__cause__ or found.__context__
    return False


def built_once(path: Path, component: str, build: Callable[[Path], None]) -> Path:
    """Return `path`, a file in a folder of its own. Unless it is there undamaged, `build` makes it, at the
    path that it is given. Damage is warned about in the name of `component`. Other processes may do the same.
    """
    if path.exists():
        if _holds_digest(path):
            return path
        warn_once(component, f"{path} is not what was built, so it is built again; check the disk")
        remove_folder(path.parent)
    with scratch_folder(path.parent) as folder:
        made = folder / path.name
        build(made)
        _write_digest(made)
        publish_folder(folder, path.parent)
    return path


def _write_digest(path: Path) -> None:
    """Write the SHA-256 of a finished file into one beside it, for `_holds_digest`."""
    atomic_write(_digest_path(path), hashlib.sha256(path.read_bytes()).hexdigest())


def _holds_digest(path: Path) -> bool:
    """Whether a file is what it was when `_write_digest` was called."""
    try:
        return read_text(_digest_path(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return False


def _digest_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except OSError:
        return False


def _temporary_name(final: Path) -> Path:
    return final.with_name(f".{final.name[:80]}.{os.getpid()}.{secrets.token_hex(6)}.tmp")
