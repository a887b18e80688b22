"""Cache, single flight, limits, and inputs made to be expensive."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from support.grammar_walk import make_vocabulary, spec

from stolon.constrained import CompileLimits, GrammarCompiler, GrammarSpec, Vocabulary
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


def nest(depth: int) -> dict[str, Any]:
    if not depth:
        return {"type": "integer"}
    inner = nest(depth - 1)
    return {"anyOf": [{"properties": {"a": inner}}, {"properties": {"b": inner}}]}


def all_of_any(n: int) -> dict[str, Any]:
    """n choices of two, all to hold: 2^n combinations."""
    return {"allOf": [{"anyOf": [{"minimum": i}, {"multipleOf": i + 2}]} for i in range(n)]}


HOSTILE = {
    "counted twice": ("regex", "(a{1,200}){1,200}"),
    "exponential automaton": ("regex", "[ab]*a[ab]{18}"),
    "unicode class": ("regex", r"\w{1,500}"),
    "long run": ("regex", "(a{100000}){10000}"),
    "stars": ("regex", "((a*)*)*b"),
    "nested groups": ("regex", "(" * 5000 + "a" + ")" * 5000),
    "classes": ("regex", r"(\p{L}|\p{N}|\w|.){1,3000}x"),
    "max items": ("json_schema", {"type": "array", "items": {}, "maxItems": 100_000}),
    "min items": ("json_schema", {"type": "array", "items": {}, "minItems": 100_000}),
    "min length": ("json_schema", {"type": "string", "minLength": 99_999}),
    "anyOf nest": ("json_schema", nest(10)),
    "allOf of anyOf": ("json_schema", all_of_any(20)),
    "many values": ("json_schema", {"enum": list(range(100_000))}),
    "values": ("json_schema", {"enum": [f"value {i * 7919}" for i in range(4096)]}),
    "self": ("json_schema", {"$ref": "#"}),
    "loop": (
        "json_schema",
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    ),
    "allOf self": ("json_schema", {"allOf": [{"$ref": "#"}, {"type": "object"}]}),
    "anyOf self": ("json_schema", {"anyOf": [{"$ref": "#"}, {"type": "object"}]}),
    "many properties": (
        "json_schema",
        {"properties": {f"p{i}": {"type": "integer"} for i in range(3000)}},
    ),
    "big multiple": ("json_schema", {"type": "integer", "multipleOf": 99_999_999_999}),
    "two multiples": (
        "json_schema",
        {"allOf": [{"type": "integer", "multipleOf": p} for p in (9973, 9967, 9949)]},
    ),
    "choices": ("choice", [f"choice {i * 7919} é" for i in range(4096)]),
    "ebnf nest": ("ebnf", "root ::= " + "(" * 2000 + '"a"' + ")" * 2000),
    "ebnf stars": ("ebnf", 'root ::= (((("a"*)*)*)* "b"?)*'),
    "lark left": ("lark", 'start: start start | "a" |'),
    "lark forced": ("lark", 'start: /a+/ "ab"'),
    "ebnf forced": ("ebnf", 'root ::= [a]+ "ab"'),
    "lark rules": (
        "lark",
        "start: r0\n" + "\n".join(f"r{i}: r{i + 1} r{i + 1}" for i in range(500)) + '\nr500: "a"',
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_expensive_input_is_done_or_refused_soon(name: str) -> None:
    kind, text = HOSTILE[name]
    compiler = GrammarCompiler(make_vocabulary())
    compiler.vocabulary.tokenizer  # noqa: B018
    begun = time.perf_counter()
    try:
        matcher = compiler.compile(spec(kind, text)).start()
        for _ in range(5):
            forced = matcher.forced()
            mask = matcher.mask()
            if not mask.count or matcher.finished:
                break
            matcher.accept(forced[0] if forced else next(t for t in range(288) if mask.allows(t)))
    except GrammarError:
        pass
    assert time.perf_counter() - begun < 2


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
