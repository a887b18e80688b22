"""The shapes of OpenAI's chat and text completions, as servers send them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.answers import Answer, Counts, ReportedToken
from stolon.lang.backends.http_errors import printable
from stolon.srt.protocol import Finish, FinishKind


class _Top(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenEntry(_Top):
    """A token of the chat form. Without `bytes`, its text stands for them."""

    top_logprobs: list[_Top] | None = None

    def reported(self) -> ReportedToken:
        top = [(_bytes(other), other.logprob) for other in self.top_logprobs or ()]
        return ReportedToken(_bytes(self), self.logprob, tuple(top))


class Logprobs(msgspec.Struct):
    """Both forms: `content` in chat, parallel lists for text."""

    content: list[TokenEntry] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None

    def reported(self) -> list[ReportedToken]:
        if self.content is not None:
            return [entry.reported() for entry in self.content]
        tops = self.top_logprobs or [None] * len(self.tokens or ())
        return [
            ReportedToken(token.encode(), logprob, _sorted(top))
            for token, logprob, top in zip(
                self.tokens or (), self.token_logprobs or (), tops, strict=False
            )
        ]


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class Choice(msgspec.Struct):
    """One sample's answer, or a piece of it."""

    index: int = 0
    text: str | None = None
    message: _Message | None = None
    delta: _Message | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None  # vLLM, TensorRT-LLM
    matched_stop: Any = None  # SGLang
    prompt_logprobs: list[dict[str, Any] | None] | None = None  # vLLM


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class Completion(msgspec.Struct):
    """A whole answer, or one event of a stream."""

    choices: list[Choice] = []
    usage: _Usage | None = None
    error: Any = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None  # vLLM's chat

    def lacks(self, count: int) -> str | None:
        """What a whole answer for `count` samples has, and this one has not. None if it is complete."""
        if not self.choices:
            return "choices"
        places = {choice.index for choice in self.choices}
        if len(places) < len(self.choices):
            return "an index of its own for each choice"
        if len(places) < count:
            return f"{count - len(places)} of {count} choices"
        for choice in self.choices:
            # A message may be without content: so SGLang says that there is no text, and what only
            # reasoned or called a tool has none. What it ended with must be told all the same.
            if choice.text is None and choice.message is None:
                return "a message or text in its choice"
            if choice.finish_reason is None:
                return "a finish_reason"
        return None

    def counts(self) -> Counts | None:
        if self.usage is None:
            return None
        details = self.usage.prompt_tokens_details
        return Counts(
            prompt=self.usage.prompt_tokens or 0,
            completion=self.usage.completion_tokens or 0,
            cached=(details.cached_tokens or 0) if details else 0,
        )


def take(
    payload: Completion, answers: Sequence[Answer], *, server: str, token_ids: Sequence[int] = ()
) -> list[int]:
    """Add what came to the answers; the places of those that it belongs to.

    `token_ids` are those asked to stop at: a server may report others that ended the text.
    """
    if payload.error is not None:
        raise BackendError(f"{server} failed: {_words(payload.error)}")
    places = []
    for choice in payload.choices:
        if not 0 <= choice.index < len(answers):
            raise BackendError(f"{server} sent an answer that was not asked for")
        answer = answers[choice.index]
        places.append(choice.index)
        message = choice.message or choice.delta
        if message is not None and message.refusal:
            raise BackendError(f"the model of {server} refuses: {printable(message.refusal)}")
        text = choice.text or (message.content if message else None) or ""
        answer.add(text, choice.logprobs.reported() if choice.logprobs else ())
        if choice.finish_reason is not None:
            answer.ended = True
            answer.finish = finish(choice.finish_reason, server, _matched(choice, token_ids))
    counts = payload.counts()
    if counts is not None:
        share(counts, answers)
    return places


def share(counts: Counts, answers: Sequence[Answer]) -> None:
    """Give the counts of a call to its answers: each has the prompt, and an equal part of the rest."""
    each, more = divmod(counts.completion, len(answers))
    for place, answer in enumerate(answers):
        answer.counts = Counts(
            prompt=counts.prompt, completion=each + (place < more), cached=counts.cached
        )


_FINISH: Mapping[str, FinishKind] = {
    "stop": "stop",
    "length": "length",
    "abort": "abort",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
}


def finish(reason: str, server: str, matched: str | int | None) -> Finish:
    """Why a text ended. Raises BackendError for reasons that make it something else than an answer."""
    kind = _FINISH.get(reason)
    if kind is None:
        raise BackendError(f"{server} ended the text because of {printable(reason)!r}")
    return Finish(kind=kind, matched=matched if kind == "stop" else None)


def _matched(choice: Choice, token_ids: Sequence[int]) -> str | int | None:
    for matched in (choice.stop_reason, choice.matched_stop):
        if isinstance(matched, str) or (isinstance(matched, int) and matched in token_ids):
            return matched
    return None


def _words(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message", error)
    return printable(error if isinstance(error, str) else repr(error))


def _bytes(token: _Top) -> bytes:
    try:
        return token.token.encode() if token.bytes is None else bytes(token.bytes)
    except (ValueError, OverflowError):
        raise BackendError("a token's bytes are none") from None


def _sorted(top: dict[str, float] | None) -> tuple[tuple[bytes, float], ...]:
    ordered = sorted((top or {}).items(), key=lambda entry: -entry[1])
    return tuple((token.encode(), logprob) for token, logprob in ordered)
