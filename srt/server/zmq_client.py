"""The HTTP process's EngineClient: an engine process behind two ZeroMQ queues."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import msgspec
import zmq

from stolon.errors import EngineClosed, EngineError, InvalidRequest
from stolon.srt.client import EngineStats, ModelInfo
from stolon.srt.one_process import OneProcess
from stolon.srt.protocol import Event, Request
from stolon.srt.server import ipc
from stolon.srt.server.in_flight import InFlight
from stolon.srt.server.options import EngineOptions
from stolon.srt.tokenizer import ChatTemplate, Tokenizer

log = logging.getLogger("stolon.server")

_POLL_MS = 200
_CALL_TIMEOUT = 5.0
_STOP_TIMEOUT = 5.0


class ZmqEngineClient:
    """An EngineClient whose engine is another process.

    If that process ends, every request in flight gets Failed(engine_closed), and every later call
    raises EngineClosed. `close` stops the process and removes the socket folder. In a fork of this process
    every call raises EngineClosed, and `close` does nothing: the sockets are not its own.
    """

    info: ModelInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None

    def __init__(
        self,
        command: Sequence[str],
        tokenizer: Tokenizer,
        chat_template: ChatTemplate | None,
    ) -> None:
        """Start `command` (with ``--ipc FOLDER`` appended) and wait until its engine is ready.

        Raises the engine's own error if it could not start.
        """
        self.tokenizer = tokenizer
        self.chat_template = chat_template
        self._in_flight = InFlight()
        self._made_in = OneProcess()
        self._send_lock = threading.Lock()  # a ZeroMQ socket may change threads only behind a fence
        self._closing = threading.Event()
        self._close_lock = threading.Lock()
        self._closed = False
        self.folder = ipc.IpcFolder()
        self._context = zmq.Context()
        self._commands = ipc.open_socket(
            self._context, zmq.PUSH, self.folder.path, "commands", bind=True
        )
        self._reports = ipc.open_socket(
            self._context, zmq.PULL, self.folder.path, "reports", bind=True
        )
        # Own session: Ctrl-C reaches only this process. The pipe on stdin tells the child when we
        # are gone.
        self.process = subprocess.Popen(
            [*command, "--ipc", str(self.folder.path)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        self._receiver = threading.Thread(target=self._receive, name="stolon-ipc", daemon=True)
        self._receiver.start()
        try:
            self.info = self._wait_ready()
        except BaseException:
            self.close()
            raise

    @classmethod
    def launch(cls, options: EngineOptions) -> ZmqEngineClient:
        """Start the real engine for `options.model`, and load its tokenizer and template here."""
        from stolon.srt.load_tokenizer import load_tokenizer
        from stolon.srt.loaders import check_folder, resolve

        path = resolve(options.model)
        check_folder(path)
        tokenizer, chat_template = load_tokenizer(path)
        command = [
            sys.executable,
            "-m",
            "stolon.srt.server.engine_process",
            "--options",
            msgspec.json.encode(options).decode(),
        ]
        return cls(command, tokenizer, chat_template)

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self._made_in.check()
        try:
            data = ipc.pack(ipc.Submit(request))
        except OverflowError:  # no limit of any field is near what a message can hold
            raise InvalidRequest("a number in the request is far out of range") from None
        self._in_flight.add_request(request, on_event)
        self._send(data)

    def abort(self, rid: str) -> None:
        self._made_in.check()
        if self._in_flight.has_request(rid):
            self._send(ipc.pack(ipc.Abort(rid)))

    def stats(self) -> EngineStats:
        """Ask the engine process. Raises EngineError if it does not answer within a few seconds."""
        stats = self._call(ipc.GetStats)
        if stats is None:
            raise EngineError("the engine answered without stats")
        return stats

    def flush_cache(self) -> None:
        self._call(ipc.FlushCache)

    def close(self) -> None:
        """Stop the engine process, reap it, and remove the socket folder. Idempotent."""
        if not self._made_in.here():
            return
        with self._close_lock:
            if self._closed:
                return
            self._closed = True
        try:
            if self.process.poll() is None:
                self._stop_process()
        finally:
            self._tidy_up()

    def _tidy_up(self) -> None:
        self._closing.set()
        self._receiver.join()
        self._in_flight.fail(EngineClosed("the engine was shut down"))
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self._commands.close()
        self._reports.close()
        self._context.term()
        self.folder.remove()

    def _stop_process(self) -> None:
        """End the process and reap it; an interruption kills it."""
        # One that is still loading reads no commands yet, and has nothing to finish.
        if self._in_flight.ready.done():
            self._send(ipc.pack(ipc.Shutdown()))
        else:
            self.process.terminate()
        try:
            for stop in (self.process.terminate, self.process.kill):
                try:
                    self.process.wait(_STOP_TIMEOUT)
                    return
                except subprocess.TimeoutExpired:
                    stop()
        except BaseException:
            self.process.kill()
            raise
        finally:
            self.process.wait()

    def _wait_ready(self) -> ModelInfo:
        while True:
            try:
                # Short, so that Ctrl-C is heard.
                return self._in_flight.ready.result(timeout=0.2)
            except TimeoutError:
                continue

    def _send(self, data: bytes) -> None:
        """Never blocks: the queue is unbounded, and there is no queue only if there is no peer."""
        with self._send_lock:
            if self._commands.closed:
                return
            try:
                self._commands.send(data, zmq.NOBLOCK)
                return
            except zmq.Again:
                pass
        self._in_flight.fail(EngineClosed("the engine process is gone"))

    def _call(self, kind: type[ipc.GetStats] | type[ipc.FlushCache]) -> EngineStats | None:
        self._made_in.check()
        call, answer = self._in_flight.add_call()
        try:
            self._send(ipc.pack(kind(call)))
            return answer.result(timeout=_CALL_TIMEOUT)
        except TimeoutError:
            raise EngineError("the engine process does not answer") from None
        finally:
            self._in_flight.drop_call(call)

    def _receive(self) -> None:
        while not self._closing.is_set():
            if self._reports.poll(_POLL_MS):
                try:
                    self._in_flight.take(ipc.unpack_report(self._reports.recv()))
                except Exception as error:  # a bad message must not leave requests hanging
                    log.exception("bad message from the engine process")
                    self._in_flight.fail(
                        EngineClosed(f"bad message from the engine process: {error}")
                    )
            elif self.process.poll() is not None:
                self._in_flight.fail(
                    EngineClosed(f"the engine process ended with status {self.process.returncode}")
                )
                return
