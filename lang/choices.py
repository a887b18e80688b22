"""What a selection chooses among: checked, and made an expression."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any, get_args

from stolon.errors import InvalidRequest
from stolon.lang.ir import SelectExpr
from stolon.lang.options import SamplingOptions
from stolon.lang.typed import choice_values
from stolon.srt.protocol import MAX_CHOICES, Select, SelectMethod

Choices = Iterable[str | tuple[str, Any]]
"""Texts, or pairs of a text and the value that it stands for."""

token_length_normalized: SelectMethod = "token_length_normalized"
greedy_token_selection: SelectMethod = "greedy_token_selection"
unconditional_likelihood_normalized: SelectMethod = "unconditional_likelihood_normalized"


_HINTS = {
    dict: "the texts with their values are list(choices.items())",
    set: "a set has no order; sort it",
}


def selection(
    name: str | None,
    choices: Choices,
    method: SelectMethod | None,
    options: SamplingOptions,
) -> SelectExpr:
    for key in options.given():
        if key in ("temperature", "seed"):
            continue
        if key == "n" and options.n == 1:
            continue
        raise InvalidRequest(
            f"{key} contradicts choices: a selection scores every choice and samples no tokens",
            param=key,
        )
    if isinstance(choices, str | bytes | Mapping | Set) or not isinstance(choices, Iterable):
        raise InvalidRequest(
            f"choices must be a list of strings, or of pairs (text, value), not {choices!r}",
            param="choices",
            hint=_HINTS.get(type(choices)),
        )
    texts, decode = choice_values(choices)
    if not 1 <= len(texts) <= MAX_CHOICES:
        raise InvalidRequest(
            f"choices needs 1 to {MAX_CHOICES} entries, not {len(texts)}", param="choices"
        )
    if len(set(texts)) < len(texts):
        twice = next(text for text in texts if texts.count(text) > 1)
        raise InvalidRequest(f"choices lists {twice!r} twice", param="choices")
    if method is not None and method not in get_args(SelectMethod):
        raise InvalidRequest(
            f"choices_method must be one of {', '.join(get_args(SelectMethod))}, not {method!r}",
            param="choices_method",
        )
    temperature = options.temperature or 0.0
    method = method or token_length_normalized
    Select(choices=texts, method=method, temperature=temperature, seed=options.seed).validate()
    return SelectExpr(
        name=name,
        choices=texts,
        method=method,
        temperature=temperature if temperature > 1e-5 else 0.0,
        seed=options.seed,
        decode=decode,
    )
