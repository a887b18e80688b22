"""Selections on servers: choices scored by the log-probs of given text, or one of them generated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from stolon.errors import BackendError
from stolon.lang.backends.choice_scores import compared
from stolon.lang.backends.dialect import Endpoint
from stolon.lang.backends.dialects_body import refuse
from stolon.lang.backends.scorer import UNKNOWN, Scored, Scorer
from stolon.lang.backends.together import together
from stolon.lang.backends.transcript import Transcript, TranscriptTokenizer
from stolon.srt.protocol import Gen, GrammarSpec, Sampling, Select, SelectResult

if TYPE_CHECKING:
    from stolon.lang.backends.openai import OpenAI

AT_ONCE = 16
"""Choices that are scored at the same time."""

Place = Callable[[Transcript], tuple[Endpoint, dict[str, Any]]]


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
    return compared(select, choices, start, lone, sample, tokenizer)


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
