"""Blocks: the longest straight runs of a program, each sent as one request.

A block ends with a generation or a selection. Its prefix is the token ids that the block before it
ended with: they are taken as they are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stolon.errors import Aborted, InternalError, StolonError
from stolon.lang.calls import BranchPath, Call, Item, Known, calls_of, item_text
from stolon.lang.latch import Latch
from stolon.srt.client import EngineClient
from stolon.srt.protocol import (
    MAX_SEGMENTS,
    Delta,
    Event,
    Failed,
    GenResult,
    PromptDone,
    Request,
    SampleDone,
    Segment,
    SegmentDone,
    Text,
    Tokens,
)


@dataclass(frozen=True, slots=True)
class Tail:
    """Where a branch goes on: after one sample of a block."""

    block: Block
    sample: int = 0

    def tokens(self) -> Tokens | None:
        """All tokens of the branch up to here, once the block is settled. Branches share the list."""
        return self.block.samples[self.sample]


class Block:
    """A straight run of items after `tail`, walked by the engine as one request.

    Events arrive in the engine's thread. The last call settles together with the block, so that
    whoever reads it can go on at once: its tokens are there.

    Attributes:
        path: of the branch that said it.
        calls: the generations and selections among the items; never empty.
        samples: of each sample all tokens of the branch up to the end of the block, once it is done.
        error: why there are none.
        settled: set when one of the two is there.
        request_id: of the engine's request.
        recomputed: tokens before it, of blocks that it continues, that were no longer in the engine's cache.
    """

    __slots__ = (
        "_continued",
        "_lock",
        "_missing",
        "_over",
        "_places",
        "_turn",
        "calls",
        "error",
        "items",
        "path",
        "recomputed",
        "request_id",
        "samples",
        "settled",
        "tail",
    )

    def __init__(self, items: list[Item], tail: Tail | None, path: BranchPath = ()) -> None:
        self.items = items
        self.tail = tail
        self.path = path
        self.calls = [item for item in items if isinstance(item, Call)]
        self.samples: list[Tokens | None] = [None] * self.n
        self.error: StolonError | None = None
        self.settled = Latch()
        self.request_id = ""
        self.recomputed = 0
        self._continued = 0
        self._lock = threading.Lock()
        self._missing = self.n
        self._over = False
        self._places: dict[int, Call] = {}
        self._turn = 0

    @property
    def n(self) -> int:
        """Samples of the request."""
        return self.calls[-1].n

    def needs(self) -> Latch | None:
        """Something that must be settled before the block can be sent, None if it all is."""
        tail = self.tail
        if tail is not None and not tail.block.settled.done():
            return tail.block.settled
        for call in self._borrowed():
            if not call.settled.done():
                return call.settled
        return None

    def send(
        self,
        client: EngineClient,
        request_id: str,
        *,
        streaming: bool,
        changed: Callable[[], None],
    ) -> None:
        """Hand it to the engine, now that nothing is missing. Errors end in the block and its calls.

        `changed` is called after every event.
        """
        inherited = self._inherited()
        if inherited is not None:
            self.fail(inherited)
            return

        def on_event(event: Event) -> None:
            self.take(event)
            changed()

        self.request_id = request_id
        for call in self.calls:
            call.request = request_id
        try:
            request = Request(
                rid=request_id,
                segments=self._segments(),
                n=self.n,
                stream=streaming,
                prompt_logprobs=self.calls[0].prompt_logprobs,
            )
            if self._over:  # ended meanwhile, so its prefix may be missing
                return
            self.calls[0].started_at = time.perf_counter()
            client.submit(request, on_event)
        except StolonError as error:
            self.fail(self._located(error))
        except Exception as error:
            self._fault(error)

    def take(self, event: Event) -> None:
        """Distribute what the engine answers. Never raises: the thread is the engine's."""
        try:
            ready = self._take(event)
        except Exception as error:
            self._fault(error)
        else:
            for call in ready:
                call.settle()
                self._turn += 1
                if self._turn < len(self.calls):
                    self.calls[self._turn].started_at = call.done_at

    def _take(self, event: Event) -> Sequence[Call]:
        """The calls that the event completes."""
        if isinstance(event, Failed):
            self.fail(self._located(event.error()))
            return ()
        with self._lock:
            if self._over:
                return ()
            if isinstance(event, Delta):
                if event.sample == 0:
                    self._places[event.segment].hear(event)
                return ()
            if isinstance(event, SegmentDone):
                return self._take_result(self._places[event.segment], event)
            if isinstance(event, PromptDone):
                self.calls[0].prompt = event.logprobs
            if not isinstance(event, SampleDone):
                return ()
            self.samples[event.sample] = Tokens(event.token_ids)
            self._missing -= 1
            if self._missing:
                return ()
            self.error = next((c.error for c in self.calls if c.error is not None), None)
            self._end()
        self.settled.set()
        return self.calls[-1:]

    def _take_result(self, call: Call, event: SegmentDone) -> Sequence[Call]:
        result = event.result
        call.results[event.sample] = result
        if call is self.calls[0] and event.sample == 0:
            # The last token is always computed, for its logits.
            self.recomputed = max(0, self._continued - 1 - result.usage.cached_tokens)
        if isinstance(result, GenResult) and result.finish.kind == "abort":
            call.settle(call.located(Aborted("the generation was aborted")))
        return (call,) if call is not self.calls[-1] and call.complete() else ()

    def fail(self, error: StolonError) -> None:
        """Settle the block and every unfinished call of it with an error, unless it is settled."""
        with self._lock:
            if self._over:
                return
            self.error = error
            self._end()
        for call in self.calls:
            call.settle(error)
        self.settled.set()

    def _end(self) -> None:
        self._over = True
        # What came before is in the tokens; a long program must not keep every block alive.
        self.tail = None
        self._places = {}

    def _borrowed(self) -> list[Call]:
        return calls_of([item for item in self.items if not isinstance(item, Call)])

    def _inherited(self) -> StolonError | None:
        """The error of something that the block continues; it is located already."""
        tail = self.tail
        if tail is not None and tail.block.error is not None:
            return tail.block.error
        return next((call.error for call in self._borrowed() if call.error is not None), None)

    def _segments(self) -> list[Segment]:
        segments: list[Segment] = []
        tail = self.tail
        tokens = None if tail is None else tail.tokens()
        if tokens is not None:
            segments.append(tokens)
            self._continued = len(tokens.ids)
        crowded = len(self.items) + 1 > MAX_SEGMENTS
        for item in self.items:
            if isinstance(item, Call):
                self._places[len(segments)] = item
                segments.append(item.segment)
                continue
            text = Text(item_text(item), isinstance(item, Known) and item.special)
            last = segments[-1] if segments else None
            if crowded and isinstance(last, Text) and last.special == text.special:
                segments[-1] = Text(last.text + text.text, text.special)
            elif text.text:
                segments.append(text)
        return segments

    def _located(self, error: StolonError) -> StolonError:
        """The error with the program line of the expression it is about.

        The engine names the segment where it is about one; otherwise it is the first unfinished
        call.
        """
        call = None if error.segment is None else self._places.get(error.segment)
        unfinished = (call for call in self.calls if not call.settled.done())
        return (call or next(unfinished, self.calls[0])).located(error)

    def _fault(self, error: Exception) -> None:
        text = f"{type(error).__name__} while a request was served: {error}"
        fault = self.calls[0].located(InternalError(text))
        fault.__cause__ = error
        self.fail(fault)
