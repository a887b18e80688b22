"""Batches that are resumed from a file."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, InvalidRequest, ProgramError, UnknownVariable
from stolon.lang.batch import Batch
from stolon.lang.checkpoint import Checkpoint
from stolon.lang.checkpoint_lines import Identity, digest
from stolon.lang.runtime_loop import RuntimeLoop
from stolon.srt.protocol import Gen

TESTS = Path(__file__).resolve().parent.parent


def from_seed(before: str, segment: Gen) -> str:
    """A text that only the seed and the prompt decide."""
    return f"{before}{segment.sampling.seed}"


def seeded() -> FakeEngine:
    return FakeEngine({"a": from_seed})


@sl.function
def echo(s, i, scale=1):
    s += f"{i}:" + sl.gen("a")
    return i * scale


def items(count: int) -> list[tuple[int]]:
    return [(i,) for i in range(count)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


# -- going on ------------------------------------------------------------------------------------


def test_finished_items_are_not_run_again(path: Path) -> None:
    first = echo.run_batch(items(5), backend=seeded(), checkpoint=path)
    engine = seeded()
    again = echo.run_batch(items(8), backend=engine, checkpoint=str(path))
    assert len(engine.received) == 3
    assert [state.restored for state in again] == [True] * 5 + [False] * 3
    for old, new in zip(first, again, strict=False):
        assert (new["a"], new.ret_value, new.seed) == (old["a"], old.ret_value, old.seed)
    assert not first[0].restored
    assert len(lines(path)) == 1 + 8


@pytest.mark.parametrize("style", ["list", "generator", "completed", "async"])
def test_every_way_to_run_a_batch_resumes(path: Path, style: str) -> None:
    echo.run_batch(items(3), backend=seeded(), checkpoint=path)
    whole = {"backend": seeded(), "checkpoint": path, "num_threads": 2}
    if style == "list":
        found = echo.run_batch(items(6), **whole)
    elif style == "generator":
        found = list(echo.run_batch(iter(items(6)), generator_style=True, **whole))
    elif style == "completed":
        found = [s for _, s in sorted(echo.run_batch(items(6), as_completed=True, **whole))]
    else:

        async def main() -> list[Any]:
            return [state async for _, state in echo.arun_batch(items(6), **whole)]

        found = asyncio.run(main())
    assert [state.ret_value for state in found] == list(range(6))
    assert [state.restored for state in found] == [True] * 3 + [False] * 3


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


def test_failed_items_are_written_and_tried_again(path: Path) -> None:
    broken = FakeEngine({"a": lambda before, _: boom() if before == "1:" else "ok"})

    def boom() -> str:
        raise InternalError("boom \ud800")

    results = echo.run_batch(
        [*items(3), 5], backend=broken, checkpoint=path, return_exceptions=True
    )
    assert [type(r).__name__ for r in results] == [
        "ProgramState",
        "InternalError",
        "ProgramState",
        "InvalidRequest",
    ]
    faults = {line["item"]: line["error"] for line in lines(path)[1:] if "error" in line}
    assert faults[1]["code"] == "internal_error"
    assert faults[1]["where"].startswith("test_lang_checkpoint.py:")
    assert set(faults) == {1, 3}
    engine = FakeEngine()
    states = echo.run_batch(items(3), backend=engine, checkpoint=path)
    assert [s.restored for s in states] == [True, False, True]
    assert [entry.prompt for entry in engine.received] == ["1:"]
    engine = FakeEngine()
    assert all(s.restored for s in echo.run_batch(items(3), backend=engine, checkpoint=path))


# -- what is kept --------------------------------------------------------------------------------


class Point(BaseModel):
    x: int


def test_what_a_restored_state_has(path: Path) -> None:
    @sl.function
    def program(s, keep):
        s += sl.gen_int("n") + sl.gen("p", schema=Point) + sl.gen("cut", dtype=int)
        s += sl.gen("many", n=2) + sl.select("c", ["yes", "no"])
        with s.var_scope("all"):
            s += "text"
        s["list"] = [1, 2.5, None, {"k": "ü"}]
        s["tuple"] = (1, 2)
        return Point(x=3) if keep == "model" else {"sum": 4}

    engine = FakeEngine({"n": "41", "p": '{"x": 1}', "cut": "x", "many": ["a", "b"]})
    for _ in range(2):
        model, plain = program.run_batch([("model",), ("plain",)], backend=engine, checkpoint=path)
    assert isinstance(model, sl.RestoredState)
    assert set(model.variables) == {"n", "p", "cut", "many", "c", "all", "list"}
    assert (model["n"], model.value("n")) == ("41", 41)
    assert (model["many"], model.value("many")) == (["a", "b"], ["a", "b"])
    assert (model["c"], model["all"]) == ("yes", "text")
    assert model["list"] == model.value("list") == [1, 2.5, None, {"k": "ü"}]
    assert "n" in model
    assert "tuple" not in model
    assert model["p"] == '{"x": 1}'
    with pytest.raises(ProgramError, match=r"typed value of 'p'.*a Point.*state\['p'\]"):
        model.value("p")
    with pytest.raises(ProgramError, match=r"there is none.*no valid"):
        model.value("cut")
    with pytest.raises(ProgramError, match="'tuple' is not in the checkpoint: a tuple"):
        model["tuple"]
    with pytest.raises(UnknownVariable, match="'nothing'"):
        model["nothing"]
    with pytest.raises(ProgramError, match="ret_value is not in the checkpoint: a Point"):
        model.ret_value  # noqa: B018
    assert plain.ret_value == {"sum": 4}
    assert model.error() is None
    assert model.meta["finish"]["n"] == "stop"
    assert model.meta["sampled_tokens"] > 0
    assert "program" in repr(model)
    with pytest.raises(AttributeError, match="restored from a checkpoint has no text"):
        model.text()
    with pytest.raises(AttributeError, match="no attribute 'wrong'"):
        model.wrong  # noqa: B018


def test_a_variable_whose_generation_failed_is_not_kept(path: Path) -> None:
    @sl.function
    def program(s):
        s += sl.gen("a")
        with pytest.raises(InternalError):
            s["a"]

    engine = FakeEngine({"a": InternalError("boom")})
    for _ in range(2):
        (state,) = program.run_batch([()], backend=engine, checkpoint=path)
    assert state.restored
    with pytest.raises(ProgramError, match="there is none: boom"):
        state["a"]


# -- other files ---------------------------------------------------------------------------------


@sl.function
def other(s, i, scale=1):
    s += sl.gen("a")


@sl.function(None)
def _renamed(s, i, scale=2):
    s += sl.gen("a")


_renamed.name = "echo"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda **k: other.run_batch(items(2), **k), "its program is 'echo', not 'other'"),
        (lambda **k: _renamed.run_batch(items(2), **k), "signature is 'i, scale=1', not 'i, sc"),
        (lambda **k: echo.run_batch(items(2), seed=8, **k), "its seed is 7, not 8"),
        (lambda **k: echo.run_batch(items(2), top_p=0.5, **k), "its top_p is None, not 0.5"),
        (lambda **k: echo.run_batch([(0,), (2,)], **k), "item 1 had other arguments"),
        (lambda **k: echo.bind(scale=3).run_batch(items(2), **k), "item 0 had other arguments"),
    ],
)
def test_another_batch_is_refused_with_the_first_difference(
    path: Path, change: Any, message: str
) -> None:
    echo.run_batch(items(2), backend=seeded(), checkpoint=path, seed=7)
    before = path.read_bytes()
    with pytest.raises(InvalidRequest, match=message) as error:
        change(backend=seeded(), checkpoint=path)
    assert error.value.param == "checkpoint"
    assert str(path) in str(error.value)
    assert path.read_bytes() == before


def test_arguments_are_compared_by_what_they_are(path: Path) -> None:
    echo.run_batch([(0,)], backend=seeded(), checkpoint=path)
    (state,) = echo.run_batch([{"i": 0}], backend=seeded(), checkpoint=path)
    assert state.restored


def test_another_model_is_refused(path: Path) -> None:
    echo.run_batch(items(1), backend=seeded(), checkpoint=path)
    engine = seeded()
    import msgspec

    engine.info = msgspec.structs.replace(engine.info, name="bigger")
    with pytest.raises(InvalidRequest, match="its model is 'fake', not 'bigger'"):
        echo.run_batch(items(1), backend=engine, checkpoint=path)


@pytest.mark.parametrize(
    "content",
    [
        b"notes of mine",
        b"notes of mine\n",
        b'{"document": 1}\n',
        b'{"stolon_batch":1,"program":3}\n',
        b'{"stolon_batch":' + b"[" * 5000 + b"\n",
    ],
)
def test_files_of_others_are_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match="is no checkpoint of a batch"):
        echo.run_batch(items(1), backend=seeded(), checkpoint=path)
    assert path.read_bytes() == content


def test_a_broken_line_in_the_middle_is_named(path: Path) -> None:
    echo.run_batch(items(2), backend=seeded(), checkpoint=path)
    rows = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(rows[0] + b"what is this\n" + rows[2])
    with pytest.raises(InvalidRequest, match="line 2"):
        echo.run_batch(items(2), backend=seeded(), checkpoint=path)


@pytest.mark.parametrize("content", [b"", b'{"stol', b'{"stolon_batch":1,"program":"ec'])
def test_a_file_that_was_only_begun_is_begun_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    echo.run_batch(items(1), backend=seeded(), checkpoint=path)
    assert len(lines(path)) == 2


def test_a_file_in_use_and_one_that_cannot_be_opened(path: Path, tmp_path: Path) -> None:
    results = echo.run_batch(items(3), backend=seeded(), checkpoint=path, generator_style=True)
    next(results)
    with pytest.raises(InvalidRequest, match="in use by another batch"):
        echo.run_batch(items(3), backend=seeded(), checkpoint=path)
    results.close()
    assert len(echo.run_batch(items(3), backend=seeded(), checkpoint=path)) == 3
    with pytest.raises(InvalidRequest, match="can't be opened"):
        echo.run_batch(items(1), backend=seeded(), checkpoint=tmp_path / "no" / "file")


def test_items_that_are_no_data_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"items that are data: a lock is not.*bind\(\)"):
        echo.run_batch([(threading.Lock(),)], backend=seeded(), checkpoint=path)

    @sl.function
    def program(s, i, tool):
        return i

    bound = program.bind(tool=threading.Event())
    (state,) = bound.run_batch(items(1), backend=seeded(), checkpoint=tmp_path / "bound")
    assert state.ret_value == 0


def test_digests_see_content() -> None:
    same = [digest(1, {"a": 1, "b": [1, 2]}), digest(1, {"b": (1, 2), "a": 1})]
    assert len(set(same)) == 1
    values = [1, "1", 1.5, True, None, [1], {"1": 1}, Point(x=1), b"1", Path("1"), Point]
    found = {digest(1, value) for value in values} | {digest(2, 1)}
    assert len(found) >= len(values)  # of these only b"1" in base64 and text might meet


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


def test_a_checkpoint_must_be_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidRequest, match=r"no regular file|Is a directory"):
            echo.run_batch(items(1), backend=seeded(), checkpoint=odd)
