"""Keyword arguments of `Engine.generate` as requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, TypedDict, get_args
from uuid import uuid4

from stolon.constrained import GrammarKind, GrammarSpec
from stolon.errors import InvalidRequest
from stolon.srt.protocol import (
    Gen,
    JumpForward,
    LogprobMode,
    LogprobSpec,
    PromptLogprobs,
    Request,
    Sampling,
    Segment,
    Speculation,
    Text,
    Tokens,
)

_SAMPLING_FIELDS = frozenset(Sampling.__struct_fields__) - {"seed"}


class GenerateOptions(TypedDict, total=False):
    """What `Engine.generate` takes besides the prompt. See `Sampling` for the sampling fields.

    At most one constraint: ``regex``, ``json_schema``, ``choices``, ``ebnf``, ``lark`` or ``structural_tag``
    (docs/grammars.md); ``after`` is a text that the model says before it holds.

    ``include_stop`` leaves the stop string or token in the text. ``return_logprob`` asks for those of the
    tokens, ``top_logprobs_num`` for as many alternatives, ``logprob_mode`` of which distribution they are:
    "raw" (the model's logits), "tempered" or "processed" (what was drawn from). ``prompt_logprobs``: those
    of the prompt's tokens, with as many alternatives. Prompts of unlike ``salt`` share nothing in the cache.
    """

    n: int
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: dict[int, float]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    stop_regex: str | Sequence[str]
    ignore_eos: bool
    include_stop: bool
    skip_special_tokens: bool
    jump_forward: JumpForward
    speculation: Speculation
    close_at_budget: bool
    regex: str
    json_schema: str | dict[str, Any] | bool
    choices: Sequence[str]
    ebnf: str
    lark: str
    structural_tag: str | dict[str, Any]
    after: str
    return_logprob: bool
    top_logprobs_num: int
    logprob_mode: LogprobMode
    prompt_logprobs: int | None
    salt: str


def build_requests(
    prompt: str | Sequence[str] | None,
    input_ids: Sequence[int] | Sequence[Sequence[int]] | None,
    options: GenerateOptions,
) -> tuple[list[Request], bool]:
    """One request a prompt, and whether there are several prompts.

    Raises InvalidRequest for unknown or contradictory options.
    """
    if isinstance(prompt, list | tuple):
        if input_ids is not None:
            raise InvalidRequest("give exactly one of prompt and input_ids", param="prompt")
        return [_request(text, None, options) for text in prompt], True
    if prompt is None and isinstance(input_ids, list | tuple):
        nested = [ids for ids in input_ids if not hasattr(ids, "__index__")]
        if nested and len(nested) == len(input_ids):
            return [_request(None, ids, options) for ids in nested], True
    return [_request(prompt, input_ids, options)], False


def _request(prompt: object, input_ids: object, options: GenerateOptions) -> Request:
    unknown = set(options) - set(GenerateOptions.__annotations__)
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {sorted(unknown)[0]!r}",
            param=sorted(unknown)[0],
            hint="known: " + ", ".join(sorted(GenerateOptions.__annotations__)),
        )
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("give exactly one of prompt and input_ids", param="prompt")
    want_prompt = options.get("prompt_logprobs")
    if want_prompt is not None:
        _integer(want_prompt, "prompt_logprobs")
    known: Segment
    if prompt is None:
        known = Tokens(_token_ids(input_ids))
    elif isinstance(prompt, str):
        known = Text(prompt)
    else:
        raise InvalidRequest(
            f"a prompt must be text, not {type(prompt).__name__}",
            param="prompt",
            hint="give token ids as input_ids",
        )
    gen = Gen(sampling=_sampling(options), grammar=_grammar(options), logprobs=_logprobs(options))
    return Request(
        rid=uuid4().hex,
        segments=[known, gen],
        n=_integer(options.get("n", 1), "n"),
        salt=_text(options.get("salt") or "", "salt"),
        prompt_logprobs=None if want_prompt is None else PromptLogprobs(start=want_prompt),
    )


def _token_ids(input_ids: object) -> list[int]:
    try:
        ids: list[int] = list(input_ids)  # type: ignore[call-overload]
        if set(map(type, ids)) <= {int}:
            return ids
        # Of numpy and torch. What a truth value is shows in the plain value only.
        plain: list[Any] = [value.tolist() if hasattr(value, "tolist") else value for value in ids]
        if bool in set(map(type, plain)):
            raise InvalidRequest(
                "input_ids must be token ids, and True and False are none", param="input_ids"
            )
        return list(map(index, plain))
    except TypeError:
        raise InvalidRequest(
            "input_ids must be a list of token ids, or a list of such lists", param="input_ids"
        ) from None


def _sampling(options: GenerateOptions) -> Sampling:
    fields: dict[str, Any] = {k: v for k, v in options.items() if k in _SAMPLING_FIELDS}
    for name in ("stop", "stop_regex", "stop_token_ids"):
        if name in fields:
            value = fields[name]
            one = isinstance(value, str) and name != "stop_token_ids"
            several = () if value is None else (value,) if one else _several(value, name)
            fields[name] = tuple(several)
    return Sampling(seed=options.get("seed"), **fields)


def _logprobs(options: GenerateOptions) -> LogprobSpec | None:
    given = options.get("top_logprobs_num")
    top = 0 if given is None else _integer(given, "top_logprobs_num")
    mode = options.get("logprob_mode")
    if mode not in (None, *get_args(LogprobMode)):
        known = ", ".join(get_args(LogprobMode))
        raise InvalidRequest(
            f"logprob_mode must be one of {known}, not {mode!r}", param="logprob_mode"
        )
    wanted = options.get("return_logprob")
    if wanted is None:
        wanted = top > 0
    if not isinstance(wanted, bool):
        raise InvalidRequest(
            f"return_logprob must be True or False, not {wanted!r}", param="return_logprob"
        )
    if not wanted:
        for name in ("top_logprobs_num", "logprob_mode"):
            if options.get(name):
                raise InvalidRequest(f"{name} needs return_logprob=True", param=name)
        return None
    return LogprobSpec(top=top, mode=mode or "raw")


# Options that constrain a text, and the kinds of GrammarSpec that they are.
_CONSTRAINTS: dict[str, GrammarKind] = {
    "regex": "regex",
    "json_schema": "json_schema",
    "choices": "choice",
    "ebnf": "ebnf",
    "lark": "lark",
    "structural_tag": "structural_tag",
}


def _grammar(options: GenerateOptions) -> GrammarSpec | None:
    after = _text(options.get("after") or "", "after")
    values: dict[str, Any] = {k: v for k, v in options.items() if v is not None}
    given = [name for name in _CONSTRAINTS if name in values]
    if not given:
        if after:
            raise InvalidRequest(
                "after says where a constraint begins, and there is none", param="after"
            )
        return None
    if len(given) > 1:
        raise InvalidRequest(
            f"{given[0]} and {given[1]} can't both constrain a text", param=given[1]
        )
    name = given[0]
    value = values[name]
    if name == "choices":
        value = list(_several(value, name))
    elif name in ("regex", "ebnf", "lark"):
        value = _text(value, name)
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"{name} is no JSON: {error}", param=name) from None
    return GrammarSpec(kind=_CONSTRAINTS[name], text=text, after=after)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be text, not {value!r}", param=name)
    return value


def _several(value: object, name: str) -> Iterable[Any]:
    """A list or another iterable, but none that only seems to be one."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{name} must be a list, not {value!r}", param=name)
    return value


def _integer(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", param=name)
    return value
