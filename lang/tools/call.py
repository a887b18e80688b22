"""Calls as a model writes them, and what came of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

BEGIN = "<tool_call>"
END = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the tool.
        arguments: JSON text, usually of an object; what was written, if it could not be read.
        problem: why the call can't be made, if it can't.
    """

    name: str
    arguments: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call brought.

    Attributes:
        call: the call.
        text: what the model is shown.
        value: what the tool returned; None if it failed.
        error: what it raised, or what was wrong with the call.
    """

    call: ToolCall
    text: str
    value: Any = None
    error: Exception | None = None


def parse_calls(text: str) -> tuple[str, list[ToolCall]]:
    """The text around the calls of a turn, and the calls in their order.

    A call is a JSON object with ``name`` and ``arguments`` between ``<tool_call>`` and ``</tool_call>``
    (the Hermes format; Qwen's too). One that can't be read has a `problem`.
    """
    said: list[str] = []
    calls: list[ToolCall] = []
    while True:
        before, begins, rest = text.partition(BEGIN)
        said.append(before)
        if not begins:
            return "".join(said).strip(), calls
        body, ends, text = rest.partition(END)
        if ends:
            calls.append(_parse(body))
        else:
            calls.append(ToolCall("", body.strip(), f"the call is cut off: it has no {END}"))


def _parse(body: str) -> ToolCall:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ToolCall("", body.strip(), "the call is not valid JSON")
    if not isinstance(found, dict) or not isinstance(found.get("name"), str):
        return ToolCall("", body.strip(), "a call is an object with name and arguments")
    arguments = found.get("arguments", {})
    if isinstance(arguments, str):  # some models write JSON within JSON
        return ToolCall(found["name"], arguments)
    return ToolCall(found["name"], json.dumps(arguments, ensure_ascii=False))
