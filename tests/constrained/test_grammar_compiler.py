"""Cache, single flight, limits."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support.grammar_walk import make_vocabulary, spec

from stolon.constrained import CompileLimits, GrammarCompiler, GrammarSpec, Vocabulary
from stolon.constrained.compile_cache import CompileCache
from stolon.errors import GrammarError, InvalidRequest


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> tuple[GrammarCompiler, list[str]]:
    calls: list[str] = []
    plain = GrammarCompiler._compile

    def slow(self: GrammarCompiler, spec: GrammarSpec, prefix: bytes) -> Any:
        calls.append(spec.text)
        time.sleep(0.05)
        if spec.text == "fault":
            raise RuntimeError("fault")
        return plain(self, spec, prefix)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)
    return GrammarCompiler(make_vocabulary(), cache_entries=3), calls


def test_equal_specs_compile_once(counted: tuple[GrammarCompiler, list[str]]) -> None:
    compiler, calls = counted
    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(compiler.compile(spec("regex", "a+"))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls == ["a+"]
    assert len(set(map(id, results))) == 1
    compiler.compile(spec("regex", "a+", whitespace="compact"))
    assert calls == ["a+"]
    compiler.compile(spec("regex", "a+"), prefix=b" ")
    assert len(calls) == 2


def test_refusals_are_remembered_and_faults_are_not(
    counted: tuple[GrammarCompiler, list[str]],
) -> None:
    compiler, calls = counted
    errors = []
    for _ in range(2):
        with pytest.raises(GrammarError) as caught:
            compiler.compile(spec("regex", "a("))
        errors.append(caught.value)
        with pytest.raises(RuntimeError):
            compiler.compile(spec("regex", "fault"))
    assert calls == ["a(", "fault", "fault"]
    assert errors[0] is not errors[1]
    assert errors[0].message == errors[1].message


def test_least_recently_used_goes_first(counted: tuple[GrammarCompiler, list[str]]) -> None:
    compiler, calls = counted
    for text in ("a", "b", "c", "a", "d", "a", "b"):
        compiler.compile(spec("regex", text))
    assert calls == ["a", "b", "c", "d", "b"]


class Sized:
    """A grammar as the cache sees it."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


def test_memory_bounds_the_cache() -> None:
    cache = CompileCache(entries=100, max_bytes=1_000)
    grammars = {name: Sized(300) for name in "abc"}
    made: list[str] = []

    def get(name: str) -> Any:
        def make() -> Any:
            made.append(name)
            return grammars[name]

        return cache.get((name,), make)

    for name in "abcab":
        assert get(name) is grammars[name]
    assert made == ["a", "b", "c"]
    grammars["a"].nbytes = 600  # it grew while it was used
    for name in "abc":
        get(name)
    assert made == ["a", "b", "c", "c"]
    grammars["e"] = Sized(10_000)
    get("e")
    get("e")
    assert made[-1] == "e"
    assert len(cache) == 1


def test_limits_refuse_text_by_size() -> None:
    compiler = GrammarCompiler(
        make_vocabulary(), limits=CompileLimits(text_bytes=40, pattern_bytes=4, prefix_bytes=1)
    )
    compiler.compile(spec("regex", "aaaa"))
    for bad in (
        spec("regex", "aaaaa"),
        spec("choice", ["x" * 50]),
        spec("json_schema", {"title": "x" * 50}),
    ):
        with pytest.raises(GrammarError, match="bytes"):
            compiler.compile(bad)
    with pytest.raises(GrammarError, match="prefix"):
        compiler.compile(spec("regex", "a"), prefix=b"  ")


def test_a_vocabulary_checks_its_ids_and_builds_late() -> None:
    with pytest.raises(InvalidRequest, match="end-of-sequence"):
        Vocabulary([b"a"], frozenset(), frozenset(), lambda text: [])
    with pytest.raises(InvalidRequest, match="outside"):
        Vocabulary([b"a"], frozenset([1]), frozenset(), lambda text: [])
    assert make_vocabulary()._tokenizer is None


def test_a_vocabulary_that_cannot_spell_the_grammar_is_told_at_once() -> None:
    vocabulary = Vocabulary(
        [b"a", b"<end>"], frozenset([1]), frozenset([1]), lambda text: [0] * len(text)
    )
    compiler = GrammarCompiler(vocabulary)
    assert compiler.compile(spec("regex", "a+")).start().mask().count == 1
    with pytest.raises(GrammarError, match="no text"):
        compiler.compile(spec("regex", "[bc]"))


@pytest.mark.parametrize(("given", "found"), [({}, "0"), ({"RUST_LIB_BACKTRACE": "1"}, "1")])
def test_errors_of_llguidance_take_no_traces_unless_asked_for(
    given: dict[str, str], found: str
) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "RUST_LIB_BACKTRACE"} | given
    program = "import os, stolon.constrained; print(os.environ['RUST_LIB_BACKTRACE'])"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
    )
    assert done.stdout.strip() == found


def test_a_large_grammar_is_freed_beside_its_users_once_they_are_gone() -> None:
    compiler = GrammarCompiler(make_vocabulary())
    names = {f"{i} {'x' * 400}": {"type": "null"} for i in range(99)}
    small = compiler.compile(spec("json_schema", {"minProperties": 1}))
    large = compiler.compile(spec("json_schema", {"properties": names}))
    prototypes = [grammar._prototype for grammar in (small, large)]  # type: ignore[attr-defined]
    matcher = large.start().fork()
    del small, large
    compiler._cache.clear()
    assert matcher.accept(ord("{"))
    assert not prototypes[1].is_error()
    del matcher
    for thread in threading.enumerate():
        if thread.name == "stolon-free":
            thread.join(10)
    assert prototypes[1].is_error()  # what is left of it
    assert not prototypes[0].is_error()
    compiler.close()


def test_an_interpreter_that_ends_frees_large_grammars_itself() -> None:
    program = (
        "import json\n"
        "from stolon.constrained import GrammarCompiler, GrammarSpec, Vocabulary\n"
        "bytes_ = [bytes((i,)) for i in range(256)] + [b'<end>']\n"
        "end = frozenset([256])\n"
        "compiler = GrammarCompiler(Vocabulary(bytes_, end, end, lambda text: list(text.encode())))\n"
        "schema = {'properties': {f'{i}' + 'x' * 400: {} for i in range(99)}}\n"
        "grammar = compiler.compile(GrammarSpec(kind='json_schema', text=json.dumps(schema)))\n"
        "assert grammar.nbytes > 1 << 20\n"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
