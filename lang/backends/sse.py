"""Server-sent events: the data of each, whatever pieces they arrive in."""

from __future__ import annotations

from collections.abc import AsyncIterator

from stolon.errors import BackendError

MAX_EVENT_BYTES = 64 << 20


async def data(
    chunks: AsyncIterator[bytes], *, limit: int = MAX_EVENT_BYTES, server: str = "the server"
) -> AsyncIterator[bytes]:
    """Yield the ``data`` of each event, its lines joined by ``\\n``; comments and other fields are skipped.

    Lines end with LF, CR or CRLF. An event that is not closed by an empty line when the chunks end is
    dropped, as the standard says. Raises BackendError if an event is larger than `limit` bytes.
    """
    parts: list[bytes] = []
    size = 0
    async for line in _lines(chunks, limit, server):
        if not line:
            if parts:
                yield b"\n".join(parts)
            parts, size = [], 0
        elif line.startswith(b"data:") or line == b"data":
            part = line[5:].removeprefix(b" ")
            parts.append(part)
            size += len(part) + 1
            if size > limit:
                raise _too_large(limit, server)


async def _lines(chunks: AsyncIterator[bytes], limit: int, server: str) -> AsyncIterator[bytes]:
    """Complete lines. An unfinished one is kept in pieces, so that a long line is joined only once."""
    rest: list[bytes] = []
    kept = 0
    after_cr = False  # a CR ended the last line: a LF right after it belongs to it
    first = True
    async for chunk in chunks:
        if first and chunk:
            chunk, first = chunk.removeprefix(b"\xef\xbb\xbf"), False
        if after_cr and chunk:
            chunk, after_cr = chunk.removeprefix(b"\n"), False
        if not chunk:
            continue
        after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, tail = chunk.split(b"\n")
        for line in whole:
            if rest:
                line = b"".join((*rest, line))
                rest, kept = [], 0
            if len(line) > limit:
                raise _too_large(limit, server)
            yield line
        if tail:
            rest.append(tail)
            kept += len(tail)
            if kept > limit:
                raise _too_large(limit, server)


def _too_large(limit: int, server: str) -> BackendError:
    return BackendError(f"{server} sent an event of more than {limit} bytes")
