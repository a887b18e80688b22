"""Errors: raised at the read and at the end, as what they are, with the program line."""

from __future__ import annotations

import pickle
import traceback

import pytest
from support.fake_engine import FakeEngine
from support.where import line

import stolon as sl
from stolon.errors import EngineClosed, GrammarError, InternalError, InvalidRequest


def test_raised_at_the_read_with_the_program_line() -> None:
    seen = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("fine")
        here = line(+1)
        s += sl.gen("bad")
        assert s["fine"] == "ok"
        with pytest.raises(InternalError, match="boom") as error:
            s["bad"]
        assert error.value.where == here
        seen.append(error.value)
        raise error.value

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")}))
    assert error.value is seen[0]
    assert "program" in error.value.__notes__[0]


def test_raised_at_the_end_when_nobody_reads() -> None:
    lines = []

    @sl.function
    def program(s):
        lines.append(line(+1))
        s += "x" + sl.gen()

    engine = FakeEngine(default=InternalError("boom"))
    with pytest.raises(InternalError) as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]


def test_the_place_inside_a_schema_is_kept_beside_the_line() -> None:
    @sl.function
    def program(s):
        s += sl.gen("free") + sl.gen("typed", schema={"type": "object"})

    engine = FakeEngine({"free": GrammarError("bad", where="/properties/a", param="schema")})
    with pytest.raises(GrammarError) as error:
        program.run(backend=engine)
    assert error.value.where is not None
    assert error.value.where.endswith(": /properties/a")
    assert error.value.param == "schema"


def test_the_segment_that_the_engine_names_gives_the_line() -> None:
    lines = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("a")
        lines.append(line(+1))
        s += sl.gen("b")

    refusal = InvalidRequest("no", param="top_p")
    refusal.segment = 2
    engine = FakeEngine({"a": refusal})
    with pytest.raises(InvalidRequest) as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]


def test_an_error_that_the_program_has_seen_does_not_end_the_run() -> None:
    @sl.function
    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sl.gen(f"v{i}")
        values = []
        for i, f in enumerate(forks):
            try:
                values.append(f[f"v{i}"])
            except InternalError:
                values.append(None)
        return values

    state = program.run(backend=FakeEngine({"v1": InternalError("boom")}))
    assert state.ret_value == ["ok", None, "ok"]
    assert state.error() is None


def test_a_failed_branch_stays_failed_and_others_go_on() -> None:
    @sl.function
    def program(s):
        bad, good = s.fork(2)
        bad += sl.gen("bad")
        good += sl.gen("good")
        assert isinstance(bad.error(), InternalError)
        bad += "more" + sl.gen("later")
        with pytest.raises(InternalError, match="boom"):
            bad["later"]
        with pytest.raises(InternalError, match="boom"):
            bad.text()
        good += " " + sl.gen("good2")
        return good.text(), s.error()

    engine = FakeEngine({"bad": InternalError("boom")})
    assert program.run(backend=engine).ret_value == ("ok ok", None)
    assert len(engine.requests) == 3  # what follows a failed block is never sent


def test_wrong_arguments_are_refused_at_their_line() -> None:
    lines = []

    @sl.function
    def program(s):
        lines.append(line(+1))
        s += sl.gen("a", min_tokens=5, max_tokens=3)

    @sl.function
    def nothing(s):
        lines.append(line(+1))
        s += None

    with pytest.raises(InvalidRequest, match="min_tokens") as error:
        program.run(backend=FakeEngine())
    assert error.value.where == lines[0]
    with pytest.raises(InvalidRequest, match="None") as error:
        nothing.run(backend=FakeEngine())
    assert error.value.where == lines[1]


def test_run_defaults_are_checked_before_anything_runs() -> None:
    @sl.function
    def program(s):
        raise AssertionError("not reached")

    with pytest.raises(InvalidRequest, match="temperature"):
        program.run(temperature="hot", backend=FakeEngine())


def test_a_failed_borrowed_text_keeps_its_line() -> None:
    lines = []

    @sl.function
    def program(s):
        forks = s.fork(1)
        lines.append(line(+1))
        forks += sl.gen("bad")
        forks.join("concate_and_append")
        s += sl.gen("after")
        with pytest.raises(InternalError):
            s["after"]

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")})).text()
    assert error.value.where == lines[0]


def test_an_error_names_its_branch_and_its_request() -> None:
    @sl.function
    def program(s):
        forks = s.fork(2)
        forks[1] += "x" + sl.gen("inner")
        deep = forks[1].fork(1)[0]
        deep += sl.gen("bad")
        deep["bad"]

    engine = FakeEngine({"bad": InternalError("boom")})
    with pytest.raises(InternalError) as error:
        program.run(backend=engine)
    rid = engine.received_by("bad").request.rid
    assert (error.value.branch, error.value.request) == ("0.1/0.0", rid)
    assert str(error.value) == f"boom [at {error.value.where}, branch 0.1/0.0, request {rid}]"
    copied = pickle.loads(pickle.dumps(error.value))
    assert (copied.branch, copied.request) == ("0.1/0.0", rid)


def test_the_root_branch_needs_no_name() -> None:
    @sl.function
    def program(s):
        s += sl.gen("bad")

    with pytest.raises(InternalError) as error:
        program.run(backend=FakeEngine({"bad": InternalError("boom")}))
    assert error.value.branch is None
    assert "branch" not in str(error.value)


def test_a_lost_engine_is_one_error_for_each_generation() -> None:
    lines = []

    @sl.function
    def program(s):
        s += "x" + sl.gen("fine")
        assert s["fine"] == "ok"
        engine.answers["a"] = engine.answers["b"] = EngineClosed("the connection is lost")
        forks = s.fork(2)
        lines.append(line(+1))
        forks[0] += sl.gen("a")
        lines.append(line(+1))
        forks[1] += sl.gen("b")

    engine = FakeEngine()
    with pytest.raises(EngineClosed, match="connection is lost") as error:
        program.run(backend=engine)
    assert error.value.where == lines[0]
    assert error.value.__notes__[0] == "2 errors in this run; the first is shown"
    state = error.value.state
    assert state["fine"] == "ok"
    assert [c.error.where for c in state._branch.run.calls[1:]] == lines


def test_reading_a_failure_again_and_again_shows_that_read_alone() -> None:
    @sl.function
    def program(s):
        s += sl.gen("bad")
        depths = []
        for _ in range(3):
            with pytest.raises(InternalError) as error:
                s["bad"]
            frames = traceback.extract_tb(error.value.__traceback__)
            assert frames[0].name == "program"
            depths.append(len(frames))
        return depths

    depths = program.run(backend=FakeEngine({"bad": InternalError("boom")})).ret_value
    assert depths[0] == depths[1] == depths[2]
