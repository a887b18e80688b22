"""The slot pool: every slot has at most one owner, and mistakes are refused without harm."""

import numpy as np
import pytest
import torch

from stolon.errors import InternalError
from stolon.radix import KVCache, SlotPool


def test_a_fresh_pool_hands_out_ascending_slots_until_it_is_empty():
    pool = SlotPool(5)
    first = pool.alloc(3)
    assert first.dtype == np.int64
    assert first.tolist() == [0, 1, 2]
    assert pool.alloc(3) is None
    assert pool.num_free == 2
    assert pool.alloc(2).tolist() == [3, 4]
    assert pool.alloc(0).tolist() == []
    assert pool.num_free == 0


def test_freed_slots_come_back_first_and_in_order():
    pool = SlotPool(10)
    pool.alloc(6)
    pool.free(np.array([4, 1, 2]))
    assert pool.num_free == 7
    assert pool.alloc(3).tolist() == [4, 1, 2]


@pytest.mark.parametrize(
    ("slots", "reason"),
    [
        ([7], "free already"),
        ([-1], "not in a pool"),
        ([10], "not in a pool"),
        ([0, 1, 0], "twice in one call"),
        ([0, 9], "free already"),
    ],
)
def test_a_wrong_free_is_refused_and_changes_nothing(slots, reason):
    pool = SlotPool(10)
    pool.alloc(4)
    with pytest.raises(InternalError, match=reason):
        pool.free(np.array(slots))
    assert pool.num_free == 6
    pool.check_integrity()


def test_no_slot_is_ever_owned_twice():
    pool, rng = SlotPool(64), np.random.default_rng(3)
    owned: list[np.ndarray] = []
    for _ in range(500):
        if owned and rng.random() < 0.5:
            pool.free(owned.pop(int(rng.integers(len(owned)))))
        else:
            slots = pool.alloc(int(rng.integers(0, 12)))
            if slots is not None:
                owned.append(slots)
        held = np.concatenate([*owned, pool.free_slots()])
        assert sorted(held.tolist()) == list(range(64))
    pool.check_integrity()


def test_the_kv_cache_has_a_zeroed_padding_row_past_the_pool():
    cache = KVCache(3, 8, 2, 4, torch.bfloat16)
    assert len(cache.k) == len(cache.v) == 3
    for rows in (*cache.k, *cache.v):
        assert rows.shape == (9, 2, 4)
        assert rows.dtype == torch.bfloat16
        assert not rows[cache.scratch_slot].any()
    assert KVCache.bytes_per_token(3, 2, 4, torch.bfloat16) == 2 * 3 * 2 * 4 * 2


def test_a_kv_cache_without_slots_is_refused():
    with pytest.raises(InternalError):
        KVCache(3, 0, 2, 4, torch.float32)
