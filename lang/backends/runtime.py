"""`Runtime`: a server of its own for a program, under the names that programs written for SGLang use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

import msgspec

from stolon.errors import InvalidRequest
from stolon.lang.backends import sse
from stolon.lang.backends.child_server import ChildServer
from stolon.lang.backends.endpoint import Delegate, RuntimeEndpoint
from stolon.lang.backends.stolon_server import RemoteEngine
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop, wait_for
from stolon.srt.tokenizer import Tokenizer

# Names of arguments, SGLang's and ours, and the options of `stolon serve` that they are.
_OPTIONS = {
    "model": "--model",
    "host": "--host",
    "port": "--port",
    "served_model_name": "--served-name",
    "served_name": "--served-name",
    "dtype": "--dtype",
    "context_length": "--context-length",
    "max_total_tokens": "--kv-tokens",
    "kv_tokens": "--kv-tokens",
    "max_running_requests": "--max-running",
    "max_running": "--max-running",
    "max_queued_requests": "--max-queued",
    "max_queued": "--max-queued",
    "threads": "--threads",
    "speculation": "--speculation",
}


class Runtime(Delegate):
    """`stolon serve` as a child process, and the connection to it. Also a context manager.

    Attributes:
        url: the server's address.
        endpoint: the same server as a `RuntimeEndpoint`.
    """

    def __init__(
        self,
        *,
        model_path: str | None = None,
        log_level: str = "error",
        launch_timeout: float = 300.0,
        api_key: str | None = None,
        **server_args: Any,
    ) -> None:
        """Start a server and wait until it serves.

        Args:
            model_path: of the model, or its name; the default model if None.
            log_level: what the server says is kept for errors of its start; for ``info``, ``warning`` and
                ``debug`` it is shown on standard error, too.
            launch_timeout: seconds it may take to load the model.
            api_key: that the server is to want.
            server_args: `host, port` (a free one by default), `dtype, context_length, threads,
                speculation`; `max_total_tokens` (`kv_tokens`), `max_running_requests` (`max_running`),
                `max_queued_requests` (`max_queued`), `served_model_name` (`served_name`).

        Raises InvalidRequest for an argument that the server does not have, EngineError with the
        server's last words if it can't start.
        """
        refuse_on_loop("Runtime()")
        options = _command_line({"model": model_path, "port": 0} | server_args)
        self._server = ChildServer(
            options,
            api_key=api_key,
            timeout=launch_timeout,
            show_log=log_level not in ("error", "critical"),
        )
        self.url = self._server.url
        try:
            self.endpoint = RuntimeEndpoint(self.url, api_key)
        except BaseException:
            self._server.stop()
            raise
        assert isinstance(self.endpoint.engine, RemoteEngine)
        self._http = self.endpoint.engine.http
        super().__init__(self.endpoint)

    @property
    def pid(self) -> int:
        """Of the server's process."""
        return self._server.process.pid

    def shutdown(self) -> None:
        """Close the connection and stop the server. Idempotent."""
        self.endpoint.close()
        self._server.stop()

    def close(self) -> None:
        self.shutdown()

    def cache_prefix(self, prefix: str) -> None:
        self.endpoint.cache_prefix(prefix)

    def get_tokenizer(self) -> Tokenizer:
        return self.tokenizer

    async def get_server_info(self) -> dict[str, Any]:
        """What is served, under which limits, and the engine's counters."""
        info = runtime_loop().submit(self._http.json("GET", "/server_info"))
        answer: dict[str, Any] = await wait_for(info)
        return answer

    def generate(
        self,
        prompt: str | list[str],
        sampling_params: dict[str, Any] | None = None,
        return_logprob: bool | None = False,
        logprob_start_len: int | None = None,
        top_logprobs_num: int | None = None,
    ) -> str:
        """The answer of POST /generate, as JSON text."""
        refuse_on_loop("generate()")
        body = {
            "text": prompt,
            "sampling_params": sampling_params,
            "return_logprob": return_logprob,
            "logprob_start_len": logprob_start_len,
            "top_logprobs_num": top_logprobs_num,
        }
        answer = self._http.json("POST", "/generate", body)
        return json.dumps(runtime_loop().submit(answer).result())

    async def async_generate(
        self, prompt: str, sampling_params: dict[str, Any] | None = None
    ) -> AsyncIterator[str]:
        """Pieces of the text as they come. Leaving the iteration cancels the request."""
        body = {"text": prompt, "sampling_params": sampling_params, "stream": True}
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        def put(piece: str | None) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, piece)

        pump = runtime_loop().submit(self._pump(body, put))
        try:
            while (piece := await queue.get()) is not None:
                yield piece
            await wait_for(pump)
        finally:
            pump.cancel()

    add_request = async_generate

    def encode(self, prompt: Any) -> NoReturn:
        """Refused: embeddings are another kind of model's."""
        raise InvalidRequest(
            "the server makes no embeddings", hint="get_tokenizer().encode gives tokens"
        )

    def start_profile(self) -> NoReturn:
        self.endpoint.start_profile()

    def stop_profile(self) -> NoReturn:
        self.endpoint.stop_profile()

    async def _pump(self, body: object, put: Callable[[str | None], None]) -> None:
        """Runs on the runtime loop. None is the end, also that by an error."""
        sent = 0
        try:
            async with self._http.stream("POST", "/generate", body) as answer:
                async for data in sse.data(answer.chunks(), server=self.url):
                    if data == b"[DONE]":
                        return
                    text = msgspec.json.decode(data, type=_Chunk).text
                    if len(text) > sent:
                        put(text[sent:])
                        sent = len(text)
        finally:
            put(None)


class _Chunk(msgspec.Struct):
    text: str


def _command_line(arguments: dict[str, Any]) -> list[str]:
    words = []
    for name, value in arguments.items():
        option = _OPTIONS.get(name)
        if option is None:
            raise InvalidRequest(
                f"Runtime() takes no {name}",
                param=name,
                hint=f"it takes {', '.join(sorted({'model_path', 'api_key', *_OPTIONS}))}",
            )
        if value is not None:
            words.append(f"{option}={value}")
    return words
