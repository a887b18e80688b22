"""Keyword arguments of `Engine.generate` as requests, and its results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import index
from typing import Any, TypedDict
from uuid import uuid4

from stolon.constrained import GrammarKind, GrammarSpec
from stolon.errors import InvalidRequest
from stolon.srt.protocol import (
    Event,
    Failed,
    Finish,
    Gen,
    GenResult,
    JumpForward,
    LogprobMode,
    LogprobSpec,
    PromptDone,
    PromptLogprobs,
    Request,
    SampleDone,
    Sampling,
    Segment,
    SegmentDone,
    Speculation,
    Text,
    TokenLogprob,
    Tokens,
    Usage,
)

_SAMPLING_FIELDS = frozenset(Sampling.__struct_fields__) - {"seed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One generated sample.

    Attributes:
        text: the text, without stop strings.
        token_ids: its tokens.
        prompt_token_ids: tokens of the prompt.
        finish: why it ended.
        usage: where its tokens came from.
        logprobs: one entry per token, if asked for.
        prompt_logprobs: one entry per prompt token, if asked for.
        weights_version: of the weights that computed it.
    """

    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish: Finish
    usage: Usage
    logprobs: list[TokenLogprob] | None = None
    prompt_logprobs: list[TokenLogprob] | None = None
    weights_version: str = "0"


class GenerateOptions(TypedDict, total=False):
    """What `Engine.generate` takes besides the prompt. See `Sampling` for the sampling fields."""

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


def build_request(prompt: object, input_ids: object, options: GenerateOptions) -> Request:
    """One request for one prompt. Raises InvalidRequest for unknown or contradictory options."""
    unknown = set(options) - set(GenerateOptions.__annotations__)
    if unknown:
        raise InvalidRequest(
            f"unknown parameter {sorted(unknown)[0]!r}",
            param=sorted(unknown)[0],
            hint="known: " + ", ".join(sorted(GenerateOptions.__annotations__)),
        )
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("give exactly one of prompt and input_ids", param="prompt")
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
    want_prompt = options.get("prompt_logprobs")
    gen = Gen(sampling=_sampling(options), grammar=_grammar(options), logprobs=_logprobs(options))
    return Request(
        rid=uuid4().hex,
        segments=[known, gen],
        n=_integer(options.get("n", 1), "n"),
        salt=options.get("salt", ""),
        prompt_logprobs=None if want_prompt is None else PromptLogprobs(start=want_prompt),
    )


def _token_ids(input_ids: object) -> list[int]:
    try:
        return list(map(index, input_ids))  # type: ignore[call-overload]
    except TypeError:
        raise InvalidRequest(
            "input_ids must be a list of token ids, or a list of such lists", param="input_ids"
        ) from None


def _sampling(options: GenerateOptions) -> Sampling:
    fields: dict[str, Any] = {k: v for k, v in options.items() if k in _SAMPLING_FIELDS}
    for name in ("stop", "stop_regex"):
        if name in fields:
            value = fields[name]
            fields[name] = (value,) if isinstance(value, str) else tuple(value or ())
    if "stop_token_ids" in fields:
        fields["stop_token_ids"] = tuple(fields["stop_token_ids"] or ())
    return Sampling(seed=options.get("seed"), **fields)


def _logprobs(options: GenerateOptions) -> LogprobSpec | None:
    top = options.get("top_logprobs_num", 0)
    if not options.get("return_logprob", top > 0):
        if top:
            raise InvalidRequest(
                "top_logprobs_num needs return_logprob=True", param="top_logprobs_num"
            )
        return None
    return LogprobSpec(top=top, mode=options.get("logprob_mode", "raw"))


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
    after = options.get("after", "")
    given = [name for name in _CONSTRAINTS if name in options]
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
    value: Any = dict(options)[name]
    if name == "choices":
        value = list(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return GrammarSpec(kind=_CONSTRAINTS[name], text=text, after=after)


def _integer(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {value!r}", param=name)
    return value


class Collector:
    """Gathers the events of a one-generation request into a future of its Outputs, one per sample.

    Called from the engine's thread; wait on `future` from any other.
    """

    def __init__(self, samples: int, *, weights_version: str) -> None:
        self.future: Future[list[Output]] = Future()
        self._open = samples
        self._version = weights_version
        self._results: dict[int, GenResult] = {}
        self._prompts: dict[int, list[int]] = {}
        self._prompt_logprobs: list[TokenLogprob] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Failed):
            if not self.future.done():
                self.future.set_exception(event.error())
        elif isinstance(event, PromptDone):
            self._prompt_logprobs = event.logprobs
        elif isinstance(event, SegmentDone) and isinstance(event.result, GenResult):
            self._results[event.sample] = event.result
        elif isinstance(event, SampleDone):
            self._prompts[event.sample] = event.token_ids[: event.prompt_tokens]
            self._open -= 1
            if not self._open and not self.future.done():
                self.future.set_result([self._output(i) for i in sorted(self._prompts)])

    def _output(self, sample: int) -> Output:
        result = self._results[sample]
        return Output(
            text=result.text,
            token_ids=result.token_ids,
            prompt_token_ids=self._prompts[sample],
            finish=result.finish,
            usage=result.usage,
            logprobs=result.logprobs,
            prompt_logprobs=self._prompt_logprobs,
            weights_version=self._version,
        )
