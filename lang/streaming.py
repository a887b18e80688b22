"""Text as it arrives. One walk over a branch, driven by threads and by coroutines alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

from stolon.lang.branch import Branch
from stolon.lang.calls import Borrowed, Call, Item, Known, item_text
from stolon.lang.latch import Latch
from stolon.lang.meta import logprob_fields
from stolon.lang.run import ProgramRun
from stolon.lang.variables import resolve, waits_for
from stolon.lang.waiting import for_calls, for_name, raise_failure, reporting, variable_of

Piece = tuple[str, dict[str, Any]]
# Yields pieces, and latches to wait for before it goes on.
Walk = Generator[Piece | Latch, None, None]


def drive(walk: Walk) -> Iterator[Piece]:
    """Run a walk, blocking where it waits."""
    for step in walk:
        if isinstance(step, Latch):
            step.wait()
        else:
            yield step


async def drive_async(walk: Walk) -> AsyncIterator[Piece]:
    """Run a walk, awaiting where it waits."""
    for step in walk:
        if isinstance(step, Latch):
            await step.arrive()
        else:
            yield step


def walk_variable(branch: Branch, name: str, *, outside: bool) -> Walk:
    """Pieces of one variable. Outside a running program it waits until the variable is set."""
    run = branch.run
    yield from for_name(branch, name, outside=outside)
    variable = variable_of(branch, name)
    if isinstance(variable, Call):
        yield from _walk_call(run, variable)
        return
    yield from for_calls(run, waits_for(variable))
    with reporting(run):
        text = str(resolve(variable))
    yield text, {}


def walk_text(branch: Branch, *, outside: bool) -> Walk:
    """Pieces of the whole text; outside a running program up to the program's end."""
    run = branch.run
    position = 0
    while True:
        waiter = run.changed.waiter()
        finished = run.over or not outside
        while position < len(branch.items):
            yield from _walk_item(run, branch.items[position])
            position += 1
        if finished:
            break
        yield waiter
    raise_failure(run)


def _walk_item(run: ProgramRun, item: Item) -> Walk:
    if isinstance(item, Known):
        yield item.text, {}
    elif isinstance(item, Call):
        yield from _walk_call(run, item)
    elif isinstance(item, Borrowed) and item.sample == 0:
        yield from _walk_call(run, item.call)
    else:
        yield from for_calls(run, [item.call])
        with reporting(run):
            text = item_text(item)
        yield text, {}


def _walk_call(run: ProgramRun, call: Call) -> Walk:
    """Pieces of sample 0. A selection, and a call of a run that does not stream, is one piece."""
    tokenizer = run.client.tokenizer
    taken = characters = tokens = 0
    while True:
        waiter = run.changed.waiter()
        settled = call.settled.done()  # before the pieces: then these are all
        while taken < len(call.pieces):
            delta = call.pieces[taken]
            taken += 1
            characters += len(delta.text)
            tokens += len(delta.token_ids)
            meta: dict[str, Any] = {"name": call.name, "completion_tokens": tokens}
            if delta.logprobs is not None:
                meta |= logprob_fields(delta.logprobs, tokenizer if call.spelled else None)
                meta["output_token_logprobs_length"] = tokens
            if delta.text or delta.token_ids:
                yield delta.text, meta
        if settled:
            break
        run.flush()
        yield waiter
    call.awaited = True
    with reporting(run):
        rest = call.text()[characters:]
    if rest:
        yield rest, {"name": call.name}
