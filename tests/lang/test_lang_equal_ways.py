"""Random programs say the same whichever way they run: alone, compiled, in a batch, streamed, awaited.

The model is a function of its context (support.hash_model) and the draws are of the seed, so equality is
exact. Engines are shared between examples: what an earlier one has cached must not show either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import hash_engine

import stolon as sl
from stolon.srt.engine import Engine

TEXTS = st.sampled_from(["a ", "the", " the end.", "x\n\n", "{}", "one two ", "?"])
GRAMMARS = st.sampled_from([None, "[0-9]{1,3}", "(yes|no)!", "value=[a-f]{2};"])


def gens() -> st.SearchStrategy[Any]:
    return st.tuples(
        st.just("gen"),
        st.integers(0, 6),
        GRAMMARS,
        st.one_of(st.none(), st.integers(0, 9)),
        st.sampled_from([0.0, 1.0]),
    )


SIMPLE = st.one_of(
    st.tuples(st.just("text"), TEXTS),
    st.tuples(st.just("argument"), st.booleans()),
    gens(),
    st.tuples(st.just("select"), st.sampled_from([("a", "b"), (" yes", " no", " maybe")])),
    st.just(("read",)),
    st.just(("say",)),
)
STEPS = st.recursive(
    st.lists(SIMPLE, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            SIMPLE,
            st.tuples(st.sampled_from(["user", "assistant", "scope", "nested"]), inner),
            st.tuples(st.just("fork"), st.lists(inner, min_size=1, max_size=3), st.booleans()),
        ),
        min_size=1,
        max_size=4,
    ),
    max_leaves=12,
)


def play(s: Any, steps: list[Any], word: str, *, role: bool = False) -> None:
    """Do what the steps say. Names repeat, so that variables are set anew."""
    for step in steps:
        match step:
            case ("text", text):
                s += text
            case ("argument", plain):
                s += "<" + word + ">" if plain else f"<{word}>"
            case ("gen", number, regex, seed, temperature):
                options = {"seed": seed, "temperature": temperature, "max_tokens": 1 + number}
                s += sl.gen(f"g{number}", regex=regex, ignore_eos=regex is None, **options)
            case ("select", choices):
                s += sl.select("choice", choices)
            case ("read",):
                if "g1" in s:
                    s += f"[{s['g1']}]"
            case ("say",):
                if "choice" in s:
                    value = s["choice"]
                    while isinstance(value, list):  # of a fork
                        value = value[0]
                    if value is not None:
                        s += "[" + value + "]"
            case ("user" | "assistant" as name, inner):
                with nullcontext() if role else getattr(s, name)():
                    play(s, inner, word, role=True)
            case ("scope", inner):
                with s.var_scope("scope"):
                    play(s, inner, word, role=role)
            case ("nested", inner):
                nested(s, inner, word, role)
            case ("fork", branches, texts):
                group = s.fork(len(branches))
                for branch, inner in zip(group, branches, strict=True):
                    play(branch, inner, word, role=role)
                group.join("concate_and_append" if texts else "gather_variable")


@sl.function
def nested(s, steps, word, role):
    play(s, steps, word, role=role)


@sl.function
def program(s, steps, word):
    s += "Begin. "
    play(s, steps, word)
    s += " Then " + sl.gen("last", max_tokens=3, ignore_eos=True)


@sl.function
async def aprogram(s, steps, word):
    """The same with a body that awaits; it reads nothing in the middle."""
    s += "Begin. "
    play(s, steps, word)
    s += " Then " + sl.gen("last", max_tokens=3, ignore_eos=True)
    await s.async_sync()


def outcome(state: Any) -> Any:
    variables = {name: state[name] for name in sorted(state._branch.variables)}
    return state.text(), variables, state.messages()


def reads(steps: Any) -> bool:
    if isinstance(steps, tuple) and steps and steps[0] in ("read", "say"):
        return True
    return isinstance(steps, tuple | list) and any(map(reads, steps))


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    options = {"num_slots": 4096, "context": 2048}
    with hash_engine(**options) as one, hash_engine(**options, step_tokens=16) as other:
        yield one, other


@given(steps=STEPS, seed=st.integers(0, 2**62), word=st.sampled_from(["w", "a word", ""]))
@settings(max_examples=120, deadline=None, derandomize=True)
def test_every_way_gives_the_same(
    engines: tuple[Engine, Engine], steps: Any, seed: int, word: str
) -> None:
    engine, other = engines
    alone = program.run(steps, word, seed=seed, backend=engine)
    expected = outcome(alone)
    compiled = program.bind(steps=steps).compile(other)
    assert outcome(compiled.run(word=word, seed=seed)) == expected
    streamed = program.run(steps, word, seed=seed, backend=other, stream=True)
    assert "".join(streamed.text_iter()) == expected[0]
    assert outcome(streamed) == expected
    assert outcome(asyncio.run(program.arun(steps, word, seed=seed, backend=engine))) == expected
    if not reads(steps):
        awaited = asyncio.run(aprogram.arun(steps, word, seed=seed, backend=other))
        assert outcome(awaited) == expected
    batch = program.run_batch([(steps, word), (steps, word + "!")], seed=seed, backend=other)
    for state, item in zip(batch, (word, word + "!"), strict=True):
        assert outcome(program.run(steps, item, seed=state.seed, backend=engine)) == outcome(state)
    engine.check_integrity()
    other.check_integrity()


@given(steps=STEPS)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_plan_says_what_is_sent(engines: tuple[Engine, Engine], steps: Any) -> None:
    """Where a program is traced to its end, its calls are those that a run makes, in order."""
    engine, _ = engines
    bound = program.bind(steps=steps)
    plan = bound.compile(engine).plan
    assert plan.complete, plan
    state = bound.run(word="w", seed=1, backend=engine)
    made = sorted((call.name or "", call.where) for call in state._branch.run.calls)
    planned = [
        (segment.name or "", segment.where)
        for block in plan.blocks
        for segment in block.segments
        if hasattr(segment, "where")
    ]
    assert sorted(planned) == made
    start = "".join(part.text for part in plan.prefix)
    assert state.text().startswith(start)
