"""The core on a real engine with a tiny model: seeds, samples as branches, wide forks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.tiny_models import tiny_model

import stolon as sl
from stolon.kernels import ops_by_name
from stolon.srt.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine.from_parts(
        tiny_model(context_length=4096),
        ByteTokenizer(),
        ops=ops_by_name("native"),
        kv_tokens=20_000,
        max_running=256,
        step_tokens=1024,
    )
    yield engine
    engine.check_integrity()
    engine.close()


@sl.function
def inner(s, word):
    s += f" {word}:" + sl.gen("inner", max_tokens=5)
    return s["inner"]


@sl.function
def program(s, topic):
    s += f"On {topic}: " + sl.gen("a", max_tokens=6) + sl.select("c", ["x", "y"], temperature=3.0)
    first = inner(s, "one")
    s += sl.gen("many", n=3, max_tokens=4)
    branches = s.fork_samples("many")
    for b in branches:
        b += " so " + sl.gen("v", max_tokens=4)
    forks = s.fork(2)
    forks += lambda i: f" {i} " + sl.gen("w", max_tokens=4) + sl.gen("z", n=2, max_tokens=3)
    with s.copy() as c:
        c += "!" + sl.gen("copy", max_tokens=4)
    branches.join()
    forks.join()
    return first


@sl.function
async def program_async(s, topic):
    s += f"On {topic}: " + sl.gen("a", max_tokens=6) + sl.select("c", ["x", "y"], temperature=3.0)
    s += " one:" + sl.gen("inner", max_tokens=5)
    first = await s.aget("inner")
    s += sl.gen("many", n=3, max_tokens=4)
    branches = s.fork_samples("many")
    for b in branches:
        b += " so " + sl.gen("v", max_tokens=4)
    forks = s.fork(2)
    forks += lambda i: f" {i} " + sl.gen("w", max_tokens=4) + sl.gen("z", n=2, max_tokens=3)
    with s.copy() as c:
        c += "!" + sl.gen("copy", max_tokens=4)
    branches.join()
    forks.join()
    return first


NAMES = ("a", "c", "inner", "many", "v", "w", "z", "copy")


def values(state: sl.ProgramState) -> dict[str, object]:
    return {name: state[name] for name in NAMES} | {"ret": state.ret_value, "text": state.text()}


def test_the_same_seed_gives_the_same_text_whatever_way_it_is_run(engine: Engine) -> None:
    alone = values(program.run("cats", backend=engine, seed=7))
    assert len(set(alone["many"])) > 1  # type: ignore[arg-type]
    assert values(program.run("cats", backend=engine, seed=8)) != alone
    engine.flush_cache()
    states = program.run_batch([(t,) for t in ("dogs", "cats", "owls")], backend=engine, seed=7)
    in_batch = values(states[1])
    engine.flush_cache()
    assert values(program.run("cats", backend=engine, seed=states[1].seed)) == in_batch
    streamed = program.run("cats", backend=engine, seed=7, stream=True)
    assert "".join(streamed.text_iter()) == alone["text"]
    assert values(streamed) == alone
    assert values(program_async.run("cats", backend=engine, seed=7)) == alone

    async def main() -> None:
        others = [program_async.arun(f"{i}", backend=engine, seed=i) for i in range(20)]
        state, *_ = await asyncio.gather(
            program_async.arun("cats", backend=engine, seed=7), *others
        )
        assert values(state) == alone

    asyncio.run(main())


def test_a_sample_branch_continues_exactly_that_sample(engine: Engine) -> None:
    @sl.function
    def by_samples(s):
        s += "Say:" + sl.gen("x", n=4, max_tokens=5, ignore_eos=True)
        branches = s.fork_samples("x")
        branches += sl.gen("y", max_tokens=6, temperature=0)
        return [(b["x"], b["y"], b.get_meta_info("x")["output_ids"]) for b in branches]

    found = by_samples.run(backend=engine, seed=3).ret_value
    start = engine.tokenizer.encode("Say:")
    for text, continued, ids in found:
        again = engine.generate(input_ids=[*start, *ids], max_tokens=6, temperature=0)
        assert again.text == continued
        assert engine.tokenizer.decode(ids) == text
    assert len({text for text, _, _ in found}) > 1


def test_a_thousand_branches_compute_their_prefix_once(engine: Engine) -> None:
    @sl.function
    def fan(s):
        s += "word " * 400 + sl.gen("a", max_tokens=1, ignore_eos=True)
        assert s["a"] is not None
        forks = s.fork(1000)
        forks += lambda i: f" {i}" + sl.gen("v", max_tokens=1, ignore_eos=True)
        return len({b.get_meta_info("v")["prompt_tokens"] for b in forks})

    engine.flush_cache()
    before = engine.stats()
    state = fan.run(backend=engine, seed=1)
    after = engine.stats()
    own = sum(len(engine.tokenizer.encode(f" {i}")) for i in range(1000))
    computed = after.computed_tokens - before.computed_tokens
    prefix = state.get_meta_info("a")["prompt_tokens"] + 1
    assert prefix > 1900
    assert computed <= prefix + own + 1000  # each branch: its own text, and a token to predict from
