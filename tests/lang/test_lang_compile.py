"""Compiled programs: what is constant is computed before the first run, once; answers stay the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.engines import hash_engine
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import GrammarError, InvalidRequest
from stolon.lang.compiled import CachedPrefix, CompiledFunction
from stolon.srt.engine import Engine
from stolon.srt.protocol import Gen

SHOTS = "".join(f"Question {i}: what comes after {i}? Answer: {i + 1}.\n" for i in range(6))


@sl.function
def count(s, question):
    s += (
        SHOTS + f"Question: {question}\nAnswer: " + sl.gen("answer", regex="[0-9]{3}", max_tokens=4)
    )
    s += sl.select("sure", [" yes", " no"])
    s += " because " + sl.gen("why", max_tokens=5, ignore_eos=True)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with hash_engine(num_slots=8192, context=2048) as engine:
        yield engine
        engine.check_integrity()


def results(state: Any) -> list[str]:
    return [state.text(), state["answer"], state["sure"], state["why"]]


def counted(engine: Engine) -> tuple[list[str], list[str]]:
    """(texts tokenised, grammars compiled) from now on."""
    tokenizer: Any = engine.tokenizer
    compiler: Any = engine._intake._admission._compiler
    encode, compile = tokenizer._encode_ordinary, compiler._compile
    texts: list[str] = []
    grammars: list[str] = []

    def encoding(text: str, *, at_start: bool) -> list[int]:
        texts.append(text)
        ids: list[int] = encode(text, at_start=at_start)
        return ids

    def compiling(spec: Any, prefix: bytes) -> Any:
        grammars.append(spec.text)
        return compile(spec, prefix)

    tokenizer._encode_ordinary, compiler._compile = encoding, compiling
    return texts, grammars


def test_the_first_run_finds_everything_constant(engine: Engine) -> None:
    plain = [results(count.run(q, seed=3, backend=engine)) for q in ("one", "two")]
    engine.flush_cache()
    compiled = count.compile(engine)
    assert isinstance(compiled, CompiledFunction)
    assert compiled.plan.complete
    tokens = len(engine.tokenizer.encode(SHOTS + "Question: "))
    assert compiled.plan.prefix_tokens == tokens
    assert compiled.prefix == CachedPrefix(tokens=tokens, cached=0)
    _, grammars = counted(engine)
    state = compiled.run("one", seed=3)
    assert results(state) == plain[0]
    assert grammars == []
    assert state.trace.calls[0].tokens.cached >= tokens - 8
    assert results(compiled.run("two", seed=3)) == plain[1]


def test_literals_are_tokenised_once_per_program(engine: Engine) -> None:
    @sl.function
    def program(s, word):
        s += "A first literal, " + sl.gen("a", max_tokens=2)
        s += " a second one, " + sl.gen("b", max_tokens=2)
        s += f" {word}" + sl.select("c", [" yes", " no"])

    texts, _ = counted(engine)
    for index in range(5):
        program.run(f"w{index}", backend=engine, ignore_eos=True)
    assert texts.count("A first literal, ") == texts.count(" a second one, ") == 1
    assert texts.count(" yes") <= 1


def test_healed_grammars_are_compiled_as_they_are_used(engine: Engine) -> None:
    @sl.function
    def program(s):
        s += "ends in two blanks  "[:-1] + sl.gen("a", regex="b{2}", max_tokens=4)
        s += (
            "the\n\n"
            + sl.gen("c", regex="d{2}", max_tokens=4)
            + sl.gen("e", regex="b{2}", max_tokens=4)
        )

    compiled = program.compile(engine)
    _, grammars = counted(engine)
    state = compiled.run(seed=1)
    assert [state[name] for name in "ace"] == ["bb", "dd", "bb"]
    assert grammars == []


def test_a_refused_grammar_is_said_before_anything_runs(engine: Engine) -> None:
    @sl.function
    def program(s, a):
        s += a + sl.gen("x", regex="(")

    with pytest.raises(GrammarError) as error:
        program.compile(engine)
    assert str(error.value.where).startswith("test_lang_compile.py:")


def test_cache_reports_what_it_found(engine: Engine) -> None:
    tokens = len(engine.tokenizer.encode(SHOTS + "Question: "))
    assert count.cache(engine) == CachedPrefix(tokens=tokens, cached=0)
    again = count.cache(engine)
    assert again == CachedPrefix(
        tokens=tokens, cached=tokens - 1
    )  # the last one is always computed
    assert again.computed == 1

    @sl.function
    def nothing(s, a):
        s += a + sl.gen("x")

    assert nothing.cache(engine) == CachedPrefix()


def test_a_bound_program_has_a_longer_prefix(engine: Engine) -> None:
    @sl.function
    def program(s, a, b):
        s += "x" + a + "y" + b + sl.gen("z", max_tokens=2)

    assert program.cache(engine).tokens == 1
    assert program.bind(a="bound").cache(engine).tokens == 7


def test_an_engine_that_keeps_nothing_is_not_asked() -> None:
    from msgspec.structs import replace

    remote = FakeEngine()
    remote.info = replace(remote.info, kv_slots=0)
    compiled = count.compile(remote)
    assert compiled.prefix is None
    assert remote.requests == []
    with pytest.raises(InvalidRequest, match="keeps no prefix"):
        count.cache(remote)
    compiled.run("one")
    assert len(remote.requests) == 1


def test_the_constant_prefix_of_a_batch_is_computed_once(engine: Engine) -> None:
    """The first item computes it; the others wait for that and find it: no trace is needed."""

    @sl.function
    def program(s, tail):
        s += SHOTS + tail + sl.gen("x", max_tokens=2, ignore_eos=True)

    tails = [f"{i:02d} is next" for i in range(12)]
    encode = engine.tokenizer.encode
    program.run_batch([(tail,) for tail in tails], backend=engine, seed=1)
    prefix = len(encode(SHOTS))
    rests = sum(len(encode(SHOTS + tail)) - prefix for tail in tails)
    computed = engine.stats().computed_tokens
    # Where an item ends as another one does, it shares more than the prefix ("0" of 00 to 09).
    assert prefix < computed <= prefix + rests
    compiled = program.compile(engine)
    before = engine.stats().computed_tokens
    compiled.run_batch([(f"again {tail}",) for tail in tails], seed=1)
    assert engine.stats().computed_tokens - before <= rests + len(tails) * len("again ")


def test_every_way_to_run_a_compiled_program(engine: Engine) -> None:
    compiled = count.compile(engine)
    other = FakeEngine({"answer": "no"})
    assert compiled.run("a", backend=other)["answer"] == "no"
    states = compiled.run_batch([("a",), {"question": "b"}], seed=1, temperature=0)
    assert len(states) == 2

    async def main() -> None:
        state = await compiled.arun("a", seed=states[0].seed, temperature=0)
        assert results(state) == results(states[0])
        assert len(await compiled.arun_batch([("a",)])) == 1

    asyncio.run(main())
    assert "count" in repr(compiled)


def test_printing_the_graph(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    count.compile(engine).print_graph()
    text = capsys.readouterr().out
    assert "{question}" in text
    assert "gen answer" in text
    assert "regex" in text
    assert "constant from the start" in text
    count.compile(engine).plan.print_graph()
    assert capsys.readouterr().out == text


def test_the_prefix_and_the_grammars_are_prepared_together() -> None:
    engine = FakeEngine()
    engine.gate.clear()
    compiling = threading.Thread(target=count.compile, args=(engine,))
    compiling.start()
    with engine._arrived:
        assert engine._arrived.wait_for(lambda: len(engine.received) == 2, 5)
    engine.gate.set()
    compiling.join(5)
    gens = [s for r in engine.requests for s in r.segments if isinstance(s, Gen)]
    assert [gen.sampling.max_tokens for gen in gens] == [0, 0]
