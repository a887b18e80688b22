"""The loop of an agent, as programs: call tools until the model answers without one."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.ir import Expr, GenExpr
from stolon.lang.message_words import assistant, system, user
from stolon.lang.primitives import gen
from stolon.lang.program import Function, function
from stolon.lang.runtime_loop import runtime_loop, spawn
from stolon.lang.state import ProgramState
from stolon.lang.tools.call import ToolCall, ToolResult, parse_calls
from stolon.lang.tools.prompt import tool_grammar, tool_prompt
from stolon.lang.tools.tool import Tool, as_tools, text_of

MAX_TOKENS = 512
"""Of one turn, unless the caller says otherwise."""
MAX_RESULT_CHARS = 20_000
"""Of one result that the model is shown; the rest is cut off, which the text says."""


@function
def use_tools(
    s: ProgramState,
    tools: Iterable[Any],
    question: str | None = None,
    *,
    name: str = "answer",
    rounds: int = 8,
    required: bool = False,
    parallel: bool = True,
    describe: bool | None = None,
    **options: Any,
) -> list[ToolResult]:
    """Let the model call tools until it answers, or `rounds` turns are over: then it answers without.

    The calls of one turn run at the same time, each program among them in a fork of the conversation. What
    a tool raises is shown to the model as its result. The answer is the variable `name`, the results are
    returned and are the variable ``{name}_calls``.

    Args:
        tools: functions, programs, or what `tool` and `mcp_tools` made.
        question: a user message to begin with.
        rounds: turns in which tools may be called.
        required: the first turn calls a tool.
        parallel: a turn may make several calls.
        describe: say in a system message what the tools are; by default where nothing has been said yet.
        options: arguments of every generation, as `gen` takes them; ``max_tokens`` is 512 here.
    """
    desk = _Desk(s, tools, question, name, rounds, required, parallel, describe, options)
    for turn in desk.turns():
        s += assistant(turn)
        calls = desk.read(s[name])
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
    tools: Iterable[Any],
    question: str | None = None,
    **arguments: Any,
) -> list[ToolResult]:
    """`use_tools` for ``async def`` programs, with the same arguments.

    Coroutine functions run in the program's own loop.
    """
    given = use_tools.signature.bind(s, tools, question, **arguments)
    given.apply_defaults()
    desk = _Desk(*given.arguments.values())
    for turn in desk.turns():
        s += assistant(turn)
        calls = desk.read(await s.aget(desk.name))
        if not calls:
            break
        branches = s.fork(len(calls))
        pairs = zip(calls, branches, strict=True)
        desk.show(await asyncio.gather(*(desk.arun(call, branch) for call, branch in pairs)))
    return desk.finish(await s.aget(desk.name))


@dataclass
class _Desk:
    """What both loops share: the conversation, the tools, and the results so far."""

    s: ProgramState
    given: Iterable[Any]
    question: str | None
    name: str
    rounds: int
    required: bool
    parallel: bool
    describe: bool | None
    options: dict[str, Any]

    def __post_init__(self) -> None:
        if isinstance(self.rounds, bool) or not isinstance(self.rounds, int) or self.rounds < 1:
            raise InvalidRequest(
                f"rounds must be a positive integer, not {self.rounds!r}", param="rounds"
            )
        self.tools = as_tools(self.given)
        self.results: list[ToolResult] = []
        if self.describe or (self.describe is None and not self.s.begun):
            self.s += system(tool_prompt(self.tools.values()))
        if self.question is not None:
            self.s += user(self.question)

    def turns(self) -> Iterator[Expr]:
        """One generation per turn; the last may call nothing."""
        for turn in range(self.rounds):
            grammar = tool_grammar(
                self.tools.values(),
                required=self.required and turn == 0,
                parallel=self.parallel,
            )
            yield self._generation(grammar)
        yield self._generation(None)

    def _generation(self, grammar: Any) -> Expr:
        turn = gen(self.name, **{"max_tokens": MAX_TOKENS, **self.options})
        if not isinstance(turn, GenExpr) or turn.grammar is not None:
            raise InvalidRequest(
                "the turns of a tool loop are constrained by the tools alone",
                hint="leave out regex, schema, choices and the like",
            )
        return turn if grammar is None else replace(turn, grammar=grammar)

    def read(self, text: str) -> list[ToolCall]:
        """The calls of a turn."""
        return parse_calls(text)[1]

    def run(self, call: ToolCall, branch: ProgramState) -> ToolResult:
        """Make a call in this thread."""
        try:
            found, arguments = self._prepare(call)
            value = found.function(*_first(found, branch), **arguments)
            if inspect.isawaitable(value):
                value = runtime_loop().submit(_awaited(value)).result()
        except Exception as error:
            return _failed(call, error)
        return ToolResult(call, _shown(value), value)

    async def arun(self, call: ToolCall, branch: ProgramState) -> ToolResult:
        """Make a call without holding the loop: what is no coroutine function has a thread of its own."""
        try:
            found, arguments = self._prepare(call)
            first = _first(found, branch)
            if found.is_async:
                value = await found.function(*first, **arguments)
            else:
                job: Future[Any] = spawn(lambda: found.function(*first, **arguments))
                value = await asyncio.wrap_future(job)
        except Exception as error:
            return _failed(call, error)
        return ToolResult(call, _shown(value), value)

    def _prepare(self, call: ToolCall) -> tuple[Tool, dict[str, Any]]:
        if call.problem is not None:
            raise ValueError(call.problem)
        found = self.tools.get(call.name)
        if found is None:
            raise ValueError(f"there is no tool {call.name!r}; there are {', '.join(self.tools)}")
        return found, found.validate(call.arguments)

    def show(self, results: Sequence[ToolResult]) -> None:
        """Append what the calls brought."""
        self.results += results
        self.s += user(
            "\n".join(f"<tool_response>\n{result.text}\n</tool_response>" for result in results)
        )

    def finish(self, text: str) -> list[ToolResult]:
        self.s[self.name] = parse_calls(text)[0]
        self.s[f"{self.name}_calls"] = self.results
        return self.results


def _first(found: Tool, branch: ProgramState) -> tuple[ProgramState, ...]:
    return (branch,) if isinstance(found.function, Function) else ()


async def _awaited(value: Any) -> Any:
    return await value


def _failed(call: ToolCall, error: Exception) -> ToolResult:
    return ToolResult(call, _shown(f"error: {type(error).__name__}: {error}"), error=error)


def _shown(value: Any) -> str:
    text = text_of(value)
    # A tool's text is data: it may not end its own section.
    text = text.replace("</tool_response>", "</tool_response_>")
    if len(text) > MAX_RESULT_CHARS:
        cut = len(text) - MAX_RESULT_CHARS
        text = f"{text[:MAX_RESULT_CHARS]}\n[{cut:,} more characters]"
    return text
