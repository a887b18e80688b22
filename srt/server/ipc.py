"""Messages and sockets between the HTTP process and the engine process.

Two one-way ZeroMQ queues over AF_UNIX sockets in a fresh folder that only this user may enter; the
HTTP process binds both. Messages are msgpack of the structs below and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

import msgspec
import zmq

from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.protocol import Event, Request

_MAX_SOCKET_PATH = 100  # sun_path holds 104 bytes on some systems, 108 on others


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: Request


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    rid: str


class GetStats(msgspec.Struct, frozen=True, tag="get_stats"):
    call: int


class FlushCache(msgspec.Struct, frozen=True, tag="flush_cache"):
    call: int


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """The engine process closes the engine and exits."""


Command = Submit | Abort | GetStats | FlushCache | Shutdown


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The first message of an engine that came up."""

    info: ModelInfo


class Events(msgspec.Struct, frozen=True, tag="events"):
    """Whatever the engine had to say since the last message, in order."""

    events: list[Event]


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    call: int
    stats: EngineStats


class CallFailed(msgspec.Struct, frozen=True, tag="call_failed"):
    """A GetStats or FlushCache raised."""

    call: int
    code: str
    message: str


class Flushed(msgspec.Struct, frozen=True, tag="flushed"):
    call: int


class Dead(msgspec.Struct, frozen=True, tag="dead"):
    """The last message: the engine could not start, or can't go on.

    The fields are those of a StolonError.
    """

    code: str
    message: str
    where: str | None = None
    hint: str | None = None


Report = Ready | Events | Stats | CallFailed | Flushed | Dead

_encoder = msgspec.msgpack.Encoder()
_command_decoder = msgspec.msgpack.Decoder(Command)
_report_decoder = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Report) -> bytes:
    return _encoder.encode(message)


def unpack_command(data: bytes) -> Command:
    return _command_decoder.decode(data)


def unpack_report(data: bytes) -> Report:
    return _report_decoder.decode(data)


class IpcFolder:
    """A private folder for the sockets of one server, mode 0700, removed by `remove`."""

    def __init__(self) -> None:
        path = tempfile.mkdtemp(prefix="stolon-")
        if len(os.fsencode(path)) + len("/commands") > _MAX_SOCKET_PATH:
            os.rmdir(path)
            path = tempfile.mkdtemp(prefix="stolon-", dir="/tmp")
        self.path = Path(path)

    def remove(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path)


def open_socket(
    context: zmq.Context[zmq.Socket[bytes]], kind: int, folder: Path, name: str, *, bind: bool
) -> zmq.Socket[bytes]:
    """One end of the queue `name` in `folder`.

    Queues are unbounded: the server bounds requests instead.
    """
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    address = f"ipc://{folder / name}"
    if bind:
        socket.bind(address)
    else:
        socket.connect(address)
    return socket
