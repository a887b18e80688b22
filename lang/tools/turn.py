"""A turn of a tool loop: what may be asked of it, and what it asks for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.options import SamplingOptions
from stolon.lang.tools.call import BEGIN, END, ToolCall
from stolon.lang.tools.tool import Tool

_TAG_BEGUN = len("<t")  # less of it is no sign of a call


def check_options(options: SamplingOptions, tools: Iterable[Tool]) -> None:
    """Refuse what no turn can honour: several samples, and stop strings that end every call."""
    if options.n not in (None, 1):
        raise InvalidRequest(
            f"a turn of a tool loop is one sample: n can't be {options.n}",
            param="n",
            hint="give the turns n=1, or run the program several times",
        )
    forms = [form for t in tools for form in _forms(t)]
    for stop in options.stop or ():
        if any(stop in form for form in forms):
            raise InvalidRequest(
                f"the stop string {stop!r} is part of what calls are written in and would cut them off",
                param="stop",
                hint="give the turns stop strings that calls don't contain, or stop=[]",
            )


def _forms(t: Tool) -> tuple[str, str]:
    """Text around the arguments of a call of a tool, with no arguments and with a last one in quotes."""
    begin = f'{BEGIN}\n{{"name": {json.dumps(t.name)}, "arguments": {{'
    return f'{begin}"', f'"}}}}\n{END}\n{begin}}}}}\n{END}'


def calls_of(
    calls: list[ToolCall],
    text: str,
    facts: Mapping[str, Any],
    options: SamplingOptions,
    *,
    required: bool,
) -> list[ToolCall]:
    """The calls of a turn; one that was cut off has a problem that says by what.

    Args:
        calls: as `parse_calls` found them in `text`.
        facts: `ProgramState.get_meta_info` of the turn.
        options: of the turn, with those of the run.
        required: it had to call a tool.

    Raises InvalidRequest if the turn was cut off before the call that it had to begin with.
    """
    param, by = _cut_by(facts, options)
    if not calls:
        if required and param is not None:
            raise InvalidRequest(
                f"the turn must call a tool and was cut off by {by} before it could", param=param
            )
        if required:
            return [ToolCall("", text, "this turn must call a tool")]
        if param is None or not _tag_begun(text):
            return []
        calls = [ToolCall("", text, "")]
    elif END in text.rpartition(BEGIN)[2]:
        return calls
    return [*calls[:-1], replace(calls[-1], problem=f"the call is cut off by {by}")]


def _cut_by(facts: Mapping[str, Any], options: SamplingOptions) -> tuple[str | None, str]:
    """The option that ended a turn, None if it was the model, and what it was in words."""
    finish = facts["finish_reason"]
    limit = options.max_tokens
    if finish["type"] == "length":
        if limit is not None and facts["completion_tokens"] < limit:
            return "max_tokens", "the end of the model's context"
        return "max_tokens", f"max_tokens={limit}"
    matched = finish["matched"]
    for param in ("stop", "stop_token_ids"):
        if matched in (getattr(options, param) or ()):
            return param, f"{param}={matched!r}"
    if options.stop_regex and isinstance(matched, str):
        return "stop_regex", f"stop_regex, which matched {matched!r}"
    return None, "the model's end of the turn"


def _tag_begun(text: str) -> bool:
    return any(text.endswith(BEGIN[:size]) for size in range(_TAG_BEGUN, len(BEGIN)))
