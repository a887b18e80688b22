"""`s`: the state of a program as the program sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

from stolon.errors import InvalidRequest
from stolon.lang.calls import known_text
from stolon.lang.group import ForkGroup
from stolon.lang.ir import Role, RoleBegin, RoleEnd, as_expr
from stolon.lang.location import located, program_line
from stolon.lang.read_state import ReadState
from stolon.lang.variables import check_name


class ProgramState(ReadState):
    """A branch of a running or finished program.

    Appending records; nothing is sent before the program reads a variable, forks, or ends. Reading
    blocks until the value is there, and raises the error of the generation that failed, naming the
    program line that appended it. In an ``async def`` program use the forms that can be awaited:
    `aget`, `avalue`, `async_sync`; what one of them has waited for can then be read by every other
    method.

    Attributes:
        restored: False; True for the results that a resumed batch takes from its checkpoint.
    """

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
        check_name(name)
        scope = self._branch.open_scope(name)
        try:
            yield
        finally:
            self._branch.close_scope(scope)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def set_var(self, name: str, value: Any) -> None:
        """Set a variable without appending text."""
        check_name(name)
        with self._branch.run.lock:
            self._branch.variables[name] = value
        self._branch.run.changed.notify()

    # -- ending it -------------------------------------------------------------------------------

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
    def copy(self, position_ids_offset: None = None) -> Iterator[ProgramState]:
        """A fork of one, joined at the end of the ``with``; cancelled if an exception ends it.

        `position_ids_offset` is refused, as by `fork`.
        """
        with self.fork(1, position_ids_offset) as group:
            yield group[0]
            group.join()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a state is bound to its run and can't be copied or pickled: go on from it with fork() or "
            "copy(); to keep it, take text(), messages() or variables"
        )

    def __repr__(self) -> str:
        branch = self._branch
        text = known_text(branch.items)
        return f"<ProgramState of {branch.run.name!r}: {text!r}>"

    def _append_hint(self) -> str:
        return (
            f"to run another program inside this one, call it with the state: {self.program}"
            "(s, ...); to append what a separate run said, use its text() or a variable of it"
        )
