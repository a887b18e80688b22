"""The loop of an agent, as programs: call tools until the model answers without one."""

from __future__ import annotations

import asyncio
from typing import Any

from stolon.lang.message_words import assistant
from stolon.lang.program import function
from stolon.lang.runtime_loop import spawn
from stolon.lang.state import ProgramState
from stolon.lang.tools.call import ToolResult
from stolon.lang.tools.desk import MAX_RESULT_CHARS, Desk
from stolon.lang.tools.tool import Tools


@function
def use_tools(
    s: ProgramState,
    tools: Tools,
    question: str | None = None,
    *,
    name: str = "answer",
    rounds: int = 8,
    required: bool = False,
    parallel: bool = True,
    describe: bool | None = None,
    max_result: int = MAX_RESULT_CHARS,
    **options: Any,
) -> list[ToolResult]:
    """Let the model call tools until it answers, or `rounds` turns are over: then it answers without.

    The calls of one turn run at the same time, each program among them in a fork of the conversation. What
    a tool raises is shown to the model as its result; what is wrong with the tools or the arguments given
    here is raised before anything is generated. The answer is the variable `name`, the results are returned
    and are the variable ``{name}_calls``.

    Args:
        tools: functions, programs, or what `tool` and `mcp_tools` made; a single one needs no list.
        question: a user message to begin with.
        rounds: turns in which tools may be called.
        required: the first turn calls a tool.
        parallel: a turn may make several calls.
        describe: say in a system message what the tools are; by default where nothing has been said yet.
        max_result: characters of one result that the model is shown; the rest is cut off, which the text
            says.
        options: arguments of every generation, as `gen` takes them; without ``max_tokens`` it is 512,
            whatever the run says. Each is one sample, and no stop string may be part of the form of a call.

    Raises:
        InvalidRequest: for what can't be a tool here, as an async program in a ``def`` one; for a required
            call that the first turn was cut off before; for tools that call themselves without end.
        ContextLengthExceeded: naming the tool with the longest result.
    """
    desk = Desk(s, tools, question, name, rounds, required, parallel, describe, max_result, options)
    for turn in desk.turns():
        s += assistant(turn)
        with desk.naming_results():
            text = s[name]
        calls = desk.read(text)
        if not calls:
            break
        branches = s.fork(len(calls))
        jobs = [
            spawn(lambda call=call, branch=branch: desk.run(call, branch))  # type: ignore[misc]
            for call, branch in zip(calls, branches, strict=True)
        ]
        desk.show([job.result() for job in jobs])
    return desk.finish(s[name])


@function
async def ause_tools(
    s: ProgramState,
    tools: Tools,
    question: str | None = None,
    **arguments: Any,
) -> list[ToolResult]:
    """`use_tools` for ``async def`` programs, with the same arguments.

    Coroutine functions run in the program's own loop.
    """
    given = use_tools.signature.bind(s, tools, question, **arguments)
    given.apply_defaults()
    desk = Desk(*given.arguments.values())
    for turn in desk.turns():
        s += assistant(turn)
        with desk.naming_results():
            text = await s.aget(desk.name)
        calls = desk.read(text)
        if not calls:
            break
        branches = s.fork(len(calls))
        pairs = zip(calls, branches, strict=True)
        desk.show(await asyncio.gather(*(desk.arun(call, branch) for call, branch in pairs)))
    return desk.finish(await s.aget(desk.name))
