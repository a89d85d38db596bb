"""Limits of what one sender may take of the server: bytes, time, connections.

uvicorn closes a connection that is idle after an answer, and leaves one open on which headers come
slowly or never. Here headers have a deadline, and where there are too many connections, the one
that has waited longest for its headers makes room, or else the first whose body is still to come:
those who only hold connections open stop nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

# Files of the process that are no connection: the database, logs, libraries.
_SPARE_FILES = 64
# The most bytes that headers may have.
_HEADER_BYTES = 64 << 10
# How many times too large a body may be that is read to its end, and thrown away: who is cut off
# while sending does not hear why.
_HEARD_OUT = 4
# How many times more bytes than its own a body may take on its way: a chunk of one byte is six.
_FRAMING = 8
# Bytes of a body that are read however large others are together.
_SMALL = 32 << 10
# Requests that may be sent before the first is answered; no tool does, and each takes memory.
_AHEAD = 16


@dataclass(frozen=True)
class Limits:
    """body_bytes: the largest body that is read. bodies_bytes: what all bodies that are being read
    may have together, beside small ones. header_seconds, body_seconds: how long each may take.
    connections: how many may be open. commit_seconds: how long a delivery waits for the disk.
    """

    body_bytes: int = 2 << 20
    bodies_bytes: int = 64 << 20
    header_seconds: float = 10.0
    body_seconds: float = 20.0
    commit_seconds: float = 20.0
    connections: int = 2_000

    def fit_connections_to_files(self) -> int:
        """Return how many connections there may be, once as many files as possible may be open."""
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = self.connections + _SPARE_FILES
        if soft < wanted:
            soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return min(self.connections, soft - _SPARE_FILES)


class ErrorResponse(Exception):
    """An answer to a delivery other than 200; `last` ends the connection."""

    def __init__(self, status: int, why: str, *, last: bool = True) -> None:
        super().__init__(why)
        self.status, self.why, self.last = status, why, last


class Bodies:
    """Reads bodies of requests, and knows how much of them is in memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._held = limits, 0

    async def read(self, stream: AsyncIterator[bytes], declared: str | None) -> bytes:
        """Return a whole body. Raises `ErrorResponse`."""
        # A length that is no number, or untrue, is the protocol's to refuse.
        most = self._limits.body_bytes
        too_large = ErrorResponse(413, f"the body has more than {most:,} bytes")
        length = declared if declared and declared.isdecimal() else "0"
        if len(length) > 18 or int(length) > _HEARD_OUT * most:
            raise too_large
        parts: list[bytes] = []
        size = held = 0
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                async for part in stream:
                    size += len(part)
                    if size > _HEARD_OUT * most:
                        raise too_large
                    if size > most:
                        parts.clear()
                        continue
                    held += len(part)
                    self._held += len(part)
                    if held > _SMALL and self._held > self._limits.bodies_bytes:
                        raise ErrorResponse(503, "too many bodies are being read")
                    parts.append(part)
        except TimeoutError:
            raise ErrorResponse(408, "the body came too slowly") from None
        finally:
            self._held -= held
        if size > most:
            raise too_large
        return b"".join(parts)


def make_protocol(limits: Limits, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 with a deadline for headers, and a bound on connections and raw bytes."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    base: Any = HttpToolsProtocol
    # Those on which no request is being answered, the longest waiting first.
    waiting: dict[Any, asyncio.TimerHandle] = {}
    opened: dict[Any, None] = {}

    class Limited(base):  # type: ignore[misc]
        """One connection; `received` counts bytes since the last answer."""

        received = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            opened[self] = None
            self.start_header_timer()
            if len(opened) > connections:
                longest = next(iter(waiting))
                slow = (one for one in opened if one.answering and one.cycle.more_body)
                abort_connection(next(slow, self) if longest is self else longest)

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            self.stop_header_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self.received += len(data)
            super().data_received(data)
            if self.answering:
                self.stop_header_timer()
            elif self not in waiting and not self.transport.is_closing():
                self.start_header_timer()
            # The parser keeps headers, however many there are.
            most = _HEADER_BYTES + (_FRAMING * limits.body_bytes if self.answering else 0)
            if self.received > most and not self.transport.is_closing():
                abort_connection(self)

        def on_headers_complete(self) -> None:
            super().on_headers_complete()
            # uvicorn would put trailers among the headers, behind the back of a proxy.
            self.headers: list[Any] = []
            if len(self.pipeline) > _AHEAD:
                raise ValueError("too many requests at once")  # the parser gives up: 400

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self.received = 0
            if not self.answering and not self.transport.is_closing():
                self.start_header_timer()

        @property
        def answering(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def start_header_timer(self) -> None:
            self.stop_header_timer()
            loop = asyncio.get_running_loop()
            waiting[self] = loop.call_later(limits.header_seconds, abort_connection, self)

        def stop_header_timer(self) -> None:
            if timer := waiting.pop(self, None):
                timer.cancel()

    def abort_connection(connection: Limited) -> None:
        connection.stop_header_timer()
        opened.pop(connection, None)
        connection.transport.abort()

    return Limited
