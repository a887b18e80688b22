"""The requests of a run: blocks are sent when what they continue is there, waited for, and ended."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count

from stolon.errors import Aborted, EngineClosed
from stolon.lang.blocks import Block
from stolon.lang.calls import BranchPath, branch_name
from stolon.lang.latch import Latch, Signal
from stolon.lang.runtime_loop import runtime_loop
from stolon.srt.client import EngineClient


class OpenBlocks:
    """The blocks of a run that are not settled.

    Attributes:
        cancelled: branches that were, and the error that their blocks end with.
        recomputed: tokens that requests went on from and that the engine had to compute again.
    """

    def __init__(self, client: EngineClient, changed: Signal, *, streaming: bool) -> None:
        self.cancelled: dict[BranchPath, Aborted] = {}
        self.recomputed = 0
        self._client = client
        self._changed = changed
        self._streaming = streaming
        self._id = secrets.token_hex(6)
        self._numbers = count(1)
        self._open: dict[Block, None] = {}
        self._closed = False
        self._cause: BaseException | None = None

    def add(self, blocks: Iterable[Block]) -> None:
        """Blocks are going to be sent: whoever ends the run or a branch from now on finds them."""
        for block in blocks:
            self._open[block] = None
            block.settled.then(partial(self._forget, block))

    def send(self, block: Block) -> None:
        """Send a block, at once or when what it continues is there."""
        missing = None if block.settled.done() else block.needs()
        if missing is not None:
            # On the loop, not in the thread that settles it: that is the engine's.
            missing.then(partial(runtime_loop().call, self.send, block))
            return
        request_id = f"{self._id}-{next(self._numbers)}"
        ended = self._ended(block)
        if ended is None:
            changed = self._changed.notify
            block.send(self._client, request_id, streaming=self._streaming, changed=changed)
            ended = self._ended(block)  # while it was being sent
        if ended is not None:
            self._stop(block, ended)

    def drain(self) -> Iterator[Latch]:
        """What to wait for until everything that was sent is settled."""
        while self._open:
            for block in list(self._open):
                yield block.settled
                for call in block.calls:
                    yield call.settled
                self._open.pop(block, None)

    def end(self, path: BranchPath, error: Aborted) -> None:
        """Abort the blocks of a branch and of those forked from it. Does not wait."""
        for block in [block for block in list(self._open) if block.path[: len(path)] == path]:
            self._stop(block, error)

    def close(self, cause: BaseException | None) -> None:
        """Abort every block and refuse later ones, because of `cause` if it is known. Does not wait."""
        if cause is not None:
            self._cause = cause
        self._closed = True
        for block in list(self._open):
            self._stop(block, self._ended(block) or self._over_error(block))

    def _stop(self, block: Block, error: Aborted) -> None:
        block.fail(error)
        if block.request_id:
            with suppress(EngineClosed):  # then nothing of it runs in this process
                self._client.abort(block.request_id)

    def _forget(self, block: Block) -> None:
        self._open.pop(block, None)
        self.recomputed += block.recomputed
        self._changed.notify()

    def _ended(self, block: Block) -> Aborted | None:
        """Why the block must not run, None if it may."""
        for path, error in list(self.cancelled.items()):
            if block.path[: len(path)] == path:
                return error
        return self._over_error(block) if self._closed else None

    def _over_error(self, block: Block) -> Aborted:
        error = Aborted("the program was ended", where=block.calls[0].where)
        error.__cause__ = self._cause
        error.branch = branch_name(block.path) or None
        return error
