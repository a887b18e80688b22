"""Interned masks: one object per content, three forms, bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from stolon.constrained import MaskPool
from stolon.constrained.vocabulary import pack, unpack

SIZE = 5000


def row(*, allowed: range, size: int = SIZE) -> np.ndarray:
    bits = np.zeros(size, bool)
    bits[allowed.start : allowed.stop] = True
    return pack(bits)


@pytest.mark.parametrize("size", [1, 31, 32, 33, 64, 1000])
def test_pack_and_unpack(size: int) -> None:
    bits = np.random.default_rng(size).random(size) < 0.5
    packed = pack(bits)
    assert packed.dtype == np.int32
    assert (unpack(packed, size) == bits).all()
    assert all(bool(packed[i // 32] >> (i % 32) & 1) == bits[i] for i in range(size))


@pytest.mark.parametrize(
    ("count", "form"),
    [
        (0, "allow"),
        (1, "allow"),
        (1024, "allow"),
        (1025, "bits"),
        (3975, "bits"),
        (3976, "deny"),
        (SIZE, "deny"),
    ],
)
def test_the_shortest_form_is_kept(count: int, form: str) -> None:
    mask = MaskPool(SIZE).intern(row(allowed=range(count)))
    assert mask.count == count
    assert mask.full == (count == SIZE)
    assert [n for n in ("allow", "deny", "bits") if getattr(mask, n) is not None] == [form]
    assert [
        i
        for i in (0, 1, count - 1, count, SIZE - 1)
        if 0 <= i < SIZE and mask.allows(i) != (i < count)
    ] == []
    array = getattr(mask, form)
    assert not array.flags.writeable
    assert array.dtype == (bool if form == "bits" else np.int64)


def test_equal_rows_are_one_mask_and_old_ones_go() -> None:
    pool = MaskPool(SIZE, max_rows=2)
    first = pool.intern(row(allowed=range(3)))
    second = pool.intern(row(allowed=range(4)))
    assert first is pool.intern(row(allowed=range(3)))
    assert first.id != second.id
    pool.intern(row(allowed=range(5)))
    assert len(pool) == 2
    assert pool.intern(row(allowed=range(3))) is first
    assert pool.intern(row(allowed=range(4))).id not in (first.id, second.id)


def test_memory_is_bounded() -> None:
    pool = MaskPool(SIZE, max_bytes=20_000)
    for i in range(20):
        pool.intern(row(allowed=range(2000 + i)))
    assert 1 <= len(pool) <= 4
