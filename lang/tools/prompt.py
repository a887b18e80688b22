"""What a model is told about tools, and the grammar that its calls keep to."""

from __future__ import annotations

import json
from typing import Any

from stolon.lang.tools.call import BEGIN, END
from stolon.lang.tools.tool import Tool, Tools, as_tools
from stolon.srt.protocol import GrammarSpec

_NEWLINE = {"type": "const_string", "value": "\n"}


def tool_prompt(tools: Tools) -> str:
    """A description of tools (functions are made into tools) for a system message."""
    lines = [json.dumps(t.describe(), ensure_ascii=False) for t in as_tools(tools).values()]
    listed = "\n".join(lines)
    return (
        "You may call functions to help with what the user asks. The functions are described here, one "
        f"JSON object a line:\n<tools>\n{listed}\n</tools>\n"
        "To call one, write a JSON object with its name and arguments between tags:\n"
        f'{BEGIN}\n{{"name": "function", "arguments": {{"argument": "value"}}}}\n{END}\n'
        "Write an answer without tags when you need no function."
    )


def tool_grammar(tools: Tools, *, required: bool = False, parallel: bool = True) -> GrammarSpec:
    """Free text in which every call names a tool and has arguments of its schema.

    Args:
        tools: tools, or functions.
        required: the turn begins with a call.
        parallel: several calls may be made in one turn; otherwise a call ends it.
    """
    by_name = as_tools(tools)
    tags = [_tag(t) for t in by_name.values()]
    form: dict[str, Any] = {
        "type": "triggered_tags",
        "triggers": [BEGIN],
        "tags": tags,
        "at_least_one": required,
        "stop_after_first": True,
    }
    if parallel:
        # Nothing but further calls follows a call: text there would be written before the results.
        another = [{"type": "sequence", "elements": [_NEWLINE, tag]} for tag in tags]
        more = {"type": "star", "content": {"type": "or", "elements": another}}
        form = {"type": "sequence", "elements": [form, more]}
    return GrammarSpec(
        kind="structural_tag",
        text=json.dumps({"format": form}, ensure_ascii=False),
        best_effort=not all(t.exact for t in by_name.values()),
    )


def _tag(t: Tool) -> dict[str, Any]:
    return {
        "type": "tag",
        "begin": f'{BEGIN}\n{{"name": {json.dumps(t.name)}, "arguments": ',
        "content": {"type": "json_schema", "json_schema": t.parameters},
        "end": f"}}\n{END}",
    }
