"""A state as it is read: variables, text, facts; reading waits for what it reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.branch import Branch
from stolon.lang.calls import Call, Sample, item_text
from stolon.lang.location import program_line
from stolon.lang.meta import ChoiceScores, meta_info
from stolon.lang.streaming import Walk, drive, drive_async, walk_text, walk_variable
from stolon.lang.trace import Trace
from stolon.lang.variables import OpenScope, resolve
from stolon.lang.waiting import (
    asettled,
    block,
    for_end,
    for_everything,
    raise_failure,
    reporting,
    settled,
    until,
)
from stolon.srt.protocol import Select, SelectResult


class ReadState:
    """The part of `ProgramState` that reads."""

    restored = False

    def __init__(self, branch: Branch, *, outside: bool = False) -> None:
        self._branch = branch
        # What `run` gives its caller sees the same branch as the body's `s`, from outside: while the
        # body still runs, reading waits for what the body will do.
        self._outside = outside

    # -- variables -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __contains__(self, name: object) -> bool:
        """Whether the variable can be read at once or will be there when a read has waited."""
        variables = self._branch.variables
        return name in variables and not isinstance(variables[str(name)], OpenScope)

    def get_var(self, name: str) -> Any:
        """Value of a variable: the text, or the list of texts of several samples. Blocks.

        Raises UnknownVariable, which is a KeyError too, for one that is not set.
        """
        return self._read(name)

    def value(self, name: str) -> Any:
        """Value of a variable in its own type: a number, JSON data, a model instance. Blocks.

        Raises ProgramError for text that is not of the type, as when it was cut at max_tokens.
        """
        return self._read(name, typed=True)

    async def aget(self, name: str) -> Any:
        """`get_var`, awaited."""
        return await self._aread(name)

    async def avalue(self, name: str) -> Any:
        """`value`, awaited."""
        return await self._aread(name, typed=True)

    def get_meta_info(self, name: str) -> Any:
        """Facts about the generation or selection behind a variable, as a dict. Blocks.

        Token counts and times (`protocol.Usage`), ``finish_reason``, ``output_ids``, and where
        asked for ``output_token_logprobs`` and ``output_top_logprobs`` as (log-prob, token id,
        text). With several samples, a list of such dicts.
        """
        call, sample = self._call(name)
        with reporting(self._branch.run):
            return meta_info(call, self._branch.run.client.tokenizer, sample=sample)

    def scores(self, name: str) -> ChoiceScores:
        """Log-probs of all choices of a selection, by their text. Blocks."""
        call, _ = self._call(name)
        if not isinstance(call.segment, Select):
            raise InvalidRequest(
                f"variable {name!r} comes from a generation, not a selection", where=program_line()
            )
        with reporting(self._branch.run):
            result = call.outcome()
        if not isinstance(result, SelectResult):
            raise TypeError("a selection was answered with a generation")
        return ChoiceScores(result, call.segment.method)

    # -- text ------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole text, roles' affixes included. Blocks."""
        self.sync()
        return "".join(map(item_text, self._branch.items))

    def messages(self) -> list[dict[str, str]]:
        """The complete messages so far, as ``{"role", "content"}``. Blocks."""
        self.sync()
        return [{"role": turn.role, "content": turn.content()} for turn in self._branch.chat.turns]

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text or one variable, in pieces as they arrive; one piece unless the run streams.

        Leaving the iteration early ends nothing; see `cancel`.
        """
        for text, _ in self._pieces(var_name):
            if text:
                yield text

    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for asyncio; with meta data it yields (text, dict).

        Log-prob lists in the dict are those of the piece's own tokens; ``completion_tokens``
        counts all tokens of the variable so far.
        """
        if var_name is None and not self._branch.run.streaming:
            await self.async_sync()
            text = "".join(map(item_text, self._branch.items))
            yield (text, {}) if return_meta_data else text
            return
        async for piece in drive_async(self._walk(var_name)):
            if return_meta_data:
                yield piece
            elif piece[0]:
                yield piece[0]

    def _pieces(self, var: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
        if var is None and not self._branch.run.streaming:
            return iter([(self.text(), {})])
        if self._branch.run.must_await():
            raise InvalidRequest(
                "text_iter() would block the event loop of this program",
                where=program_line(),
                hint="use 'async for piece in s.text_async_iter()'",
            )
        return drive(self._walk(var))

    def _walk(self, var: str | None) -> Walk:
        if var is None:
            return walk_text(self._branch, outside=self._outside)
        return walk_variable(self._branch, var, outside=self._outside)

    # -- waiting ---------------------------------------------------------------------------------

    def sync(self) -> None:
        """Wait for everything this branch has asked for (outside the program: for its end)."""
        waits = for_everything(self._branch, outside=self._outside)
        block(self._branch.run, waits, what="waiting for the branch", instead="async_sync()")
        self._check()

    async def async_sync(self) -> None:
        """`sync`, awaited."""
        await until(for_everything(self._branch, outside=self._outside))
        self._check()

    def error(self) -> BaseException | None:
        """The error of this branch, None if all went well. Blocks."""
        try:
            self.sync()
        except Exception as error:
            return error
        return None

    # -- about the run ---------------------------------------------------------------------------

    @property
    def ret_value(self) -> Any:
        """What the body returned. Of a run that streams, blocks until it has, or raises what it raised."""
        run = self._branch.run
        if self._outside and run.streaming:
            block(run, for_end(run), what="reading ret_value", instead="async_sync()")
            raise_failure(run)
        return run.result

    @property
    def trace(self) -> Trace:
        """What every generation of the run cost and where its tokens came from. Does not wait."""
        return Trace.of(self._branch.run)

    @property
    def seed(self) -> int:
        """Seed of the run: ``run(seed=state.seed)`` repeats it."""
        return self._branch.run.seed

    @property
    def begun(self) -> bool:
        """Whether anything has been appended."""
        return len(self._branch.items) > 0

    @property
    def program(self) -> str:
        """Name of the program."""
        return self._branch.run.name

    @property
    def in_async_program(self) -> bool:
        """Whether the program is an ``async def``."""
        return self._branch.run.is_async

    # -- reading ---------------------------------------------------------------------------------

    def _read(self, name: str, *, typed: bool = False) -> Any:
        instead = f"{'avalue' if typed else 'aget'}({name!r})"
        variable = settled(self._branch, name, outside=self._outside, instead=instead)
        with reporting(self._branch.run):
            return resolve(variable, typed=typed)

    async def _aread(self, name: str, *, typed: bool = False) -> Any:
        variable = await asettled(self._branch, name, outside=self._outside)
        with reporting(self._branch.run):
            return resolve(variable, typed=typed)

    def _call(self, name: str) -> tuple[Call, int | None]:
        """The call behind a variable, and which of its samples if it is one of them."""
        where = f"aget({name!r})"
        variable = settled(self._branch, name, outside=self._outside, instead=where)
        if isinstance(variable, Sample):
            return variable.call, variable.sample
        if not isinstance(variable, Call):
            raise InvalidRequest(
                f"variable {name!r} does not come from a single generation", where=program_line()
            )
        return variable, None

    def _check(self) -> None:
        """Raise the branch's first error, or what ended the program."""
        with reporting(self._branch.run):
            for call in self._branch.calls():
                call.outcome()
        raise_failure(self._branch.run)
