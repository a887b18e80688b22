"""What a serving process does with its memory."""

import gc

from stolon.srt.heap import settle_heap


def test_what_was_there_is_left_out_of_collections() -> None:
    before = gc.get_freeze_count()
    kept = [[] for _ in range(100)]
    try:
        settle_heap()
        assert gc.get_freeze_count() >= before + len(kept)
        assert not any(one is kept for one in gc.get_objects())
    finally:
        gc.unfreeze()
