"""Files that are no checkpoint of this batch are refused with the difference, and left alone."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.checkpointed import echo, items, lines, seeded

import stolon as sl
from stolon.errors import InvalidRequest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


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


def test_a_checkpoint_must_be_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for odd in (Path("/dev/zero"), tmp_path / "pipe", tmp_path):
        with pytest.raises(InvalidRequest, match=r"no regular file|Is a directory"):
            echo.run_batch(items(1), backend=seeded(), checkpoint=odd)
