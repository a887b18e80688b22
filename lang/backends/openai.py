"""Programs on any server with OpenAI's API, in the dialect that the server speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stolon.errors import BackendError, InvalidRequest
from stolon.lang.backends import ollama_wire, openai_wire, sse
from stolon.lang.backends.answers import Answer, incomplete, total
from stolon.lang.backends.dialect import Endpoint
from stolon.lang.backends.dialects import dialect as row_of
from stolon.lang.backends.dialects_body import generation_fields, merged
from stolon.lang.backends.dialects_detect import (
    Address,
    Detected,
    detect,
    known_host,
    the_model,
)
from stolon.lang.backends.http import HTTPClient, HTTPOptions
from stolon.lang.backends.http_answer import Answer as HTTPAnswer
from stolon.lang.backends.http_answer import decoded
from stolon.lang.backends.http_options import checked_address
from stolon.lang.backends.keys import service_key
from stolon.lang.backends.messages import chat_messages
from stolon.lang.backends.openai_select import constrained, score
from stolon.lang.backends.remote import RemoteBackend
from stolon.lang.backends.remote_walk import OnAnswer
from stolon.lang.backends.scorer import Scorer
from stolon.lang.backends.together import together
from stolon.lang.backends.transcript import Transcript, transcript_template
from stolon.lang.chat_template import ChatTemplate, get_chat_template
from stolon.lang.runtime_loop import runtime_loop
from stolon.srt.protocol import Gen, Select, SelectResult
from stolon.srt.tokenizer import ChatTemplate as Template

OPENAI_URL = "https://api.openai.com/v1"


class OpenAI(RemoteBackend):
    """OpenAI, Azure, vLLM, SGLang, llama-server, Ollama, LM Studio, NIM, TensorRT-LLM, LMDeploy and others.

    A program's messages go to the chat endpoint, text without messages to the one for text. What the
    server can't do is refused (`docs/backends.md`).
    """

    def __init__(
        self,
        model_name: str | None = None,
        is_chat_model: bool | None = None,
        chat_template: ChatTemplate | Template | str | None = None,
        is_azure: bool = False,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dialect: str | None = None,
        select: str = "exact",
        options: HTTPOptions | None = None,
    ) -> None:
        """Connect. Without `dialect` the server is asked which one it speaks, unless its address says so.

        Args:
            model_name: of the server's models; None takes its only one.
            is_chat_model: False sends messages, too, as text, written with `chat_template` (plain words
                without one). True refuses text without messages.
            chat_template: for text endpoints: a template, or the name of a registered one. Chat
                endpoints have the model's own.
            is_azure: `base_url` is an Azure resource, `model_name` a deployment.
            base_url: with or without ``/v1``; OpenAI's own if None.
            api_key: the variable OPENAI_API_KEY, where it is not given and the server is OpenAI.
            dialect: a name in `dialects.DIALECTS`.
            select: ``exact`` scores choices by their log-probs where the server gives them.
                ``constrained`` lets the server generate one of the choices greedily instead: for
                `greedy_token_selection` alone, and without scores.
            options: timeouts, retries, further headers (`HTTPOptions`); a read_timeout of 600 if None.
        """
        if select not in ("exact", "constrained"):
            raise InvalidRequest("select must be 'exact' or 'constrained'", param="select")
        if is_azure:
            if base_url is None:
                raise InvalidRequest("Azure needs base_url", param="base_url")
            checked_address(base_url)
            base_url = base_url.rstrip("/").removesuffix("/openai/v1") + "/openai/v1"
        url = OPENAI_URL if base_url is None else base_url
        checked_address(url)
        options = options or HTTPOptions(read_timeout=600.0)
        service = "openai" if is_azure else known_host(url)
        if service == "openai":
            variable = "OPENAI_API_KEY" if Address.of(url) == Address.of(OPENAI_URL) else None
            api_key = service_key("Azure" if is_azure else "OpenAI", variable, api_key, options)
        if api_key is not None:
            options = (
                replace(options, headers={**options.headers, "api-key": api_key})
                if is_azure
                else replace(options, api_key=api_key)
            )
        self._address = Address.of(url)
        self._http = HTTPClient(self._address.root, options)
        self.server = self._http.server
        name = dialect or service
        if name is None or model_name is None:
            found = _ask(url, options)
            name = name or found.dialect
            model_name = model_name or the_model(found, self.server)
        template: Any = chat_template
        if isinstance(chat_template, str):
            template = get_chat_template(chat_template)
        row = row_of(name)
        if name in ("anthropic", "litellm"):
            raise InvalidRequest(
                f"{row.title} is no server with OpenAI's API",
                param="dialect",
                hint=f"use sl.{row.title}",
            )
        super().__init__(
            model_name,
            row,
            chat_template=template if is_chat_model is False else transcript_template(),
        )
        if chat_template is not None and is_chat_model is not False:
            raise InvalidRequest(
                "chat_template is for servers that are sent text; messages get the model's own",
                param="chat_template",
                hint="give is_chat_model=False too",
            )
        self.dialect = name
        self._is_chat = is_chat_model
        self.sends_messages = is_chat_model is not False
        self._select = select

    async def aclose(self) -> None:
        await self._http.aclose()

    # -- generations -----------------------------------------------------------------------------

    async def generate(
        self, before: Transcript, gen: Gen, samples: Sequence[int], on_answer: OnAnswer | None
    ) -> list[Answer]:
        if len(samples) > 1 and not self.row.samples:
            one_by_one = (self.generate(before, gen, [sample], on_answer) for sample in samples)
            return [answers[0] for answers in await together(one_by_one)]
        endpoint, place = self.place(before)
        answers = [Answer() for _ in samples]
        if self.dialect == "ollama":
            path = "/api/chat" if endpoint == "chat" else "/api/generate"
            body = ollama_wire.fields(gen, self.row, samples[0])
        else:
            path = self._path(endpoint)
            body = generation_fields(gen, self.row, endpoint, sample=samples[0])
            if len(samples) > 1:
                body["n"] = len(samples)
        body = merged({"model": self.info.name, "stream": on_answer is not None}, place, body)
        if on_answer is None:
            whole = await self._http.json("POST", path, body, kind=self._kind)
            self._take(whole, answers, gen)
            if (lacks := whole.lacks(len(answers))) is not None:
                raise incomplete(self.server, lacks)
        else:
            if self.dialect != "ollama":
                body["stream_options"] = {"include_usage": True}
            await self._stream(path, body, answers, gen, samples, on_answer)
        self.charge(total(answers))
        return answers

    @property
    def _kind(self) -> Any:
        return ollama_wire.Reply if self.dialect == "ollama" else openai_wire.Completion

    def _take(self, payload: Any, answers: Sequence[Answer], gen: Gen) -> list[int]:
        if self.dialect == "ollama":
            return ollama_wire.take(payload, answers, server=self.server)
        return openai_wire.take(
            payload, answers, server=self.server, token_ids=gen.sampling.stop_token_ids
        )

    async def _stream(
        self,
        path: str,
        body: Mapping[str, Any],
        answers: Sequence[Answer],
        gen: Gen,
        samples: Sequence[int],
        on_answer: OnAnswer,
    ) -> None:
        async with self._http.stream("POST", path, body) as answer:
            async for data in self._events(answer):
                if data == b"[DONE]":
                    break
                payload = decoded(data, self._kind, server=self.server)
                for place in self._take(payload, answers, gen):
                    on_answer(samples[place], answers[place])
        if not all(answer.ended for answer in answers):
            raise BackendError(f"{self.server} ended a stream without saying that it is complete")

    def _events(self, answer: HTTPAnswer) -> AsyncIterator[bytes]:
        chunks = answer.chunks()
        if self.dialect == "ollama":
            return ollama_wire.lines(chunks, server=self.server)
        return sse.data(chunks, server=self.server)

    # -- where a generation stands ---------------------------------------------------------------

    def endpoint(self, before: Transcript) -> Endpoint:
        """Which endpoint takes what is before a generation."""
        as_text = before.bare if self._is_chat is None else not self._is_chat
        if as_text and "completions" in self.row.endpoints:
            return "completions"
        return "chat"

    def place(self, before: Transcript) -> tuple[Endpoint, dict[str, Any]]:
        """The endpoint, and the fields that hold what is before the generation."""
        endpoint = self.endpoint(before)
        if endpoint == "completions":
            raw = {"raw": True} if self.dialect == "ollama" else {}
            return endpoint, {"prompt": before.text, **raw}
        messages, fields = chat_messages(before, self.row)
        return endpoint, {"messages": messages, **fields}

    def _path(self, endpoint: Endpoint) -> str:
        tail = "/chat/completions" if endpoint == "chat" else "/completions"
        return self._address.prefix + tail

    # -- selections ------------------------------------------------------------------------------

    async def select(self, before: Transcript, select: Select, sample: int) -> SelectResult:
        if self._select == "constrained":
            return await constrained(self, before, select)
        endpoint = self.endpoint(before)
        if self.row.scoring is None or endpoint not in self.row.scored:
            return await super().select(before, select, sample)
        scorer = Scorer(
            self._http,
            self.row,
            self.info.name,
            paths={"chat": self._path("chat"), "completions": self._path("completions")},
            charge=self.charge,
        )
        return await score(scorer, endpoint, before, select, self.place, sample, self.letters)


class Crusoe(OpenAI):
    """Crusoe's managed inference: OpenAI's API at another address. `api_key`, or CRUSOE_API_KEY."""

    def __init__(self, model_name: str, *, api_key: str | None = None, **options: Any) -> None:
        options.setdefault("base_url", "https://managed-inference-api-proxy.crusoecloud.com/v1")
        options.setdefault("dialect", "compatible")
        http = options.get("options") or HTTPOptions()
        key = service_key("Crusoe", "CRUSOE_API_KEY", api_key, http)
        super().__init__(model_name, api_key=key, **options)


def _ask(url: str, options: HTTPOptions) -> Detected:
    if runtime_loop().is_current():
        raise InvalidRequest(
            "a server can't be asked for its dialect here", hint="name dialect and model_name"
        )
    return runtime_loop().submit(detect(url, options)).result()
