"""Programs on the services that the library LiteLLM knows."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NoReturn

import msgspec

from stolon.errors import BackendError, InvalidRequest, StolonError
from stolon.lang.backends.answers import Answer, incomplete
from stolon.lang.backends.dialects import dialect
from stolon.lang.backends.dialects_body import generation_fields
from stolon.lang.backends.http_errors import refusal
from stolon.lang.backends.http_options import checked_address, checked_key
from stolon.lang.backends.messages import chat_messages
from stolon.lang.backends.openai_wire import Completion, take
from stolon.lang.backends.remote import OneCallPerSample
from stolon.lang.backends.remote_walk import OnAnswer
from stolon.lang.backends.transcript import Transcript, transcript_template
from stolon.srt.protocol import Gen


class LiteLLM(OneCallPerSample):
    """A model by its name in LiteLLM, such as ``gemini/gemini-2.0-flash``. Messages only."""

    def __init__(self, model_name: str, **arguments: Any) -> None:
        """`arguments` go to every call of ``litellm.acompletion``: api_key, base_url, timeout and others.

        What a service does not support LiteLLM refuses; ``drop_params`` would drop it, so it is not taken.
        """
        if "drop_params" in arguments:
            raise InvalidRequest(
                "drop_params drops what was asked for without a word", param="drop_params"
            )
        if arguments.get("base_url") is not None:
            checked_address(arguments["base_url"])
        if arguments.get("api_key") is not None:
            checked_key(arguments["api_key"])
        try:
            self._litellm = import_module("litellm")
        except ImportError:
            raise InvalidRequest("LiteLLM is not installed", hint="pip install litellm") from None
        super().__init__(model_name, dialect("litellm"), chat_template=transcript_template())
        self._arguments = {"num_retries": 3, "drop_params": False, **arguments}
        self.server = f"LiteLLM ({model_name})"

    async def aclose(self) -> None:
        """LiteLLM keeps its own connections."""

    async def answer(
        self, before: Transcript, gen: Gen, sample: int, on_answer: OnAnswer | None
    ) -> Answer:
        messages, _ = chat_messages(before, self.row)
        body = self._arguments | {"model": self.info.name, "messages": messages}
        body |= generation_fields(gen, self.row, "chat", sample=sample)
        answer = Answer()
        try:
            if on_answer is None:
                whole = self._take(await self._litellm.acompletion(**body), answer, gen)
                if (lacks := whole.lacks(1)) is not None:
                    raise incomplete(self.server, lacks)
                return answer
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            async for piece in await self._litellm.acompletion(**body):
                self._take(piece, answer, gen)
                on_answer(sample, answer)
        except StolonError:
            raise
        except Exception as error:
            status = getattr(error, "status_code", None)
            raise refusal(
                status if isinstance(status, int) else 500,
                str(error).encode("utf-8", "replace"),
                server=self.server,
            ) from error
        return answer

    def _take(self, reply: Any, answer: Answer, gen: Gen) -> Completion:
        data = reply.model_dump()
        try:
            payload = msgspec.convert(data, Completion)
        except msgspec.ValidationError as error:
            raise BackendError(f"{self.server} answered in another form: {error}") from error
        take(payload, [answer], server=self.server, token_ids=gen.sampling.stop_token_ids)
        return payload


def VertexAI(*arguments: Any, **options: Any) -> NoReturn:
    """Refused: its SDK is not used here. It has OpenAI's API, too."""
    raise InvalidRequest(
        "there is no backend VertexAI",
        hint="OpenAI(model, base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/"
        "locations/LOCATION/endpoints/openapi', api_key=TOKEN), or LiteLLM('vertex_ai/…')",
    )
