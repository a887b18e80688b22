"""Branches of one fork."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from stolon.errors import InvalidRequest
from stolon.lang.ir import Expr
from stolon.lang.location import located

if TYPE_CHECKING:
    from stolon.lang.state import ProgramState

JoinMode = Literal["gather_variable", "concate_and_append"]


class ForkGroup(Sequence["ProgramState"]):
    """The branches of a `ProgramState.fork`, in order.

    ``with s.fork(n) as branches:`` and ``async with`` scope their work: what leaves as an exception,
    the cancelling of the task included, cancels them.
    """

    def __init__(self, parent: ProgramState, states: Sequence[ProgramState]) -> None:
        self._parent = parent
        self._states = tuple(states)

    @overload
    def __getitem__(self, index: int) -> ProgramState: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[ProgramState, ...]: ...
    def __getitem__(self, index: int | slice) -> ProgramState | tuple[ProgramState, ...]:
        return self._states[index]

    @located
    def __setitem__(self, index: int, state: ProgramState) -> None:
        # ``group[i] += x`` is a read, an append and a write of the same state.
        if self._states[index] is not state:
            raise InvalidRequest("a branch of a fork can't be replaced by another state")

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self._states)

    @located
    def __iadd__(self, value: Any) -> ForkGroup:
        """Append one expression to all, a list with one for each, or a function of the index."""
        values = self._each(value)
        for state, part in zip(self._states, values, strict=True):
            state += part
        return self

    def _each(self, value: str | Expr | Sequence[Any] | Callable[[int], Any]) -> list[Any]:
        if isinstance(value, list | tuple):
            if len(value) != len(self):
                raise InvalidRequest(
                    f"a list of {len(value)} was appended to {len(self)} branches",
                    hint="a list holds one value per branch",
                )
            return list(value)
        if callable(value):
            return [value(index) for index in range(len(self))]
        return [value] * len(self)

    @located
    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Bring the branches' results into the state they were forked from. Does not wait.

        ``gather_variable``: every variable that a branch has set since the fork, new or anew,
        becomes the list of all branches' values in order: a branch that has not set it contributes
        the value it inherited, or None. ``concate_and_append``: the text of the branches since the
        fork is appended, in order.
        """
        parent = self._parent._branch
        children = [state._branch for state in self._states]
        if mode == "gather_variable":
            parent.gather(children)
        elif mode == "concate_and_append":
            parent.concatenate(children)
        else:
            raise InvalidRequest(
                f"join mode must be 'gather_variable' or 'concate_and_append', not {mode!r}",
                param="mode",
            )

    def cancel(self) -> None:
        """End all branches; see `ProgramState.cancel`."""
        for state in self._states:
            state.cancel()

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel()

    async def __aenter__(self) -> ForkGroup:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.cancel()

    def _append_hint(self) -> str:
        return "join() the branches, or append the text() of one of them"
