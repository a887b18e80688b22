"""What is sent: blocks, their prefixes, which requests are in flight together."""

from __future__ import annotations

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.lang import blocks, splitting
from stolon.srt.protocol import Gen, Select, Text, Tokens


def shape(request) -> list[str]:
    """Segments in short: text as it is, tokens by their number, calls by name."""
    return [
        s.text
        if isinstance(s, Text)
        else f"#{len(s.ids)}"
        if isinstance(s, Tokens)
        else f"<{s.name}>"
        for s in request.segments
    ]


def test_a_straight_run_is_one_request() -> None:
    @sl.function
    def program(s):
        s += "Q: " + sl.gen("a")
        s += " then "
        s += sl.gen("b") + sl.select("c", ["x", "y"])
        s += " tail"

    engine = FakeEngine()
    state = program.run(backend=engine)
    assert [shape(r) for r in engine.requests] == [["Q: ", "<a>", " then ", "<b>", "<c>"]]
    assert state.text() == "Q: ok then okx tail"


def test_nothing_is_sent_for_text_alone() -> None:
    @sl.function
    def program(s):
        s += "only text"
        forks = s.fork(2)
        forks += "more"
        return s.text()

    engine = FakeEngine()
    assert program.run(backend=engine).ret_value == "only text"
    assert engine.requests == []


def test_a_read_ends_a_block_and_text_is_never_tokenised_twice() -> None:
    @sl.function
    def program(s):
        s += "Say: " + sl.gen("a") + " the"
        assert s["a"] == "the word"
        s += " end " + sl.gen("b")
        s += sl.gen("c") if s["b"] else "never"

    engine = FakeEngine({"a": "the word"}, add_bos=True)
    program.run(backend=engine)
    assert [shape(r)[1:] for r in engine.requests] == [
        ["<a>"],
        [" the", " end ", "<b>"],
        ["<c>"],
    ]
    tokenizer = engine.tokenizer
    first = [tokenizer.bos_id, *tokenizer.encode("Say: "), *tokenizer.encode("the word")]
    assert engine.requests[1].segments[0] == Tokens(first)
    # " the end " was appended in two pieces, around a read, and is tokenised as one text
    second = first + tokenizer.encode(" the end ") + tokenizer.encode("ok")
    assert engine.requests[2].segments[0] == Tokens(second)


def test_the_place_of_reads_does_not_change_the_tokens() -> None:
    def program(reads: bool) -> list[int]:
        @sl.function
        def body(s):
            s += "x th"
            s += sl.gen("a") + " the"
            if reads:
                assert s["a"]
            s += "re is " + sl.gen("b")
            if reads:
                assert s["b"]
            s += "." + sl.gen("c")

        engine = FakeEngine()
        state = body.run(backend=engine, seed=1)
        assert len(engine.requests) == (3 if reads else 1)
        assert state._branch.head is not None
        tokens = state._branch.head.tokens()
        assert tokens is not None
        return tokens.ids

    assert program(True) == program(False)


def test_branches_are_in_flight_together() -> None:
    @sl.function
    def program(s):
        s += "shared" + sl.gen("first")
        assert s["first"] == "ok"
        forks = s.fork(8)
        for i, f in enumerate(forks):
            f += f"{i}" + sl.gen("v")
        s += sl.gen("own")
        return [f["v"] for f in forks]

    engine = FakeEngine(together=0)
    engine.answers["first"] = lambda *_: setattr(engine, "together", 10) or "ok"
    state = program.run(backend=engine)  # the engine answers none of the 9 before all are there
    assert state.ret_value == ["ok"] * 8
    assert len(engine.requests) == 10


def test_children_continue_the_tokens_of_a_parent_with_generations() -> None:
    @sl.function
    def program(s):
        s += "p" + sl.gen("a") + " tail "
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sl.gen("v")

    engine = FakeEngine()
    program.run(backend=engine)
    known = Tokens(engine.tokenizer.encode("pok"))
    assert shape(engine.requests[0]) == ["p", "<a>"]
    for i in (0, 1):
        assert engine.requests[1 + i].segments[0] == known
        assert shape(engine.requests[1 + i])[1:] == [" tail ", f"{i}", "<v>"]


def test_children_of_text_alone_carry_the_text() -> None:
    @sl.function
    def program(s):
        s += "a"
        s += "b"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sl.gen("v")

    engine = FakeEngine()
    program.run(backend=engine)
    assert [shape(r) for r in engine.requests] == [["a", "b", "0", "<v>"], ["a", "b", "1", "<v>"]]


def test_reading_waits_for_the_variable_not_for_the_block() -> None:
    @sl.function
    def program(s):
        s += sl.gen("fast") + sl.gen("slow")
        value = s["fast"]
        engine.answers["slow"] = "known only after fast was read"
        gate.set()
        return value, s["slow"]

    engine = FakeEngine({"fast": "f"})
    gate = engine.gate.__class__()
    engine.answers["slow"] = lambda *_: str(gate.wait(2)) and engine.answers["slow"]
    assert program.run(backend=engine).ret_value == ("f", "known only after fast was read")
    assert len(engine.requests) == 1


def test_healing_after_user_text_only() -> None:
    @sl.function
    def program(s):
        s += sl.gen("nothing before") + "text " + sl.gen("text") + sl.gen("generated")
        s += "q" + sl.select("choice", ["a", "b"]) + ""
        s += sl.gen("after empty")
        s += sl.user("x") + sl.assistant(sl.gen("affix") + "y " + sl.gen("inside"))

    engine = FakeEngine(chat_template=tiny_chat_template())
    program.run(backend=engine)
    heal = {
        s.name: s.heal for r in engine.requests for s in r.segments if isinstance(s, Gen | Select)
    }
    assert heal == {
        "nothing before": False,
        "text": True,
        "generated": False,
        "choice": True,
        "after empty": False,
        "affix": False,
        "inside": True,
    }


def test_long_blocks_stay_within_the_limit_of_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_SEGMENTS", 8)
    monkeypatch.setattr(splitting, "MAX_SEGMENTS", 8)

    @sl.function
    def program(s):
        for _ in range(20):
            s += "a"
        s += sl.gen("g")
        for i in range(10):
            s += f"{i}" + sl.gen("g")

    engine = FakeEngine()
    state = program.run(backend=engine)
    assert state.text() == "a" * 20 + "ok" + "".join(f"{i}ok" for i in range(10))
    assert all(len(r.segments) <= 8 for r in engine.requests)
    assert shape(engine.requests[0]) == ["a" * 20, "<g>"]


def test_every_request_has_its_own_id() -> None:
    @sl.function
    def program(s):
        forks = s.fork(3)
        forks += sl.gen("v")

    engine = FakeEngine()
    program.run(backend=engine)
    program.run(backend=engine)
    assert len({r.rid for r in engine.requests}) == 6
