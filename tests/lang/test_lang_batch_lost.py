"""Whatever ends a batch, and however its results are taken: nothing that is finished is lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.lang.checkpoint import Checkpoint

# The ways through a batch: what they hand over, by the index of the item, goes to `handed`.


def listed(program: sl.Function, items: Any, handed: dict[int, Any], **options: Any) -> None:
    handed.update(enumerate(program.run_batch(items, backend=FakeEngine(), **options)))


def in_order(program: sl.Function, items: Any, handed: dict[int, Any], **options: Any) -> None:
    states = program.run_batch(items, backend=FakeEngine(), generator_style=True, **options)
    for state in states:
        handed[len(handed)] = state


def as_completed(program: sl.Function, items: Any, handed: dict[int, Any], **options: Any) -> None:
    states = program.run_batch(items, backend=FakeEngine(), as_completed=True, **options)
    for index, state in states:
        handed[index] = state


def on_a_loop(program: sl.Function, items: Any, handed: dict[int, Any], **options: Any) -> None:
    async def main() -> None:
        async for index, state in program.arun_batch(items, backend=FakeEngine(), **options):
            handed[index] = state

    asyncio.run(main())


def on_a_loop_as_completed(
    program: sl.Function, items: Any, handed: dict[int, Any], **options: Any
) -> None:
    on_a_loop(program, items, handed, as_completed=True, **options)


def awaited(program: sl.Function, items: Any, handed: dict[int, Any], **options: Any) -> None:
    async def main() -> None:
        states = await program.arun_batch(items, backend=FakeEngine(), **options)
        handed.update(enumerate(states))

    asyncio.run(main())


WAYS = [listed, in_order, as_completed, awaited, on_a_loop, on_a_loop_as_completed]


def accounted(error: BaseException, handed: dict[int, Any]) -> dict[int, Any]:
    """What was handed over or is on the error, by the index of its item."""
    results = error.results  # type: ignore[attr-defined]
    left = {i: r for i, r in enumerate(results) if isinstance(r, sl.ProgramState)}
    assert not left.keys() & handed.keys()
    return {index: state.ret_value for index, state in (handed | left).items()}


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_when_an_item_fails_is_handed_over_or_on_the_error(way: Any) -> None:
    failed, ended = threading.Event(), []

    @sl.function
    def program(s, i):
        if i == 1:
            failed.set()
            raise ValueError("one")
        failed.wait(5)
        time.sleep(0.02)
        ended.append(i)
        return i

    handed: dict[int, Any] = {}
    with pytest.raises(ValueError, match="one") as error:
        way(program, [(i,) for i in range(9)], handed, num_threads=4)
    assert set(ended) >= {0, 2, 3}
    assert accounted(error.value, handed) == {i: i for i in ended}
    results = error.value.results  # type: ignore[attr-defined]
    assert len(results) == 9
    assert results[1] is error.value
    if way in (as_completed, on_a_loop_as_completed):
        assert set(handed) == set(ended)


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_when_the_items_raise_ends_and_is_not_lost(way: Any) -> None:
    broken = threading.Event()

    def items() -> Iterator[tuple[int]]:
        yield from [(0,), (1,), (2,)]
        broken.set()
        raise OSError("no more disk")

    @sl.function
    def program(s, i):
        broken.wait(5)
        time.sleep(0.02)
        return i

    handed: dict[int, Any] = {}
    with pytest.raises(OSError, match="no more disk") as error:
        way(program, items(), handed, num_threads=4)
    assert accounted(error.value, handed) == {0: 0, 1: 1, 2: 2}
    if way not in (listed, awaited):
        assert set(handed) == {0, 1, 2}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_finished_when_the_checkpoint_fails_is_not_lost(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(_: Checkpoint) -> None:
        raise OSError("full")

    @sl.function
    def program(s, i):
        return i

    monkeypatch.setattr(Checkpoint, "close", close)
    handed: dict[int, Any] = {}
    with pytest.raises(OSError, match="full") as error:
        way(program, [(0,), (1,)], handed, checkpoint=tmp_path / "batch.jsonl")
    assert accounted(error.value, handed) == {0: 0, 1: 1}


@pytest.mark.parametrize("way", WAYS)
def test_an_item_that_the_checkpoint_does_not_take_is_on_the_error(
    way: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def append(*_: object) -> None:
        raise OSError("full")

    @sl.function
    def program(s, i):
        return i

    monkeypatch.setattr(Checkpoint, "append", append)
    handed: dict[int, Any] = {}
    with pytest.raises(OSError, match="full") as error:
        way(program, [(0,), (1,)], handed, checkpoint=tmp_path / "batch.jsonl", num_threads=1)
    assert accounted(error.value, handed) == {0: 0}


@pytest.mark.parametrize("way", [in_order, as_completed])
def test_ctrl_c_in_a_stream_says_what_is_not_handed_over(way: Any) -> None:
    ended = threading.Event()

    def items() -> Iterator[tuple[int]]:
        yield from [(0,), (1,)]
        ended.wait(5)
        time.sleep(0.05)
        raise KeyboardInterrupt

    @sl.function
    def program(s, i):
        if i == 1:
            ended.set()
        return i

    handed: dict[int, Any] = {}
    with pytest.raises(
        sl.BatchInterrupted, match=r"2 of 2 items are finished[ ,a-z0-9]*, see \.results"
    ) as error:
        way(program, items(), handed, num_threads=3)
    assert accounted(error.value, handed) == {0: 0, 1: 1}
