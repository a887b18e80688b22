"""Where one block of a branch ends and the next begins.

Text after the last generation or selection stays with the branch until more follows, so that text
which meets text is always tokenised together, wherever the program reads.
"""

from __future__ import annotations

from stolon.lang.blocks import Block, Tail
from stolon.lang.calls import BranchPath, Call, Item
from stolon.srt.protocol import MAX_SEGMENTS


def split(
    items: list[Item], tail: Tail | None, path: BranchPath = ()
) -> tuple[list[Block], list[Item]]:
    """Cut recorded items into chained blocks and the text that stays behind.

    A generation of several samples ends its block, and begins it but for the text before it: the
    engine walks a whole block once per sample, and the state goes on from sample 0 alone. One that
    reports the log-probs of the text before it begins its block, too: they are those of the prompt.
    """
    blocks: list[Block] = []
    run: list[Item] = []
    block: list[Item] = []

    def close() -> None:
        nonlocal block, tail
        if block:
            blocks.append(Block(block, tail, path))
            tail = Tail(blocks[-1])
            block = []

    for item in items:
        run.append(item)
        if not isinstance(item, Call):
            continue
        if item.n > 1 or item.prompt_logprobs or len(block) + len(run) >= MAX_SEGMENTS:
            close()
        block += run
        run = []
        if item.n > 1:
            close()
    close()
    return blocks, run
