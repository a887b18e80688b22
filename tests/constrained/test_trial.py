"""What may hurt is compiled in a process of its own first, and that process may die at any time."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from support.bombs import BOMBS
from support.grammar_walk import ids_of, make_vocabulary, spec

from stolon.constrained import CompileLimits, GrammarCompiler
from stolon.constrained.limits import is_costly, is_costly_source
from stolon.errors import EngineClosed, GrammarError, InternalError

ENDLESS = spec("regex", ".*" * 20_000)


@pytest.fixture(autouse=True)
def everything_is_costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stolon.constrained.compiler.is_costly", lambda spec: True)


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(make_vocabulary())
    yield compiler
    compiler.close()


def limited(**limits: Any) -> GrammarCompiler:
    compiler = GrammarCompiler(make_vocabulary(), limits=CompileLimits(**limits))
    compiler.compile(spec("regex", "warm"))
    return compiler


def pid(compiler: GrammarCompiler) -> int:
    process = compiler._trial._process
    assert process is not None
    return process.pid


def test_the_grammar_is_the_same_as_without_a_trial(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [
        spec("json_schema", {"type": "array", "items": {"enum": ["é", 1]}, "minItems": 1}),
        spec("choice", ["the", "then"]),
        spec("ebnf", 'root ::= "a" root | "b"'),
    ]
    tried = [compiler.compile(one, prefix=b" ").start() for one in specs]
    monkeypatch.undo()
    for one, matcher in zip(specs, tried, strict=True):
        plain = GrammarCompiler(compiler.vocabulary).compile(one, prefix=b" ").start()
        for _ in range(6):
            assert ids_of(matcher.mask()) == ids_of(plain.mask())
            if not plain.mask().count:
                break
            token = min(ids_of(plain.mask()))
            assert matcher.accept(token) == plain.accept(token)


def test_refusals_come_with_place_and_hint(compiler: GrammarCompiler) -> None:
    with pytest.raises(GrammarError) as caught:
        compiler.compile(spec("json_schema", {"items": {"$ref": "https://example.invalid"}}))
    assert caught.value.where == "/items/$ref"
    assert caught.value.hint


def test_the_process_is_kept_and_replaced_when_it_died(compiler: GrammarCompiler) -> None:
    compiler.compile(spec("regex", "a"))
    first = pid(compiler)
    compiler.compile(spec("regex", "b"))
    assert pid(compiler) == first
    os.kill(first, signal.SIGKILL)
    time.sleep(0.05)
    compiler.compile(spec("regex", "c"))
    assert pid(compiler) != first


def test_death_at_work_fails_one_request(compiler: GrammarCompiler) -> None:
    compiler.compile(spec("regex", "warm"))
    victim = pid(compiler)
    threading.Timer(0.2, os.kill, (victim, signal.SIGKILL)).start()
    with pytest.raises(InternalError, match="died"):
        compiler.compile(ENDLESS)
    compiler.compile(spec("regex", "after"))
    assert pid(compiler) != victim


def test_a_time_out_is_not_remembered() -> None:
    compiler = limited(trial_cpu=0.1)
    entries = len(compiler._cache)
    for _ in range(2):
        begun = time.perf_counter()
        with pytest.raises(GrammarError, match=r"takes longer than 0\.1 s"):
            compiler.compile(ENDLESS)
        assert time.perf_counter() - begun > 0.05
        assert len(compiler._cache) == entries
    compiler.compile(spec("regex", "after"))
    compiler.close()


def test_a_process_that_gets_no_processor_is_given_up() -> None:
    compiler = limited(trial_wall=0.2)
    os.kill(pid(compiler), signal.SIGSTOP)
    with pytest.raises(GrammarError, match="takes longer"):
        compiler.compile(spec("regex", "b"))
    compiler.close()


def test_a_flood_of_memory_is_refused_and_remembered() -> None:
    compiler = limited(trial_bytes=12 << 20)
    kind, text = BOMBS["json_schema any_of_nest"]()
    flood = spec(kind, text)
    for _ in range(2):
        with pytest.raises(GrammarError, match="takes more than 12 MiB"):
            compiler.compile(flood)
    assert len(compiler._cache) == 2
    compiler.close()


def test_close_ends_the_process_and_whoever_waits(compiler: GrammarCompiler) -> None:
    compiler.compile(spec("regex", "warm"))
    process = compiler._trial._process
    assert process is not None
    threading.Timer(0.1, compiler.close).start()
    with pytest.raises(EngineClosed):
        compiler.compile(ENDLESS)
    assert process.poll() is not None
    with pytest.raises(EngineClosed):
        compiler.compile(spec("regex", "b"))
    compiler.close()


def test_the_child_of_a_fork_has_a_process_of_its_own(compiler: GrammarCompiler) -> None:
    compiler.compile(spec("regex", "warm"))
    mine = pid(compiler)
    # Locks that another thread holds at the fork stay held in the child.
    with warnings.catch_warnings(), compiler._trial._lock, compiler._cache._lock:
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads sleep
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                compiler.compile(spec("regex", "b"))
                fine = pid(compiler) != mine
                compiler.close()
            except BaseException:
                fine = False
            os._exit(0 if fine else 1)
    _, status = os.waitpid(child, 0)
    assert status == 0
    compiler.compile(spec("regex", "c"))
    assert pid(compiler) == mine


def test_what_is_costly() -> None:
    assert not is_costly_source(spec("json_schema", {"oneOf": [{"type": "integer"}] * 4}).text)
    many = spec("json_schema", {"anyOf": [{"not": {"const": i}} for i in range(40)]})
    assert is_costly_source(many.text)
    assert is_costly(spec("lark", 'start: "a"{3,90}'))
    assert not is_costly(spec("ebnf", 'root ::= "a" root | "b"'))
    assert is_costly(ENDLESS)
