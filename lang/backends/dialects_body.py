"""From what a program asks for to the fields of a request in a server's dialect, or a refusal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from stolon.errors import InvalidRequest
from stolon.lang.backends.dialect import Dialect, Endpoint, Spelling
from stolon.srt.protocol import Gen, GrammarSpec, LogprobSpec, Sampling
from stolon.srt.remote_grammar import to_gbnf

_DEFAULTS = Sampling()
# These change nothing about the text: how an engine of ours gets there faster, and where it counts.
_OURS = frozenset({"max_tokens", "jump_forward", "speculation"})
_FIELDS = tuple(name for name in Sampling.__struct_fields__ if name not in _OURS)

_HINTS = {
    "stop_regex": "search the text in the program, or use stop=",
    "close_at_budget": "raise max_tokens; only an engine of Stolon closes text in time",
}


def refuse(
    row: Dialect, ability: str, *, param: str | None, hint: str | None = None
) -> InvalidRequest:
    """The error for what a server can't do."""
    return InvalidRequest(f"{row.title} can't honour {ability}", param=param, hint=hint)


def sampling_fields(sampling: Sampling, row: Dialect, *, sample: int = 0) -> dict[str, Any]:
    """Everything but the limit of tokens. `sample` tells the seeds of samples asked for one by one apart."""
    fields: dict[str, Any] = dict(row.fixed)
    for name in _FIELDS:
        value = getattr(sampling, name)
        if value == getattr(_DEFAULTS, name) and name not in row.always:
            continue
        spelled = row.sampling.get(name)
        if spelled is None:
            if name == "seed":
                continue  # every generation has one; docs/backends.md says who takes none
            raise refuse(row, name, param=name, hint=_HINTS.get(name))
        if name == "seed":
            value = (value + sample) % (1 << row.seed_bits)
        elif name == "top_k" and value == 0:
            value = row.top_k_off
        elif name == "logit_bias":
            value = {str(token): bias for token, bias in value.items()}
        elif name == "stop" and row.stops is not None and len(value) > row.stops:
            raise refuse(row, f"more than {row.stops} stop strings", param="stop")
        fields[spelled] = value
    return fields


def limit_fields(max_tokens: int | None, row: Dialect, endpoint: Endpoint) -> dict[str, Any]:
    """How many tokens at most."""
    name = row.max_tokens if endpoint == "chat" else "max_tokens"
    if max_tokens is not None:
        return {name: max_tokens}
    if endpoint == "chat" or row.unlimited == "omit":
        return {}
    if row.unlimited is None:
        raise refuse(
            row,
            "max_tokens=None without messages",
            param="max_tokens",
            hint="its own limit would be 16 tokens; give a number",
        )
    return {name: row.unlimited}


def logprob_fields(spec: LogprobSpec | None, row: Dialect, endpoint: Endpoint) -> dict[str, Any]:
    if spec is None:
        return {}
    if endpoint not in row.logprobs:
        raise refuse(row, "return_logprob", param="return_logprob")
    if spec.mode != "raw":
        raise refuse(row, f"log-probs in the mode {spec.mode!r}", param="logprobs")
    if spec.top > row.max_top:
        raise refuse(row, f"more than {row.max_top} top log-probs", param="top_logprobs_num")
    top = max(spec.top, row.least_top)
    if endpoint == "completions":
        return {"logprobs": top}
    # Also where it is 0: llama-cpp-python reports nothing without it.
    return {"logprobs": True, "top_logprobs": top}


def constraint_fields(spec: GrammarSpec | None, row: Dialect, endpoint: Endpoint) -> dict[str, Any]:
    """What asks for text of this grammar."""
    if spec is None:
        return {}
    spelling = row.constraints_of(endpoint).get(spec.kind)
    if spelling is None:
        able = ", ".join(row.constraints_of(endpoint)) or "no constraint"
        raise refuse(
            row,
            f"a constraint of the kind {spec.kind}" + _without(endpoint),
            param=spec.kind,
            hint=f"it takes {able}" + _without(endpoint),
        )
    for name in ("after", "best_effort"):
        if getattr(spec, name):
            raise refuse(row, f"{name} of a constraint", param=name)
    if spec.whitespace == "compact":
        raise refuse(row, "whitespace='compact'", param="whitespace")
    *outer, last = spelling.path.split(".")
    fields: dict[str, Any] = {last: _form(spec, spelling), **spelling.around}
    for key in reversed(outer):
        fields = {key: fields}
    return fields


def _without(endpoint: Endpoint) -> str:
    return "" if endpoint == "chat" else " for text without messages"


def _form(spec: GrammarSpec, spelling: Spelling) -> Any:
    match spelling.form:
        case "gbnf":
            return to_gbnf(spec)
        case "regex":
            return "(" + "|".join(map(_escaped, _choices(spec))) + ")"
        case "list":
            return _choices(spec)
        case "schema":
            return _schema(spec)
        case "response_format":
            schema = {"name": "answer", "schema": _schema(spec), "strict": True}
            return {"type": "json_schema", "json_schema": schema}
        case "json_object":
            return {"type": "json_object"}
        case "object_schema":
            return {"type": "object"}
        case "true":
            return True
        case "text" | "schema_text":
            return spec.text


def _schema(spec: GrammarSpec) -> Any:
    try:
        return msgspec.json.decode(spec.text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidRequest(
            f"the schema is not valid JSON: {error}", param="json_schema"
        ) from None


def _choices(spec: GrammarSpec) -> list[str]:
    try:
        choices: list[str] = msgspec.json.decode(spec.text, type=list[str])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            f"choices must be a list of strings: {error}", param="choices"
        ) from None
    return choices


def _escaped(text: str) -> str:
    """The text as a regular expression that any engine reads alike."""
    return re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", text).replace("\n", r"\n")


def merged(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Fields put together; objects under the same key are put together too."""
    whole: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            old = whole.get(key)
            whole[key] = (
                merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
            )
    return whole


def generation_fields(
    gen: Gen, row: Dialect, endpoint: Endpoint, *, sample: int = 0
) -> dict[str, Any]:
    """All fields of a generation besides the prompt."""
    return merged(
        sampling_fields(gen.sampling, row, sample=sample),
        limit_fields(gen.sampling.max_tokens, row, endpoint),
        logprob_fields(gen.logprobs, row, endpoint),
        constraint_fields(gen.grammar, row, endpoint),
    )
