"""A remote store in Redis, or in whatever speaks its protocol, such as Valkey.

The protocol is that of https://redis.io/docs/latest/develop/reference/protocol-spec, version 2; the commands
are AUTH, SELECT, GET and SET.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit

from polyfuse.base.errors import InvalidOptionError

_PORT: Final = 6379
_PREFIX: Final = "polyfuse:"
# Idle connections that are reused by the next requests.
_IDLE: Final = 8
_CHUNK: Final = 1 << 16
_LONGEST_LINE: Final = 1 << 12


def is_redis(address: str) -> bool:
    """Whether an address is one of Redis: `redis://...`, or `rediss://...` for a connection over TLS."""
    return address.startswith(("redis://", "rediss://"))


@dataclass(frozen=True)
class RedisAddress:
    """`redis://user:password@host:6379/0?ttl=604800`, taken apart.

    Attributes:
        database: its number.
        seconds: after which the server forgets what it was given; 0: never.
    """

    host: str
    port: int = _PORT
    user: str = ""
    password: str = ""
    database: int = 0
    seconds: int = 0
    encrypted: bool = False

    @staticmethod
    def parse(text: str) -> RedisAddress:
        """Read an address.

        Raises:
            InvalidOptionError: it is none.
        """
        try:
            parts = urlsplit(text)
            asked = parse_qs(parts.query, strict_parsing=bool(parts.query))
            seconds = int(asked.pop("ttl", ["0"])[0])
            if asked or seconds < 0 or not parts.hostname:
                raise ValueError("only a host and `ttl` are understood")
            return RedisAddress(
                parts.hostname,
                parts.port or _PORT,
                unquote(parts.username or ""),
                unquote(parts.password or ""),
                int(parts.path.strip("/") or 0),
                seconds,
                parts.scheme == "rediss",
            )
        except ValueError as error:
            raise InvalidOptionError(
                f"the option 'remote_cache' has an address of Redis that cannot be read ({error})",
                "write redis://host:6379/0, with user:password@ before the host and ?ttl=seconds behind it"
                " where needed",
            ) from None


class RedisStore:
    """A server that answers GET and SET. Names are stored under `polyfuse:`.

    Args:
        address: as `RedisAddress.parse` reads it.
        patience: seconds in which a request must be over.
        largest: bytes of the largest answer that is read.
    """

    def __init__(self, address: str, patience: float, largest: int) -> None:
        self._address = RedisAddress.parse(address)
        self._patience = patience
        self._largest = largest
        self._idle: list[_Connection] = []
        self._lock = threading.Lock()

    def get(self, name: str) -> bytes | None:
        """What the server has."""
        return self._ask(b"GET", f"{_PREFIX}{name}".encode())

    def put(self, name: str, content: bytes) -> None:
        """Give it to the server."""
        seconds = self._address.seconds
        expiry = (b"EX", str(seconds).encode()) if seconds else ()
        self._ask(b"SET", f"{_PREFIX}{name}".encode(), content, *expiry)

    def _ask(self, *words: bytes) -> bytes | None:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            try:
                return self._answered(connection, words)
            except (OSError, EOFError):  # the server closed it meanwhile
                connection.close()
        return self._answered(_Connection(self._address, self._patience, self._largest), words)

    def _answered(self, connection: _Connection, words: tuple[bytes, ...]) -> bytes | None:
        try:
            answer = connection.ask(*words)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(connection)
                return answer
        connection.close()
        return answer


class _Connection:
    """A connection, signed in. Any error leaves it unusable."""

    def __init__(self, address: RedisAddress, patience: float, largest: int) -> None:
        self._patience = patience
        self._largest = largest
        self._buffer = bytearray()
        self._socket = socket.create_connection((address.host, address.port), patience)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.encrypted:
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=address.host)
            if address.password:
                words = [word.encode() for word in (address.user, address.password) if word]
                self.ask(b"AUTH", *words)
            if address.database:
                self.ask(b"SELECT", str(address.database).encode())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, *words: bytes) -> bytes | None:
        """Send a command and return the answer: bytes, or None where there is nothing."""
        until = time.monotonic() + self._patience
        head = b"".join((b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)))
        self._socket.settimeout(self._patience)
        self._socket.sendall(head)
        line = self._line(until)
        kind, rest = line[:1], line[1:]
        if kind == b"$":
            length = int(rest)
            if length > self._largest:
                raise ValueError(f"it offers {length} bytes, of at most {self._largest}")
            return None if length < 0 else self._bytes(length + 2, until)[:-2]
        if kind in (b"+", b":"):
            return rest
        said = rest.decode("utf-8", "replace")
        raise ConnectionError(f"Redis answers {said!r}" if kind == b"-" else "it does not speak Redis")

    def _line(self, until: float) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > _LONGEST_LINE:
                raise ValueError("it does not speak Redis")
            self._receive(until)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _bytes(self, count: int, until: float) -> bytes:
        while len(self._buffer) < count:
            self._receive(until)
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _receive(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"it did not answer within {self._patience:.0f} seconds")
        self._socket.settimeout(left)
        chunk = self._socket.recv(_CHUNK)
        if not chunk:
            raise EOFError("it closed the connection")
        self._buffer += chunk
