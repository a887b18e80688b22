"""Batches that are killed, interrupted or out of disk lose nothing that was finished."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.checkpointed import echo, from_seed, items, lines, seeded
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.lang.batch import Batch
from stolon.lang.checkpoint import Checkpoint
from stolon.lang.checkpoint_lines import Identity
from stolon.lang.runtime_loop import RuntimeLoop
from stolon.srt.protocol import Gen

TESTS = Path(__file__).resolve().parent.parent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
import stolon as sl
from support.fake_engine import FakeEngine

def answer(before, segment):
    if before == "7:":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{{before}}{{segment.sampling.seed}}"

@sl.function
def echo(s, i, scale=1):
    s += f"{{i}}:" + sl.gen("a")
    return i * scale

echo.run_batch([(i,) for i in range(12)], num_threads=2, checkpoint={path!r},
               backend=FakeEngine({{"a": answer}}, delay=0.01))
"""


def test_a_killed_batch_goes_on_as_if_it_had_never_stopped(path: Path) -> None:
    code = KILLED.format(tests=str(TESTS), path=str(path))
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    done = len(lines(path)) - 1
    assert 5 <= done <= 7  # the engine was at item 7, and answers one after the other
    with path.open("ab") as file:
        file.write(b'{"item":7,"dig')  # killed while it wrote
    engine = seeded()
    resumed = echo.run_batch(items(12), backend=engine, checkpoint=path)
    assert len(engine.received) == 12 - done
    seed = lines(path)[0]["seed"]
    whole = echo.run_batch(items(12), backend=seeded(), seed=seed)
    assert [s["a"] for s in resumed] == [s["a"] for s in whole]
    assert sorted(line["item"] for line in lines(path)[1:]) == list(range(12))


def test_an_interrupted_batch_is_complete_up_to_then(path: Path) -> None:
    reached, go = threading.Event(), threading.Event()

    def answer(before: str, segment: Gen) -> str:
        if before == "3:":
            reached.set()
            go.wait(5)
        return from_seed(before, segment)

    def interrupt() -> None:
        reached.wait(5)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(sl.BatchInterrupted) as error:
        echo.run_batch(items(9), num_threads=2, backend=FakeEngine({"a": answer}), checkpoint=path)
    thread.join()
    go.set()
    finished = [i for i, r in enumerate(error.value.results) if isinstance(r, sl.ProgramState)]
    # Item 3 begins when two have ended; a third may be behind it in the engine.
    assert len(finished) >= 2
    assert set(finished) <= {0, 1, 2}
    assert sorted(line["item"] for line in lines(path)[1:]) == finished


def test_what_is_being_written_when_a_batch_is_interrupted_is_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, writing = Checkpoint.append, threading.Event()

    def slowly(self: Checkpoint, *line: Any) -> None:
        writing.set()
        time.sleep(0.3)
        append(self, *line)

    def interrupt() -> None:
        writing.wait(5)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    monkeypatch.setattr(Checkpoint, "append", slowly)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(sl.BatchInterrupted) as error:
        echo.run_batch(items(3), num_threads=1, backend=seeded(), checkpoint=path)
    thread.join()
    finished = [i for i, r in enumerate(error.value.results) if r is not None]
    assert [line["item"] for line in lines(path)[1:]] == finished == [0]


@pytest.mark.parametrize("when", ["pulled", "taken", "launched"])
def test_ctrl_c_between_two_lines_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    take, launch, first = Batch.take, RuntimeLoop.submit, True

    def interrupted(self: Any, *given: Any) -> Any:
        nonlocal first
        if not first:
            return (launch if when == "launched" else take)(self, *given)
        first = False
        if when == "taken":
            take(self, *given)
        elif when == "launched":
            given[0].close()
        raise KeyboardInterrupt

    if when == "launched":
        monkeypatch.setattr(RuntimeLoop, "submit", interrupted)
    else:
        monkeypatch.setattr(Batch, "take", interrupted)
    start = time.monotonic()
    with pytest.raises(sl.BatchInterrupted) as error:
        echo.run_batch(items(3), num_threads=1, backend=seeded(), checkpoint=path)
    assert time.monotonic() - start < 3
    finished = [i for i, r in enumerate(error.value.results) if r is not None]
    assert [line["item"] for line in lines(path)[1:]] == finished
    assert finished == ([] if when == "launched" else [0])


def test_a_full_disk_ends_the_batch_and_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = os.write, 0

    def full(file: int, data: Any) -> int:
        nonlocal calls
        calls += bytes(data).startswith(b'{"item"')
        if calls == 3:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as error:
        echo.run_batch(items(6), num_threads=1, backend=seeded(), checkpoint=path)
    results = error.value.results  # type: ignore[attr-defined]
    assert [r.ret_value for r in results[:3]] == [0, 1, 2]


def test_a_line_that_was_written_in_part_does_not_spoil_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Identity(program="p", signature="", model="m", sampling={})
    checkpoint = Checkpoint(path, identity, seed=1, draw=0)
    write = os.write

    def full(file: int, data: Any) -> int:
        if not bytes(data).startswith(b"{"):
            raise OSError(28, "No space left on device")
        return write(file, bytes(data)[:9])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space") as error:
        checkpoint.append(0, "digest", ValueError())
    assert error.value.filename == str(path)
    monkeypatch.undo()
    checkpoint.append(1, "digest", ValueError())
    checkpoint.close()
    assert [line.get("item") for line in lines(path)] == [None, 1]
