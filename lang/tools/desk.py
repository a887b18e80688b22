"""What the loops of tools share: the conversation, the tools, and the results so far."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from stolon.errors import ContextLengthExceeded, InvalidRequest
from stolon.lang.ir import Expr, GenExpr
from stolon.lang.location import located, program_line, started_at
from stolon.lang.message_words import system, user
from stolon.lang.nesting import TooDeep, deeper
from stolon.lang.option_checks import wrong_type
from stolon.lang.primitives import gen
from stolon.lang.program import Function
from stolon.lang.runtime_loop import runtime_loop, spawn
from stolon.lang.state import ProgramState
from stolon.lang.tools.call import ToolCall, ToolResult, parse_calls
from stolon.lang.tools.prompt import tool_grammar, tool_prompt
from stolon.lang.tools.tool import Tool, Tools, as_tools, text_of
from stolon.lang.tools.turn import calls_of, check_options

MAX_TOKENS = 512
"""Of one turn, unless the caller says otherwise."""
MAX_RESULT_CHARS = 20_000
"""Of one result that the model is shown, unless the caller says otherwise."""
_SURROGATES = re.compile("[\ud800-\udfff]")


class Desk:
    """One loop: its conversation, its tools, its results so far, and how the next turn goes."""

    def __init__(
        self,
        s: ProgramState,
        tools: Tools,
        question: str | None,
        name: str,
        rounds: int,
        required: bool,
        parallel: bool,
        describe: bool | None,
        max_result: int,
        options: dict[str, Any],
    ) -> None:
        """Begin the conversation; arguments as `use_tools` has them."""
        self.s = s
        self.name = name
        self.rounds = rounds
        self.required = required
        self.parallel = parallel
        self.max_result = max_result
        self.may_call = True
        self.where = program_line()
        self.results: list[ToolResult] = []
        with located:
            _check_positive("rounds", rounds)
            _check_positive("max_result", max_result)
            self.tools = as_tools(tools)
            for found in self.tools.values():
                if isinstance(found.function, Function):
                    found.function.check_caller(s)
            self.turn = _generation(name, options)
            self.sampling = self.turn.options.over(s._branch.run.options)
            check_options(self.sampling, self.tools.values())
        if describe or (describe is None and not s.begun):
            self.s += system(tool_prompt(self.tools.values()))
        if question is not None:
            self.s += user(question)

    def turns(self) -> Iterator[Expr]:
        """One generation per turn; the last may call nothing."""
        for turn in range(self.rounds):
            self.must_call = self.required and turn == 0
            grammar = tool_grammar(
                self.tools.values(), required=self.must_call, parallel=self.parallel
            )
            yield replace(self.turn, grammar=grammar)
        self.may_call = self.must_call = False
        yield self.turn

    @contextmanager
    def naming_results(self) -> Iterator[None]:
        """Around the wait for a turn: results that the context has no room for are named."""
        try:
            yield
        except ContextLengthExceeded as error:
            longest = max(self.results, key=lambda result: len(result.text), default=None)
            if longest is not None:
                error.hint = (
                    f"{len(longest.text):,} characters are a result of the tool {longest.call.name!r}; "
                    "max_result of use_tools limits what of one is shown"
                )
            raise

    def read(self, text: str) -> list[ToolCall]:
        """The calls of a turn."""
        if not self.may_call:
            return []
        found = parse_calls(text)[1]
        with located:
            facts = self.s.get_meta_info(self.name)
            return calls_of(found, text, facts, self.sampling, required=self.must_call)

    def run(self, call: ToolCall, branch: ProgramState) -> ToolResult:
        """Make a call in this thread."""
        try:
            with self._making(call):
                found, arguments = self._prepare(call)
                value = found.function(*_first(found, branch), **arguments)
                if inspect.isawaitable(value):
                    value = runtime_loop().submit(_awaited(value)).result()
            return ToolResult(call, self._shown(text_of(value)), value)
        except TooDeep:
            raise
        except Exception as error:
            return self._failed(call, error)

    async def arun(self, call: ToolCall, branch: ProgramState) -> ToolResult:
        """Make a call without holding the loop: what is no coroutine function has a thread of its own."""
        try:
            with self._making(call):
                found, arguments = self._prepare(call)
                first = _first(found, branch)
                if found.is_async:
                    value = await found.function(*first, **arguments)
                else:
                    job: Future[Any] = spawn(lambda: found.function(*first, **arguments))
                    value = await asyncio.wrap_future(job)
            return ToolResult(call, self._shown(text_of(value)), value)
        except TooDeep:
            raise
        except Exception as error:
            return self._failed(call, error)

    @contextmanager
    def _making(self, call: ToolCall) -> Iterator[None]:
        """Around a call: its errors have a place in the program, and calls inside it are counted."""
        with started_at(self.where), located, deeper(f"a call of the tool {call.name!r}"):
            yield

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

    def _failed(self, call: ToolCall, error: Exception) -> ToolResult:
        try:
            said = str(error)
        except Exception:
            said = "its message can't be read"
        return ToolResult(call, self._shown(f"error: {type(error).__name__}: {said}"), error=error)

    def _shown(self, text: str) -> str:
        text = _SURROGATES.sub("\ufffd", text)
        # A tool's text is data: it may not end its own section.
        text = text.replace("</tool_response>", "</tool_response_>")
        if len(text) > self.max_result:
            cut = len(text) - self.max_result
            text = f"{text[: self.max_result]}\n[{cut:,} more characters]"
        return text

    def finish(self, text: str) -> list[ToolResult]:
        self.s[self.name] = parse_calls(text)[0]
        self.s[f"{self.name}_calls"] = self.results
        return self.results


def _first(found: Tool, branch: ProgramState) -> tuple[ProgramState, ...]:
    return (branch,) if isinstance(found.function, Function) else ()


async def _awaited(value: Any) -> Any:
    return await value


def _generation(name: str, options: dict[str, Any]) -> GenExpr:
    turn = gen(name, **{"max_tokens": MAX_TOKENS, **options})
    if not isinstance(turn, GenExpr) or turn.grammar is not None:
        raise InvalidRequest(
            "the turns of a tool loop are constrained by the tools alone",
            hint="leave out regex, schema, choices and the like",
        )
    return turn


def _check_positive(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        wrong_type(name, value, "a positive integer")
