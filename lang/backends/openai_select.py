"""Selections on servers: choices scored by the log-probs of given text, or one of them generated."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.answers import NO_COUNTS, Counts
from stolon.lang.backends.dialects import Dialect, Endpoint
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.http import HTTPClient
from stolon.lang.backends.openai_wire import Completion
from stolon.lang.backends.remote import together
from stolon.lang.backends.transcript import Transcript, TranscriptTokenizer
from stolon.srt.protocol import (
    ChoiceScore,
    Gen,
    GrammarSpec,
    Sampling,
    Select,
    SelectMethod,
    SelectResult,
    Usage,
)

if TYPE_CHECKING:
    from stolon.lang.backends.openai import OpenAI

AT_ONCE = 16
"""Choices that are scored at the same time."""

Place = Callable[[Transcript], tuple[Endpoint, dict[str, Any]]]


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
        counts = reply.counts() or NO_COUNTS
        listed = reply.choices[0].logprobs if reply.choices else None
        if listed is None or listed.tokens is None or listed.token_logprobs is None:
            raise BackendError(f"{self.http.server} sent no log-probs of the prompt")
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


async def score(
    scorer: Scorer,
    endpoint: Endpoint,
    before: Transcript,
    select: Select,
    place: Place,
    sample: int,
    tokenizer: TranscriptTokenizer,
) -> SelectResult:
    """Score every choice after the text before, and take the best or draw one.

    The tokens of a choice are those after the ones that all choices share with the text before: where
    a choice melts into the last token of the text, that token counts for all of them.
    """
    alone = select.method == "unconditional_likelihood_normalized"
    if alone and endpoint == "chat":
        raise refuse(
            scorer.row,
            "unconditional_likelihood_normalized in a message",
            param="choices_method",
            hint="there is no text without context in a chat",
        )
    if not before.text:
        raise refuse(
            scorer.row, "select() with nothing before it", param="choices", hint="begin with a text"
        )
    texts = [before, *(_continued(before, choice) for choice in select.choices)]
    places = [place(text)[1] for text in texts]
    if endpoint == "chat" and not before.begun:
        # The text before ends where an answer begins: this is what the server makes of it.
        places[0] = {"messages": places[0]["messages"]}
    given, *choices = await _batched(scorer, endpoint, places)
    start = _shared(given, choices, scorer.http.server)
    lone = await _alone(scorer, select.choices, choices, start) if alone else None
    return _result(select, choices, start, lone, sample, tokenizer)


def _continued(before: Transcript, choice: str) -> Transcript:
    return Transcript(
        text=before.text + choice,
        messages=before.messages,
        open=before.open,
        begun=before.begun + choice,
        outside=before.outside,
    )


async def _batched(
    scorer: Scorer, endpoint: Endpoint, places: Sequence[Mapping[str, Any]]
) -> list[Scored]:
    # The first one alone: the others find it in the server's prefix cache.
    scored = [await scorer(endpoint, places[0])]
    for at in range(1, len(places), AT_ONCE):
        scored += await together(scorer(endpoint, one) for one in places[at : at + AT_ONCE])
    return scored


def _shared(given: Scored, choices: Sequence[Scored], server: str) -> int:
    """How many tokens of the text before all choices begin with; one at least is left of each choice."""
    rows = [given.tokens, *(choice.tokens for choice in choices)]
    most = min(len(given.tokens), *(len(choice.tokens) - 1 for choice in choices))
    start = next((at for at in range(most) if len({row[at] for row in rows}) > 1), most)
    if start <= 0:
        raise BackendError(f"{server} reads the text before the choices differently each time")
    return start


async def _alone(
    scorer: Scorer, texts: Sequence[str], choices: Sequence[Scored], start: int
) -> list[list[float]]:
    """Log-probs of the choices' tokens without anything before. The first one counts as 0."""
    alone = await _batched(scorer, "completions", [{"prompt": text} for text in texts])
    rows = []
    for text, one, within in zip(texts, alone, choices, strict=True):
        wanted = within.tokens[start:]
        # A beginning-of-sequence token may stand before it.
        extra = len(one.tokens) - len(wanted)
        named = [*(wanted[:1] if one.tokens[0] == UNKNOWN else one.tokens[:1]), *one.tokens[1:]]
        if not (extra == 0 and named == wanted) and not (extra == 1 and one.tokens[1:] == wanted):
            raise refuse(
                scorer.row,
                f"unconditional_likelihood_normalized for {text[:40]!r}",
                param="choices_method",
                hint="alone it is other tokens than after this text",
            )
        rows.append([0.0 if value is None else value for value in one.logprobs[extra:]])
    return rows


