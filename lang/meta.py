"""What is known of a finished call besides its text: log-probs, token counts, scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from stolon.lang.calls import Call
from stolon.srt.protocol import (
    ChoiceScore,
    GenResult,
    Select,
    SelectMethod,
    SelectResult,
    TokenLogprob,
)
from stolon.srt.tokenizer import Tokenizer


class ChoiceScores(Mapping[str, float]):
    """Log-prob (natural log, summed over its tokens) of each choice of a selection, by its text.

    Attributes:
        best: the chosen text.
        method: how the choices were compared.
        details: `protocol.ChoiceScore` of each choice, in the order they were given.
    """

    def __init__(self, result: SelectResult, method: SelectMethod) -> None:
        self.best = result.text
        self.method = method
        self.details: Sequence[ChoiceScore] = tuple(result.scores)
        self._by_text = {score.text: score for score in result.scores}

    def __getitem__(self, choice: str) -> float:
        return self._by_text[choice].logprob

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_text)

    def __len__(self) -> int:
        return len(self._by_text)

    def normalized(self, choice: str) -> float:
        """The score that the method compared."""
        return self._by_text[choice].normalized

    def _append_hint(self) -> str:
        return "append .best, or the score of one choice"

    def __repr__(self) -> str:
        inside = ", ".join(f"{text!r}: {self[text]:.3f}" for text in self)
        return f"ChoiceScores({{{inside}}}, best={self.best!r})"


def meta_info(
    call: Call, tokenizer: Tokenizer, *, sample: int | None = None
) -> dict[str, Any] | list[dict[str, Any]]:
    """Facts about a settled call as plain data; a list of them when there are several samples.

    With `sample` those of that one alone.
    """
    if sample is not None:
        return _entry(call, sample, tokenizer)
    entries = [_entry(call, sample, tokenizer) for sample in range(call.n)]
    return entries[0] if call.n == 1 else entries


def _entry(call: Call, sample: int, tokenizer: Tokenizer) -> dict[str, Any]:
    result = call.outcome(sample)
    entry: dict[str, Any] = msgspec.to_builtins(result.usage)
    entry["completion_tokens"] = result.usage.completion_tokens
    entry["output_ids"] = list(result.token_ids)
    if isinstance(result, GenResult):
        entry["finish_reason"] = {"type": result.finish.kind, "matched": result.finish.matched}
        if result.logprobs is not None:
            entry |= logprob_fields(result.logprobs, tokenizer if call.spelled else None)
        if call.prompt is not None:
            entry |= _prompt_fields(call, tokenizer if call.spelled else None)
        return entry
    entry["finish_reason"] = {"type": "stop", "matched": None}
    return entry | _choice_fields(call, result, tokenizer)


def _choice_fields(call: Call, result: SelectResult, tokenizer: Tokenizer) -> dict[str, Any]:
    """What SGLang reports of a selection, one entry per choice in the order they were given."""
    scores = result.scores
    means = [sum(score.token_logprobs) / len(score.token_logprobs) for score in scores]
    fields: dict[str, Any] = {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": [
            [
                (logprob, token, _spelling(token, tokenizer))
                for token, logprob in zip(score.token_ids, score.token_logprobs, strict=True)
            ]
            for score in scores
        ],
        "output_token_logprobs": [[] for _ in scores],  # a selection samples nothing
    }
    method = call.segment.method if isinstance(call.segment, Select) else None
    if method == "greedy_token_selection":
        longest = max(len(score.token_logprobs) for score in scores)
        fields["greedy_logprob_matrix"] = [
            [*score.token_logprobs, *[mean] * (longest - len(score.token_logprobs))]
            for score, mean in zip(scores, means, strict=True)
        ]
    if method == "unconditional_likelihood_normalized":
        fields["normalized_unconditional_prompt_logprobs"] = [s.normalized for s in scores]
    return fields


def _prompt_fields(call: Call, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Log-probs of the tokens before a generation, from `logprob_start_len` on."""
    entries = call.prompt or []
    fields: dict[str, Any] = {
        "input_token_logprobs": [
            (entry.logprob, entry.token, _spelling(entry.token, tokenizer)) for entry in entries
        ]
    }
    if call.prompt_logprobs is not None and call.prompt_logprobs.top:
        fields["input_top_logprobs"] = _alternatives(entries, tokenizer)
    return fields


def logprob_fields(logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Log-probs as (log-prob, token id, text) triples, one per token; without a tokenizer no text."""
    return {
        "output_token_logprobs": [
            (entry.logprob, entry.token, _spelling(entry.token, tokenizer)) for entry in logprobs
        ],
        "output_token_logprobs_length": len(logprobs),
        "output_top_logprobs": _alternatives(logprobs, tokenizer),
    }


def _alternatives(
    logprobs: Sequence[TokenLogprob], tokenizer: Tokenizer | None
) -> list[list[tuple[float, int, str | None]]]:
    return [
        [(logprob, token, _spelling(token, tokenizer)) for token, logprob in entry.top]
        for entry in logprobs
    ]


def _spelling(token: int, tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.decode([token], skip_special=False)
