"""Tools from functions and from MCP servers, and how calls of them are constrained and read."""

from __future__ import annotations

import asyncio
import functools
import json
import sys
from typing import Any

import pytest
from support.grammar_walk import accepts, compiled
from support.tool_calls import Place, call, distance, saying, weather

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.tools import Tool, parse_calls, tool, tool_grammar, tool_prompt


def test_a_signature_and_a_docstring_make_a_tool() -> None:
    made = tool(weather)
    assert (made.name, made.description) == ("weather", "The weather of a city.")
    properties = made.parameters["properties"]
    assert properties["city"]["description"] == "where, in English"
    assert properties["days"]["description"] == "how far ahead"
    assert made.parameters["required"] == ["city"]
    assert made.validate('{"city": "Rome"}') == {"city": "Rome", "days": 1}
    with pytest.raises(ValueError):
        made.validate('{"city": "Rome", "hours": 3}')
    described = made.describe()["function"]
    assert described["name"] == "weather"
    assert tool(distance).parameters["properties"]["a"]["description"] == "from"
    assert tool(distance, name="far").validate('{"a": {"city": "X"}, "b": {"city": "Y"}}') == {
        "a": Place(city="X"),
        "b": Place(city="Y"),
    }


def test_what_can_not_be_a_tool_is_refused() -> None:
    def rest(*args: int) -> int:
        return 0

    def anything(**kwargs: int) -> int:
        return 0

    def positional(a: int, /) -> int:
        return a

    for function in (rest, anything, positional):
        with pytest.raises(InvalidRequest):
            tool(function)
    with pytest.raises(InvalidRequest, match="no name"):
        tool(weather, name="not a name")
    with pytest.raises(InvalidRequest, match="two tools"):
        tool_prompt([weather, weather])
    with pytest.raises(InvalidRequest, match="no tools"):
        tool_prompt([])


def test_calls_are_read_as_they_are_written() -> None:
    text = f"Let me see.\n{call('weather', city='Rome')}\n{call('distance')}"
    said, calls = parse_calls(text)
    assert said == "Let me see."
    assert [c.name for c in calls] == ["weather", "distance"]
    assert json.loads(calls[0].arguments) == {"city": "Rome"}
    assert parse_calls("no calls at all") == ("no calls at all", [])
    assert "no </tool_call>" in str(parse_calls("<tool_call>{")[1][0].problem)
    for broken in (
        "<tool_call>{</tool_call>",
        "<tool_call>[]</tool_call>",
        "<tool_call>{}</tool_call>",
    ):
        assert parse_calls(broken)[1][0].problem


def test_the_grammar_allows_text_and_right_calls_alone() -> None:
    spec = tool_grammar([weather])
    grammar = compiled("structural_tag", spec.text)
    good, bad = call("weather", city="Oslo"), call("weather", town="Oslo")
    for text in ("", "No need.", good, f"Hm. {good}", f"{good}\n{good}"):
        assert accepts(grammar, text), text
    for text in (bad, f"Hm. {bad}", f"{good} and so", call("other"), good[:-1]):
        assert not accepts(grammar, text), text
    single = compiled("structural_tag", tool_grammar([weather], parallel=False).text)
    assert accepts(single, good)
    assert not accepts(single, f"{good}\n{good}")
    forced = compiled("structural_tag", tool_grammar([weather], required=True).text)
    assert accepts(forced, good)
    assert not accepts(forced, "No need.")


SERVER = """
from mcp.server import MCPServer
server = MCPServer("test")

@server.tool()
def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@server.tool()
def fail() -> str:
    "Never works."
    raise RuntimeError("no")

server.run()
"""


def test_an_mcp_server_gives_tools(tmp_path: Any) -> None:
    pytest.importorskip("mcp", reason="the optional package mcp is not installed")
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    with sl.mcp_tools([sys.executable, str(script)], prefix="x_") as tools:
        assert [t.name for t in tools] == ["x_add", "x_fail"]
        assert all(isinstance(t, Tool) and not t.exact for t in tools)
        engine = saying(f"{call('x_add', a=2, b=3)}\n{call('x_fail')}", "five")
        state = sl.use_tools.run(tools, "Go", backend=engine)
    assert state["answer_calls"][0].text == "5"
    assert "tool fail" in state["answer_calls"][1].text
    assert state["answer_calls"][1].error is not None

    async def main() -> str:
        async with sl.mcp_tools([sys.executable, str(script)]) as tools:
            return await tools[0].function(a=1, b=1)  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "2"


def test_an_mcp_server_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("mcp", reason="the optional package mcp is not installed")
    with (
        pytest.raises(sl.StolonError, match="MCP server"),
        sl.mcp_tools([sys.executable, "-c", "raise SystemExit(1)"], timeout=10),
    ):
        pass
    with pytest.raises(InvalidRequest, match="no URL"), sl.mcp_tools("python server.py"):
        pass


def test_what_partial_has_fixed_is_no_argument() -> None:
    def days(month: str, leap: bool, unit: str = "d") -> int:
        """How many days a month has."""
        return 30 + leap

    made = tool(functools.partial(functools.partial(days, leap=True), unit="h"), name="leap_days")
    assert (made.name, made.description) == ("leap_days", "How many days a month has.")
    assert list(made.parameters["properties"]) == ["month"]
    assert tool(functools.partial(days, "May")).name == "days"
