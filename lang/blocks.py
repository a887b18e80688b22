"""Blocks: the longest straight runs of a program, each sent as one request.

A block ends with a generation or a selection. Text after the last one stays with the branch until
more follows, so that text which meets text is always tokenised together, wherever the program
reads. A block's prefix is the token ids that the block before it ended with: they are taken as
they are.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from stolon.errors import StolonError, error_from_code
from stolon.lang.calls import Call, Item, Known, calls_of
from stolon.lang.location import placed
from stolon.lang.runtime_loop import wait_for
from stolon.srt.client import EngineClient, stream
from stolon.srt.protocol import (
    MAX_SEGMENTS,
    Delta,
    Request,
    SampleDone,
    Segment,
    SegmentDone,
    Text,
    Tokens,
)


class Block:
    """A straight run of items after `previous`, walked by the engine as one request.

    Attributes:
        tokens: all tokens of the branch up to the end of the block (of sample 0), once it is done.
        error: why there are none.
        settled: set when one of the two is there. Only touched on the loop.
    """

    __slots__ = ("error", "items", "previous", "settled", "tokens")

    def __init__(self, items: list[Item], previous: Block | None) -> None:
        self.items = items
        self.previous = previous
        self.tokens: list[int] | None = None
        self.error: StolonError | None = None
        self.settled = asyncio.Event()

    @property
    def calls(self) -> list[Call]:
        return [item for item in self.items if isinstance(item, Call)]

    def fail(self, error: StolonError) -> None:
        """Settle the block and every unfinished call of it with an error."""
        if self.tokens is None:
            self.error = error
        for call in self.calls:
            call.fail(error)
        self.settled.set()


def split(items: list[Item], previous: Block | None) -> tuple[list[Block], list[Item]]:
    """Cut recorded items into chained blocks and the text that stays behind.

    A generation of several samples ends its block, and begins it but for the text before it: the
    engine walks a whole block once per sample, and the state goes on from sample 0 alone.
    """
    blocks: list[Block] = []
    run: list[Item] = []
    block: list[Item] = []

    def close() -> None:
        nonlocal block, previous
        if block:
            previous = Block(block, previous)
            blocks.append(previous)
            block = []

    for item in items:
        run.append(item)
        if not isinstance(item, Call):
            continue
        if item.n > 1 or len(block) + len(run) >= MAX_SEGMENTS:
            close()
        block += run
        run = []
        if item.n > 1:
            close()
    close()
    return blocks, run


async def walk(
    block: Block, client: EngineClient, rid: str, *, streaming: bool, changed: Callable[[], None]
) -> None:
    """Send a block and distribute what comes back. Errors end in the block and its calls."""
    places: dict[int, Call] = {}
    try:
        segments = await _segments(block, places)
        request = Request(rid=rid, segments=segments, n=block.calls[-1].n, stream=streaming)
        waiting = deque(block.calls)
        waiting[0].started_at = time.perf_counter()
        async for event in stream(client, request):
            if isinstance(event, Delta):
                if event.sample == 0:
                    places[event.segment].pieces.append(event)
                    changed()
            elif isinstance(event, SegmentDone):
                places[event.segment].take(event.sample, event.result)
                while waiting and waiting[0].settled.done():
                    done_at = waiting.popleft().done_at
                    if waiting:
                        waiting[0].started_at = done_at
                changed()
            elif isinstance(event, SampleDone) and event.sample == 0:
                for call in block.calls:
                    if call.error is not None:
                        raise _Inherited(call.error)
                block.tokens = event.token_ids
                block.settled.set()
    except _Inherited as inherited:
        block.fail(inherited.error)
    except StolonError as error:
        block.fail(_located(error, block.calls, places))


class _Inherited(Exception):
    """Something that the block continues has failed, with an error that is located already."""

    def __init__(self, error: StolonError) -> None:
        super().__init__(str(error))
        self.error = error


async def _segments(block: Block, places: dict[int, Call]) -> list[Segment]:
    """The request's segments; `places` receives the call of each Gen and Select by its index."""
    segments: list[Segment] = []
    if block.previous is not None:
        await block.previous.settled.wait()
        if block.previous.error is not None:
            raise _Inherited(block.previous.error)
        segments.append(Tokens(block.previous.tokens or []))
        # What came before is in the tokens; a long program must not keep every block alive.
        block.previous = None
    for call in calls_of([item for item in block.items if not isinstance(item, Call)]):
        await wait_for(call.settled)
        if call.error is not None:
            raise _Inherited(call.error)
    crowded = len(block.items) + 1 > MAX_SEGMENTS
    for item in block.items:
        if isinstance(item, Call):
            places[len(segments)] = item
            segments.append(item.segment)
            continue
        text = Text(item.text, item.special) if isinstance(item, Known) else Text(item.call.text())
        last = segments[-1] if segments else None
        if crowded and isinstance(last, Text) and last.special == text.special:
            segments[-1] = Text(last.text + text.text, text.special)
        elif text.text:
            segments.append(text)
    return segments


def _located(error: StolonError, calls: list[Call], places: dict[int, Call]) -> StolonError:
    """The error with the program line of the expression it is about.

    The engine names the segment where it is about one; otherwise it is the first unfinished call.
    """
    call = None if error.segment is None else places.get(error.segment)
    open_calls = [call for call in calls if not call.settled.done()] or calls
    call = call or open_calls[0]
    return error_from_code(
        error.code,
        error.message,
        param=error.param,
        where=placed(call.where, error.where),
        hint=error.hint,
    )
