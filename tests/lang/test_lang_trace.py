"""The trace of a run, and the public names of the package."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from support.fake_engine import FakeEngine

import stolon as sl
import stolon.lang


def test_trace_counts_and_prints_a_tree() -> None:
    @sl.function
    def program(s):
        s += "abc" + sl.gen("a")
        forks = s.fork(2)
        forks += sl.gen("v", n=2)
        forks[1] += "!" + sl.select("w", ["x", "y"])
        inner = forks[1].fork(1)
        inner += sl.gen("deep", max_tokens=1)

    trace = program.run(backend=FakeEngine(), seed=9).trace
    assert trace.program == "program"
    assert trace.seed == 9
    assert [c.name for c in trace.calls] == ["a", "v", "v", "w", "deep"]
    assert [c.path for c in trace.calls] == [
        (),
        ((0, 0),),
        ((0, 1),),
        ((0, 1),),
        ((0, 1), (0, 0)),
    ]
    assert [c.finish for c in trace.calls] == ["stop", "stop", "stop", "choice", "length"]
    assert trace.calls[0].tokens == stolon.lang.TokenCounts(computed=3, sampled=2)
    assert trace.calls[1].tokens.sampled == 4
    assert trace.totals.sampled == 2 + 4 + 4 + 0 + 1
    assert trace.branches == 4
    assert trace.seconds > 0
    lines = trace.tree(100).splitlines()
    assert lines[0].startswith("program  5 calls, 4 branches, ")
    assert [line.split("  ")[0] for line in lines[2:-1]] == [
        "├─ gen a",
        "├─ fork 0 [0]",
        "│",
        "└─ fork 0 [1]",
        "",
        "",
        "",
        "",
    ]
    assert [line.split()[:2] for line in lines[-2:]] == [["└─", "gen"], ["total", "4"]]
    assert lines[1].split() == ["computed", "generated", "finish", "time"]


def test_times_of_a_block_add_up() -> None:
    @sl.function
    def program(s):
        s += sl.gen("a") + sl.gen("b") + sl.gen("c")

    trace = program.run(backend=FakeEngine(delay=0.02)).trace
    a, b, c = trace.calls
    assert min(a.seconds, b.seconds, c.seconds) > 0.015
    assert c.started == pytest.approx(a.seconds + b.seconds)
    assert trace.seconds == pytest.approx(c.started + c.seconds)


def test_trace_of_a_running_program_does_not_wait() -> None:
    @sl.function
    def program(s):
        s += sl.gen()
        trace = s.trace
        assert trace.calls[0].finish == "running"
        assert trace.calls[0].seconds is None
        assert "(unnamed)" in str(trace)
        assert [e["ph"] for e in trace.chrome()["traceEvents"]] in (["M"] * 3, ["M"] * 3 + ["B"])
        assert len(spans(trace)) == 1
        assert "running" in trace._repr_html_()

    program.run(backend=FakeEngine())


def spans(trace: sl.Trace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = trace.otel_spans()["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return found


def test_repr_of_a_state_does_not_wait() -> None:
    @sl.function
    def program(s):
        s += "a" + sl.gen("b")
        assert repr(s) == "<ProgramState of 'program': 'a...'>"

    assert repr(program.run(backend=FakeEngine())) == "<ProgramState of 'program': 'aok'>"
    assert repr(program) == "<program program(s)>"


def test_exported_names_exist_and_are_sorted() -> None:
    for module in (sl, stolon.lang):
        assert list(module.__all__) == sorted(module.__all__)
    for name in sl.__all__:
        if name != "Engine":
            assert getattr(sl, name) is not None
    assert set(sl.__all__) <= set(dir(sl))
    assert not hasattr(sl, "nothing")


def test_importing_is_light() -> None:
    code = (
        "import time, sys; start = time.process_time(); import stolon; "
        "spent = time.process_time() - start; "
        "assert 'torch' not in sys.modules and 'stolon.lang' not in sys.modules; "
        "stolon.function; assert 'torch' not in sys.modules; print(spent)"
    )
    spent = min(
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(3)
    )
    assert spent < 0.05
