"""Slots of running sequences: reserves, claims, and what is given back."""

from __future__ import annotations

import numpy as np

from stolon.radix import PrefixTree, SlotPool
from stolon.srt.job import Job, Known
from stolon.srt.kv_space import RESERVE, KVSpace
from stolon.srt.protocol import Request, Tokens
from stolon.srt.sequence import Sequence


def space(slots: int, *, context: int = 64) -> KVSpace:
    pool = SlotPool(slots)
    return KVSpace(pool, PrefixTree(pool), np.zeros((6, context), np.int64), spare_rows=2)


def sequence(space: KVSpace, ids: list[int]) -> Sequence:
    """An attached sequence with all of its tokens computed."""
    request = Request(rid=str(ids), segments=[Tokens(ids)])
    job = Job(request, [Known(ids)], lambda event: None, 0.0, np.array(ids), b"")
    seq = Sequence(job, 0, list(ids))
    space.attach(seq)
    assert space.extend(seq, seq.pending)
    seq.computed = seq.claimed
    return seq


def slots(space: KVSpace, seq: Sequence, stop: int) -> set[int]:
    return set(space.table[seq.row, :stop].tolist())


def test_decoding_takes_consecutive_slots() -> None:
    kv = space(128)
    one, two = sequence(kv, [1, 2, 3]), sequence(kv, [4, 5, 6])
    for _ in range(RESERVE):
        for seq in (one, two):
            assert kv.extend(seq, 1)
            seq.tokens.append(0)
            seq.computed = seq.claimed
    for seq in (one, two):
        own = kv.table[seq.row, 3 : 3 + RESERVE]
        assert (np.diff(own) == 1).all()
    kv.check_integrity([one, two])


def test_a_reserve_is_taken_back_for_others_but_not_what_a_step_writes() -> None:
    kv = space(40)
    one, two = sequence(kv, [1, 2, 3]), sequence(kv, [4, 5])
    assert kv.extend(one, 1)
    assert one.held - one.claimed == RESERVE - 1
    room = kv.available
    assert room == 40 - 3 - 2 - 1
    assert kv.extend(two, room)
    assert one.held == one.claimed == 4
    assert not slots(kv, one, 4) & slots(kv, two, 2 + room)
    assert kv.available == 0
    assert not kv.extend(two, room + 1)
    kv.check_integrity([one, two])


def test_a_reserve_does_not_reach_beyond_the_context() -> None:
    kv = space(128, context=8)
    seq = sequence(kv, [1, 2, 3])
    for length in range(4, 9):
        assert kv.extend(seq, 1)
        seq.tokens.append(0)
        seq.computed = seq.claimed
        assert seq.held == 8
        assert len(slots(kv, seq, length)) == length
    kv.check_integrity([seq])


def test_rewinding_and_leaving_give_everything_back() -> None:
    kv = space(64)
    seq = sequence(kv, [1, 2, 3])
    assert kv.extend(seq, 1)
    kv.rewind(seq, 2)
    assert (seq.computed, seq.claimed, seq.held) == (2, 2, 2)
    kv.check_integrity([seq])
    assert kv.extend(seq, 1)
    seq.computed = seq.claimed
    kv.detach(seq)
    assert kv.tree.size == 3
    assert kv.pool.num_free == 61
    kv.check_integrity([])


def test_cached_prefixes_give_way_to_a_reserve() -> None:
    kv = space(40)
    kv.detach(sequence(kv, list(range(30))))
    seq = sequence(kv, [100, 101])
    assert kv.pool.num_free == 8
    assert kv.extend(seq, 1)
    assert seq.held == 2 + RESERVE
    assert kv.evicted == RESERVE - 8
    kv.check_integrity([seq])