def _result(
    select: Select,
    choices: Sequence[Scored],
    start: int,
    alone: Sequence[Sequence[float]] | None,
    sample: int,
    tokenizer: TranscriptTokenizer,
) -> SelectResult:
    rows = [[0.0 if value is None else value for value in one.logprobs[start:]] for one in choices]
    normalized = [
        _normalized(select.method, row, alone[at] if alone else None) for at, row in enumerate(rows)
    ]
    index = _winner(select, rows, normalized, sample)
    scores = [
        ChoiceScore(
            text=text,
            token_ids=[tokenizer.piece(token.encode()) for token in one.texts[start:]],
            token_logprobs=row,
            logprob=sum(row),
            normalized=value,
            unconditional=sum(alone[at]) if alone else None,
        )
        for at, (text, one, row, value) in enumerate(
            zip(select.choices, choices, rows, normalized, strict=True)
        )
    ]
    counts = choices[0].counts
    usage = Usage(
        prompt_tokens=start,
        cached_tokens=counts.cached,
        computed_tokens=sum(one.counts.prompt - one.counts.cached for one in choices),
    )
    text = select.choices[index]
    return SelectResult(
        text=text, index=index, token_ids=list(text.encode()), scores=scores, usage=usage
    )


def _normalized(method: SelectMethod, row: Sequence[float], alone: Sequence[float] | None) -> float:
    if method == "sum":
        return sum(row)
    if alone is not None:
        return sum(a - b for a, b in zip(row, alone, strict=True)) / len(row)
    return sum(row) / len(row)


def _winner(
    select: Select, rows: Sequence[Sequence[float]], normalized: Sequence[float], sample: int
) -> int:
    if select.method == "greedy_token_selection":
        return _greedy(rows, normalized)
    if select.temperature:
        return _drawn(normalized, select, sample)
    return max(range(len(rows)), key=lambda at: (normalized[at], -at))


def _greedy(rows: Sequence[Sequence[float]], means: Sequence[float]) -> int:
    """Compare position by position and keep the maxima; a shorter choice is padded with its own mean."""
    alive = list(range(len(rows)))
    for position in range(max(map(len, rows))):
        values = {at: rows[at][position] if position < len(rows[at]) else means[at] for at in alive}
        best = max(values.values())
        alive = [at for at in alive if values[at] == best]
    return alive[0]


def _drawn(scores: Sequence[float], select: Select, sample: int) -> int:
    """A choice in proportion to exp(score / temperature), by the select's seed."""
    high = max(scores)
    weights = [math.exp((value - high) / select.temperature) for value in scores]
    number = random.Random(f"{select.seed}/{sample}").random() * sum(weights)
    for at, weight in enumerate(weights):
        number -= weight
        if number < 0:
            return at
    return len(weights) - 1


async def constrained(backend: OpenAI, before: Transcript, select: Select) -> SelectResult:
    """Let the server generate one of the choices, greedily. There are no scores."""
    if select.method != "greedy_token_selection" or select.temperature:
        raise refuse(
            backend.row,
            f"select() with {select.method} and select='constrained'",
            param="choices_method",
            hint="choices_method=sl.greedy_token_selection",
        )
    choices = msgspec.json.encode(select.choices).decode()
    gen = Gen(
        name=select.name,
        sampling=Sampling(temperature=0.0, max_tokens=max(map(len, select.choices)) * 4 + 1),
        grammar=GrammarSpec(kind="choice", text=choices),
    )
    (answer,) = await backend.generate(before, gen, [0], None)
    if answer.text not in select.choices:
        raise BackendError(
            f"{backend.server} answered none of the choices",
            hint=f"it answered {answer.text[:80]!r}",
        )
    return SelectResult(
        text=answer.text,
        index=select.choices.index(answer.text),
        token_ids=list(answer.text.encode()),
        scores=[],
        usage=answer.result(backend.letters, None).usage,
    )
