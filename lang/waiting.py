"""Waiting for what a branch has asked for, by threads and by coroutines alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from stolon.errors import InvalidRequest, StolonError
from stolon.lang.branch import Branch
from stolon.lang.calls import Call
from stolon.lang.latch import Latch
from stolon.lang.location import program_line
from stolon.lang.run import ProgramRun
from stolon.lang.variables import unknown, waits_for

# Latches to wait for, one after the other; later ones may depend on what the earlier ones brought.
Waits = Iterator[Latch]


def for_calls(run: ProgramRun, calls: Iterable[Call]) -> Waits:
    """Until the calls are settled. What is recorded but not sent is sent, in all branches."""
    for call in calls:
        if call.awaited:
            continue
        if not call.settled.done():
            run.flush()
        # Also when it is settled by now: whether an async program must await must not depend on
        # timing.
        yield call.settled
        call.awaited = True


def for_name(branch: Branch, name: str, *, outside: bool) -> Waits:
    """Until a variable is set, for an observer outside the program. Not until it has a value."""
    run = branch.run
    while outside and name not in branch.variables and not run.over:
        waiter = run.changed.waiter()
        if name not in branch.variables and not run.over:
            yield waiter


def for_end(run: ProgramRun) -> Waits:
    """Until the program has ended. For an observer outside."""
    while not run.over:
        waiter = run.changed.waiter()
        if not run.over:
            yield waiter


def for_everything(branch: Branch, *, outside: bool) -> Waits:
    """Until all text of the branch is there; for an observer outside, that of the whole program."""
    run = branch.run
    if outside:
        yield from for_end(run)
    yield from for_calls(run, branch.calls())


def block(run: ProgramRun, waits: Waits, *, what: str, instead: str) -> None:
    """Wait in the calling thread. Refused where that would stop the loop which has to answer."""
    for latch in waits:
        if run.must_await():
            raise InvalidRequest(
                f"{what} would block the event loop of this program",
                where=program_line(),
                hint=f"in an async program use 'await s.{instead}' first",
            )
        latch.wait()


async def until(waits: Waits) -> None:
    """Wait without blocking the loop."""
    for latch in waits:
        await latch.arrive()


def settled(branch: Branch, name: str, *, outside: bool, instead: str) -> Any:
    """What a variable holds now, once its calls are settled. It may be set anew meanwhile."""
    run, what = branch.run, f"reading {name!r}"
    block(run, for_name(branch, name, outside=outside), what=what, instead=instead)
    variable = variable_of(branch, name)
    block(run, for_calls(run, waits_for(variable)), what=what, instead=instead)
    return variable


async def asettled(branch: Branch, name: str, *, outside: bool) -> Any:
    """`settled`, awaited."""
    await until(for_name(branch, name, outside=outside))
    variable = variable_of(branch, name)
    await until(for_calls(branch.run, waits_for(variable)))
    return variable


def variable_of(branch: Branch, name: str) -> Any:
    """What a variable holds. Raises what ended the run, or UnknownVariable, where it is not set."""
    if name not in branch.variables:
        raise_failure(branch.run)
        raise unknown(name, branch.variables)
    return branch.variables[name]


def raise_failure(run: ProgramRun) -> None:
    """Raise what ended the run before its time, if something did."""
    failure = run.ended_by()
    if failure is not None:
        run.raise_again(failure)


@contextmanager
def reporting(run: ProgramRun) -> Iterator[None]:
    """Errors that leave the ``with`` have been shown to the program."""
    try:
        yield
    except StolonError as error:
        run.handled(error)
        cause = run.unseen_cause(error)
        if cause is not None:
            run.raise_again(cause)
        raise
