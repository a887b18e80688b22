"""The engine process: an engine behind the two queues of `ipc`.

Started as ``python -m stolon.srt.server.engine_process --ipc FOLDER --options JSON``. It ends on
Shutdown, or when its standard input closes, which is how the kernel tells it that the parent is
gone.
"""

from __future__ import annotations

import argparse
import logging
import os
import queue
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from stolon.errors import EngineClosed, InternalError, StolonError
from stolon.srt.client import EngineClient
from stolon.srt.heap import settle_heap
from stolon.srt.protocol import Event, Failed, Request
from stolon.srt.server import ipc
from stolon.srt.server.options import EngineOptions

log = logging.getLogger("stolon.engine")

_MAX_BATCH = 256  # events per message


class _Outbox(threading.Thread):
    """The only thread that writes to the report queue.

    `put` never blocks, so the engine loop may call it.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], folder: Path) -> None:
        super().__init__(name="stolon-outbox", daemon=True)
        self._socket = ipc.open_socket(context, zmq.PUSH, folder, "reports", bind=False)
        self._queue: queue.SimpleQueue[Event | ipc.Report | None] = queue.SimpleQueue()

    def put(self, item: Event | ipc.Report) -> None:
        self._queue.put(item)

    def finish(self) -> None:
        """Send what is queued and stop."""
        self._queue.put(None)
        self.join(timeout=5)

    def run(self) -> None:
        item: Event | ipc.Report | None = self._queue.get()
        while item is not None:
            if isinstance(item, ipc.Report):
                self._socket.send(ipc.pack(item))
                item = self._queue.get()
                continue
            batch: list[Event] = []
            while item is not None and not isinstance(item, ipc.Report):
                batch.append(item)
                if len(batch) == _MAX_BATCH or self._queue.empty():
                    self._socket.send(ipc.pack(ipc.Events(batch)))
                    batch = []
                    item = self._queue.get()
                else:
                    item = self._queue.get_nowait()
            if batch:
                self._socket.send(ipc.pack(ipc.Events(batch)))
        self._socket.close(linger=2000)


def serve_engine(
    client: EngineClient, ipc_dir: str | Path, *, stop: threading.Event | None = None
) -> None:
    """Answer the commands in `ipc_dir` until Shutdown or `stop`, then close the engine."""
    folder = Path(ipc_dir)
    context = zmq.Context()
    commands = ipc.open_socket(context, zmq.PULL, folder, "commands", bind=False)
    outbox = _Outbox(context, folder)
    outbox.start()
    outbox.put(ipc.Ready(client.info))
    try:
        while stop is None or not stop.is_set():
            if not commands.poll(200):
                continue
            command = ipc.unpack_command(commands.recv())
            if isinstance(command, ipc.Shutdown):
                break
            _obey(client, command, outbox.put)
    finally:
        client.close()
        outbox.finish()
        commands.close()
        context.term()


def _obey(
    client: EngineClient, command: ipc.Command, put: Callable[[Event | ipc.Report], None]
) -> None:
    match command:
        case ipc.Submit(request):
            _submit(client, request, put)
        case ipc.Abort(rid):
            client.abort(rid)
        case ipc.GetStats(call):
            try:
                put(ipc.Stats(call, client.stats()))
            except StolonError as error:
                put(ipc.CallFailed(call, error.code, error.message))
        case ipc.FlushCache(call):
            try:
                client.flush_cache()
                put(ipc.Flushed(call))
            except StolonError as error:
                put(ipc.CallFailed(call, error.code, error.message))


def _submit(
    client: EngineClient, request: Request, put: Callable[[Event | ipc.Report], None]
) -> None:
    try:
        client.submit(request, put)
    except EngineClosed as error:
        put(Failed.of(request.rid, error))
        put(ipc.Dead(error.code, error.message))
    except StolonError as error:
        put(Failed.of(request.rid, error))
    except Exception:  # a fault of one request must not end the process
        log.exception("submit failed")
        put(Failed.of(request.rid, InternalError("the engine failed to take the request")))


def _report_dead(folder: Path, error: StolonError) -> None:
    context = zmq.Context()
    outbox = _Outbox(context, folder)
    outbox.start()
    outbox.put(ipc.Dead(error.code, error.message, error.where, error.hint))
    outbox.finish()
    context.term()


def watch_parent(on_gone: Callable[[], None]) -> None:
    """Call `on_gone` when standard input ends: the parent holds its other end open for as long as
    it lives.
    """

    def wait() -> None:
        while os.read(0, 1024):
            pass
        on_gone()

    threading.Thread(target=wait, name="stolon-parent", daemon=True).start()


def build_engine(options: EngineOptions) -> EngineClient:
    """The engine itself. Imported here, so that the HTTP process never loads torch."""
    from stolon.srt.engine import Engine

    arguments: dict[str, Any] = msgspec.structs.asdict(options)
    return Engine(arguments.pop("model"), **arguments)


def main(build: Callable[[EngineOptions], EngineClient] = build_engine) -> int:
    """Entry point of the process. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="stolon-engine")
    parser.add_argument("--ipc", required=True, type=Path)
    parser.add_argument("--options", required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="stolon engine: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the HTTP process's to handle
    stop = threading.Event()
    watch_parent(stop.set)
    try:
        client = build(msgspec.json.decode(arguments.options, type=EngineOptions))
    except StolonError as error:
        _report_dead(arguments.ipc, error)
        return 1
    except Exception as error:
        log.exception("the engine could not start")
        _report_dead(arguments.ipc, InternalError(f"{type(error).__name__}: {error}"))
        return 1
    settle_heap()
    serve_engine(client, arguments.ipc, stop=stop)
    if stop.is_set():  # the parent was killed and could not tidy up
        shutil.rmtree(arguments.ipc, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
