"""Batches that are resumed from a file, and what the file keeps of a state."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from support.checkpointed import echo, items, lines, seeded
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InternalError, ProgramError, UnknownVariable
from stolon.lang.checkpoint_lines import digest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


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
    assert faults[1]["where"].startswith("checkpointed.py:")
    assert set(faults) == {1, 3}
    engine = FakeEngine()
    states = echo.run_batch(items(3), backend=engine, checkpoint=path)
    assert [s.restored for s in states] == [True, False, True]
    assert [entry.prompt for entry in engine.received] == ["1:"]
    engine = FakeEngine()
    assert all(s.restored for s in echo.run_batch(items(3), backend=engine, checkpoint=path))


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


def test_digests_see_content() -> None:
    same = [digest(1, {"a": 1, "b": [1, 2]}), digest(1, {"b": (1, 2), "a": 1})]
    assert len(set(same)) == 1
    values = [1, "1", 1.5, True, None, [1], {"1": 1}, Point(x=1), b"1", Path("1"), Point]
    found = {digest(1, value) for value in values} | {digest(2, 1)}
    assert len(found) >= len(values)  # of these only b"1" in base64 and text might meet
