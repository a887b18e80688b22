"""`s`: the state of a program as the program sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from stolon.errors import InvalidRequest
from stolon.lang.branch import Branch
from stolon.lang.calls import Call, Sample, item_text, known_text
from stolon.lang.group import ForkGroup
from stolon.lang.ir import Role, RoleBegin, RoleEnd, as_expr
from stolon.lang.location import located, program_line
from stolon.lang.meta import ChoiceScores, meta_info
from stolon.lang.streaming import Walk, drive, drive_async, walk_text, walk_variable
from stolon.lang.trace import Trace
from stolon.lang.variables import OpenScope, resolve, unknown, waits_for
from stolon.lang.waiting import (
    Waits,
    block,
    for_calls,
    for_end,
    for_everything,
    for_name,
    reporting,
    until,
)
from stolon.srt.protocol import Select, SelectResult


class ProgramState:
    """A branch of a running or finished program.

    Appending records; nothing is sent before the program reads a variable, forks, or ends. Reading
    blocks until the value is there, and raises the error of the generation that failed, naming the
    program line that appended it. In an ``async def`` program use the forms that can be awaited:
    `aget`, `avalue`, `async_sync`; what one of them has waited for can then be read by every other
    method.

    Attributes:
        restored: False; True for the results that a resumed batch takes from its checkpoint.
    """

    restored = False

    def __init__(self, branch: Branch, *, outside: bool = False) -> None:
        self._branch = branch
        # What `run` gives its caller sees the same branch as the body's `s`, from outside: while the
        # body still runs, reading waits for what the body will do.
        self._outside = outside

    # -- appending -------------------------------------------------------------------------------

    @located
    def __iadd__(self, value: Any) -> ProgramState:
        self._branch.append(as_expr(value))
        return self

    def system(self, expr: Any = None) -> Any:
        """Append a system message; without `expr` the scope of a ``with``."""
        return self._message("system", expr)

    def user(self, expr: Any = None) -> Any:
        """Append a user message; without `expr` the scope of a ``with``."""
        return self._message("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        """Append an assistant message; without `expr` the scope of a ``with``."""
        return self._message("assistant", expr)

    @located
    def _message(self, role: Role, expr: Any) -> AbstractContextManager[None] | None:
        if expr is None:
            return self._role_scope(role)
        self._branch.append(as_expr([RoleBegin(role), expr, RoleEnd(role)]))
        return None

    @contextmanager
    def _role_scope(self, role: Role) -> Iterator[None]:
        self._branch.append(RoleBegin(role))
        try:
            yield
        finally:
            self._branch.append(RoleEnd(role))

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """The variable becomes all text appended inside the ``with``, and is readable after it."""
        scope = self._branch.open_scope(name)
        try:
            yield
        finally:
            self._branch.close_scope(scope)

    # -- variables -------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

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

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable without appending text."""
        with self._branch.run.lock:
            self._branch.variables[name] = value
        self._branch.run.changed.notify()

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

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """The text or one variable, in pieces as they arrive; one piece unless the run streams.

        Leaving the iteration early ends nothing; see `cancel`.
        """
        for text, _ in self._pieces(var):
            if text:
                yield text

    async def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """`text_iter` for asyncio; with meta data it yields (text, dict).

        Log-prob lists in the dict are those of the piece's own tokens; ``completion_tokens``
        counts all tokens of the variable so far.
        """
        if var is None and not self._branch.run.streaming:
            await self.async_sync()
            text = "".join(map(item_text, self._branch.items))
            yield (text, {}) if return_meta_data else text
            return
        async for piece in drive_async(self._walk(var)):
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
        self._block(waits, what="waiting for the branch", instead="async_sync()")
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

    def cancel(self) -> None:
        """End this branch and those forked from it: their requests are aborted at once.

        The root branch, and what `run` gives its caller, is the whole run. Does not wait. From then
        on reads raise Aborted, but for the variables that are there already; a body that is ended
        ends at its next read of anything else. A cancelled branch is no error of the run. Does
        nothing when the run is finished.
        """
        self._branch.run.cancel(self._branch.path)

    # ``with branch:`` and ``async with branch:`` scope a branch's work: what leaves them as an
    # exception, the cancelling of the task included, cancels it.

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel()

    async def __aenter__(self) -> ProgramState:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel()

    # -- branches --------------------------------------------------------------------------------

    def fork(self, size: int = 1, position_ids_offset: None = None) -> ForkGroup:
        """`size` branches that go on from here, sharing every token so far.

        `position_ids_offset` is refused: positions follow from the tokens.
        """
        if position_ids_offset is not None:
            raise InvalidRequest(
                "position_ids_offset is not supported: positions follow from the tokens",
                param="position_ids_offset",
                where=program_line(),
                hint="leave it out; SGLang ignores it",
            )
        return ForkGroup(self, [ProgramState(branch) for branch in self._branch.fork(size)])

    @located
    def fork_samples(self, name: str) -> ForkGroup:
        """One branch for each sample of ``s += sl.gen(name, n=...)``, going on from that sample.

        In a branch the variable is the text of its own sample. Must be called before anything but
        text is appended after the generation. Does not wait.
        """
        branches = self._branch.fork_samples(name)
        return ForkGroup(self, [ProgramState(branch) for branch in branches])

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A fork of one, joined at the end of the ``with``; cancelled if an exception ends it."""
        with self.fork(1) as group:
            yield group[0]
            group.join()

    # -- about the run ---------------------------------------------------------------------------

    @property
    def ret_value(self) -> Any:
        """What the body returned. Of a run that streams, blocks until it has, or raises what it raised."""
        run = self._branch.run
        if self._outside and run.streaming:
            waits = for_end(run)
            self._block(waits, what="reading ret_value", instead="async_sync()")
            self._raise_failure()
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

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a state is bound to its run and can't be copied or pickled: go on from it with fork() or "
            "copy(); to keep it, take text(), messages() or variables"
        )

    def __repr__(self) -> str:
        branch = self._branch
        text = known_text(branch.items)
        return f"<ProgramState of {branch.run.name!r}: {text!r}>"

    # -- reading ---------------------------------------------------------------------------------

    def _block(self, waits: Waits, *, what: str, instead: str) -> None:
        block(self._branch.run, waits, what=what, instead=instead)

    def _read(self, name: str, *, typed: bool = False) -> Any:
        variable = self._settled(name, f"{'avalue' if typed else 'aget'}({name!r})")
        with reporting(self._branch.run):
            return resolve(variable, typed=typed)

    async def _aread(self, name: str, *, typed: bool = False) -> Any:
        await until(for_name(self._branch, name, outside=self._outside))
        variable = self._variable(name)
        await until(for_calls(self._branch.run, waits_for(variable)))
        with reporting(self._branch.run):
            return resolve(variable, typed=typed)

    def _settled(self, name: str, instead: str) -> Any:
        """What a variable holds now, once its calls are settled. It may be set anew meanwhile."""
        what = f"reading {name!r}"
        self._block(for_name(self._branch, name, outside=self._outside), what=what, instead=instead)
        variable = self._variable(name)
        waits = for_calls(self._branch.run, waits_for(variable))
        self._block(waits, what=what, instead=instead)
        return variable

    def _variable(self, name: str) -> Any:
        variables = self._branch.variables
        if name not in variables:
            self._raise_failure()
            raise unknown(name, variables)
        return variables[name]

    def _call(self, name: str) -> tuple[Call, int | None]:
        """The call behind a variable, and which of its samples if it is one of them."""
        variable = self._settled(name, f"aget({name!r})")
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
        self._raise_failure()

    def _raise_failure(self) -> None:
        run = self._branch.run
        failure = run.ended_by()
        if failure is not None:
            run.raise_again(failure)

    def _append_hint(self) -> str:
        return (
            f"to run another program inside this one, call it with the state: {self.program}"
            "(s, ...); to append what a separate run said, use its text() or a variable of it"
        )
