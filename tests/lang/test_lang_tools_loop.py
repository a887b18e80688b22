"""The loop that calls tools until there is an answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template
from support.tool_calls import call, distance, poet, saying, weather

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.tools import tool


def test_the_loop_calls_tools_until_there_is_an_answer() -> None:
    engine = saying(
        f"{call('weather', city='Rome')}\n{call('distance', a={'city': 'R'}, b={'city': 'Oslo'})}",
        "It rains, 5 away.",
    )

    @sl.function
    def agent(s: sl.ProgramState) -> Any:
        return sl.use_tools(s, [weather, distance], "Rome?", temperature=0.0)

    state = agent.run(backend=engine)
    assert state["answer"] == "It rains, 5 away."
    assert [r.text for r in state["answer_calls"]] == ["Rome: rain for 1 days", "5.0"]
    assert [r.value for r in state.ret_value] == ["Rome: rain for 1 days", 5.0]
    roles = [m["role"] for m in state.messages()]
    assert roles == ["system", "user", "assistant", "user", "assistant"]
    assert (
        "<tool_response>\nRome: rain for 1 days\n</tool_response>" in state.messages()[3]["content"]
    )
    assert '"weather"' in state.messages()[0]["content"]
    asked = [
        segment for r in engine.received for segment in r.segments if hasattr(segment, "grammar")
    ]
    assert all(segment.grammar.kind == "structural_tag" for segment in asked)


def test_calls_of_a_turn_run_at_the_same_time() -> None:
    meet = threading.Barrier(2, timeout=10)

    def wait(who: str) -> str:
        meet.wait()
        return who

    async def hold(who: str) -> str:
        await asyncio.to_thread(meet.wait)
        return who

    for other in (wait, hold):
        engine = saying(f"{call('wait', who='a')}\n{call(other.__name__, who='b')}", "done")
        tools = {wait, other}
        state = sl.use_tools.run(tools, "Go", backend=engine)
        assert sorted(r.value for r in state["answer_calls"]) == ["a", "b"]


def test_the_last_turn_can_call_nothing() -> None:
    engine = saying(*[call("weather", city="Rome")] * 2, "enough")
    state = sl.use_tools.run([weather], "Go", rounds=2, backend=engine)
    assert len(state["answer_calls"]) == 2
    last = engine.received[-1].segments[-1]
    assert last.grammar is None  # type: ignore[union-attr]
    assert state["answer"] == "enough"


def test_a_program_as_a_tool_sees_the_conversation() -> None:
    @sl.function
    def opinion(s: sl.ProgramState, topic: str) -> str:
        """An opinion."""
        s += sl.user(f"What of {topic}?") + sl.assistant(sl.gen("view", max_tokens=5))
        return s["view"]

    turns = iter([call("opinion", topic="rain"), "So be it."])
    engine = FakeEngine(
        {
            "answer": lambda before, _: next(turns),
            "view": lambda before, _: str("Shall I?" in before),
        },
        chat_template=tiny_chat_template(),
    )
    state = sl.use_tools.run([opinion], "Shall I?", backend=engine)
    assert state["answer_calls"][0].text == "True"
    assert "view" not in state


def test_async_programs_await_their_tools() -> None:
    loops = []

    async def slow(x: int) -> int:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return x + 1

    def plain(x: int) -> int:
        return x * 2

    async def main() -> sl.ProgramState:
        engine = saying(f"{call('slow', x=1)}\n{call('plain', x=4)}", "done")
        state = await sl.ause_tools.arun([slow, plain], "Go", backend=engine)
        assert loops == [asyncio.get_running_loop()]
        return state

    state = asyncio.run(main())
    assert [r.value for r in state["answer_calls"]] == [2, 8]


def test_a_long_result_is_cut() -> None:
    def long() -> str:
        return "x" * 30_000

    state = sl.use_tools.run([long], "Go", backend=saying(call("long"), "ok"))
    text = state["answer_calls"][0].text
    assert len(text) < 20_100
    assert text.endswith("[10,000 more characters]")


def test_what_is_bound_is_no_argument_of_a_tool() -> None:
    made = tool(poet.bind(style="short"))
    assert list(made.parameters["properties"]) == ["about"]
    assert "style" in tool(poet).parameters["properties"]
    engine = saying(call("poet", about="rain"), "done")
    state = sl.use_tools.run(poet.bind(style="short"), "Go", backend=engine)
    assert [r.value for r in state.ret_value] == ["rain, short"]


def test_one_tool_needs_no_list_and_what_is_none_is_refused() -> None:
    for one in (weather, tool(weather)):
        state = sl.use_tools.run(one, "Go", backend=saying(call("weather", city="Rome"), "ok"))
        assert len(state.ret_value) == 1
    for wrong in (None, 3, "weather"):
        with pytest.raises(InvalidRequest, match="tools must be a list"):
            sl.use_tools.run(wrong, "Go", backend=saying("x"))  # type: ignore[arg-type]
