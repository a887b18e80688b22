"""`RuntimeEndpoint`: a server under the names that programs written for SGLang use."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NoReturn, Self

from stolon.errors import InvalidRequest
from stolon.lang.backends.connecting import connect
from stolon.lang.runtime_loop import refuse_on_loop, runtime_loop
from stolon.srt.client import EngineClient, EngineStats, ModelInfo, stream
from stolon.srt.protocol import Event, Request, Text
from stolon.srt.tokenizer import Tokenizer


class Delegate:
    """An EngineClient that stands for another one.

    Attributes:
        engine: the other one.
        chat_template: its own, or another that was asked for.
        sends_messages: whether the server writes the template around messages itself.
    """

    chat_template: Any

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.chat_template = engine.chat_template
        self.sends_messages: bool = getattr(engine, "sends_messages", False)

    @property
    def info(self) -> ModelInfo:
        return self.engine.info

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.tokenizer

    def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
        self.engine.submit(request, on_event)

    def abort(self, rid: str) -> None:
        self.engine.abort(rid)

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def flush_cache(self) -> None:
        self.engine.flush_cache()

    def close(self) -> None:
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RuntimeEndpoint(Delegate):
    """A running server: Stolon's, or SGLang's own.

    Attributes:
        base_url: its address.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        """Connect as `connect` does. `chat_template_name` takes the place of the model's own template.

        Raises what `connect` raises, and InvalidRequest for a template that nobody has registered.
        """
        from stolon.lang.chat_template import get_chat_template

        template = None if chat_template_name is None else get_chat_template(chat_template_name)
        super().__init__(connect(base_url, api_key=api_key, verify=verify))
        self.base_url = base_url
        if template is not None:
            if self.sends_messages:
                self.close()
                raise InvalidRequest(
                    "this server writes messages in its own chat template",
                    param="chat_template_name",
                    hint="leave it out",
                )
            self.chat_template = template

    def get_model_name(self) -> str:
        return self.info.name

    def get_chat_template(self) -> Any:
        return self.chat_template

    def get_server_info(self) -> dict[str, Any]:
        """What is served, and the engine's counters."""
        from stolon.lang.backend import get_server_info

        return get_server_info(self) or {}

    def cache_prefix(self, prefix_str: str) -> None:
        """Compute a text now, so that prompts that begin with it need not."""
        refuse_on_loop("cache_prefix()")
        request = Request(rid=f"prefix-{secrets.token_hex(8)}", segments=[Text(prefix_str, True)])

        async def compute() -> None:
            async for _ in stream(self, request):
                pass

        runtime_loop().submit(compute()).result()

    def start_profile(self) -> NoReturn:
        _no_profiler()

    def stop_profile(self) -> NoReturn:
        _no_profiler()

    def shutdown(self) -> None:
        """Close the connection. The server goes on."""
        self.close()


def _no_profiler() -> NoReturn:
    raise InvalidRequest(
        "the server has no profiler to start from here",
        hint="a run's trace says where its time went; GET /metrics, what the engine did",
    )
