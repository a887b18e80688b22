"""Log-probs of given text, asked of the servers that tell them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.answers import NO_COUNTS, Counts, incomplete
from stolon.lang.backends.dialect import Dialect, Endpoint
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.http import HTTPClient
from stolon.lang.backends.openai_wire import Completion

UNKNOWN = ""
"""A first token that the server does not name."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A text as the server's tokens, with the log-prob of each given those before; None for the first.

    Attributes:
        tokens: what tells them apart: ids or texts.
        texts: of the tokens.
    """

    tokens: list[str]
    texts: list[str]
    logprobs: list[float | None]
    counts: Counts = NO_COUNTS


@dataclass(frozen=True, slots=True)
class Scorer:
    """Log-probs of given text, as one server gives them."""

    http: HTTPClient
    row: Dialect
    model: str
    paths: Mapping[Endpoint, str]
    charge: Callable[[Counts], None]

    async def __call__(self, endpoint: Endpoint, place: Mapping[str, Any]) -> Scored:
        """Of what `place` holds: a prompt, or messages of which the last one is open."""
        ask: Mapping[str | None, Callable[..., Awaitable[Scored]]] = {
            "prompt_logprobs": self._prompt_logprobs,
            "generate": self._generate,
            "echo": self._echo,
        }
        scored = await ask[self.row.scoring](endpoint, place)
        # The first token has none. Elsewhere no number would count as certainty.
        rest = scored.logprobs[1:]
        if not scored.tokens or len(scored.tokens) != len(scored.logprobs) or None in rest:
            raise incomplete(self.http.server, "a log-prob for each token of the prompt")
        self.charge(scored.counts)
        return scored

    async def _prompt_logprobs(self, endpoint: Endpoint, place: Mapping[str, Any]) -> Scored:
        body = {"model": self.model, "max_tokens": 1, "prompt_logprobs": 0, **place}
        reply = await self._ask(self.paths[endpoint], body, Completion)
        listed = reply.prompt_logprobs or (reply.choices and reply.choices[0].prompt_logprobs)
        if not listed:
            raise BackendError(f"{self.http.server} sent no log-probs of the prompt")
        tokens: list[str] = []
        texts: list[str] = []
        logprobs: list[float | None] = []
        for entry in listed:
            # The first token has no log-prob, and is not named.
            id, facts = next(iter(entry.items())) if entry else (UNKNOWN, {})
            tokens.append(id)
            texts.append(str(facts.get("decoded_token") or ""))
            logprobs.append(_number(facts, self.http.server) if entry else None)
        return Scored(tokens, texts, logprobs, reply.counts() or NO_COUNTS)

    async def _generate(self, endpoint: Endpoint, place: Mapping[str, Any]) -> Scored:
        body = {
            "text": place["prompt"],
            "sampling_params": {"max_new_tokens": 0, "temperature": 0.0},
            "return_logprob": True,
            "return_text_in_logprobs": True,
            "logprob_start_len": 0,
        }
        meta: _Meta = (await self._ask("/generate", body, _Generated)).meta_info
        listed = meta.input_token_logprobs
        return Scored(
            [str(token) for _, token, _ in listed],
            [str(text or "") for _, _, text in listed],
            [logprob for logprob, _, _ in listed],
            Counts(prompt=meta.prompt_tokens, cached=meta.cached_tokens),
        )

    async def _echo(self, endpoint: Endpoint, place: Mapping[str, Any]) -> Scored:
        # A limit of 0 means none there, so one token is generated and taken off again.
        body = {
            "model": self.model,
            "max_tokens": 1,
            "echo": True,
            "logprobs": 0,
            "temperature": 0.0,
            **place,
        }
        reply = await self._ask(self.paths[endpoint], body, Completion)
        counts = reply.counts()
        listed = reply.choices[0].logprobs if reply.choices else None
        if listed is None or listed.tokens is None or listed.token_logprobs is None:
            raise BackendError(f"{self.http.server} sent no log-probs of the prompt")
        if counts is None:  # it says how many of the tokens are the prompt's
            raise incomplete(self.http.server, "usage")
        count = len(listed.tokens) - counts.completion
        tokens = listed.tokens[:count]
        _check_alignment(self.row, str(place["prompt"]), tokens, counts)
        return Scored(tokens, tokens, listed.token_logprobs[:count], counts)

    async def _ask(self, path: str, body: Mapping[str, Any], kind: Any) -> Any:
        return await self.http.json("POST", path, body, kind=kind)


class _Meta(msgspec.Struct):
    input_token_logprobs: list[tuple[float | None, int, Any]] = []
    prompt_tokens: int = 0
    cached_tokens: int = 0


class _Generated(msgspec.Struct):
    meta_info: _Meta


def _check_alignment(row: Dialect, text: str, tokens: Sequence[str], counts: Counts) -> None:
    """llama-cpp-python pairs each token with the log-probs of the place after it unless the text begins
    with the beginning-of-sequence token, which it leaves out of the list."""
    hidden = counts.prompt - len(tokens)
    spelled = bool(tokens) and not text.startswith(tokens[0])
    added = hidden == 1 and "".join(tokens).lstrip() == text.lstrip()
    if not (hidden and (spelled or added)):
        raise refuse(
            row,
            "select() for a model that begins without a special token",
            param="choices",
            hint="its log-probs are those of the next place; give chat_template, or select='constrained'",
        )


def _number(facts: Any, server: str) -> float:
    value = facts.get("logprob") if isinstance(facts, dict) else None
    if not isinstance(value, int | float):
        raise BackendError(f"{server} sent log-probs of another form than was asked for")
    return float(value)
