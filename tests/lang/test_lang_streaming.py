"""Text as it arrives: the pieces join to the text."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import Aborted, InternalError

ANSWER = "a longer answer, in pieces: äöü 🙂 end"


@sl.function
def program(s, question="Q"):
    s += sl.user(question)
    s += sl.assistant(sl.gen("answer", return_logprob=True))
    s += sl.user("Sure?") + sl.assistant(sl.select("sure", ["yes", "no"]))
    s["note"] = s["answer"][:3]


def engine() -> FakeEngine:
    return FakeEngine({"answer": ANSWER, "sure": "no"}, chat_template=tiny_chat_template())


def test_pieces_of_the_text_join_to_the_text() -> None:
    state = program.run(backend=engine(), stream=True)
    pieces = list(state.text_iter())
    assert len(pieces) > 10
    assert "".join(pieces) == state.text()
    assert "".join(state.text_iter()) == state.text()  # again, after the end
    assert all(pieces)


def test_pieces_of_a_variable_join_to_it() -> None:
    state = program.run(backend=engine(), stream=True)
    pieces = list(state.text_iter("answer"))
    assert len(pieces) > 3
    assert "".join(pieces) == ANSWER == state["answer"]
    assert list(state.text_iter("sure")) == ["no"]
    assert list(state.text_iter("note")) == ["a l"]
    with pytest.raises(KeyError):
        list(state.text_iter("missing"))


def test_without_stream_there_is_one_piece() -> None:
    state = program.run(backend=engine())
    assert list(state.text_iter()) == [state.text()]
    assert list(state.text_iter("answer")) == [ANSWER]


def test_streams_while_the_program_still_runs() -> None:
    go = threading.Event()

    @sl.function
    def slow(s):
        s += "one " + sl.gen("a")
        go.wait(2)
        s += " two " + sl.gen("b")

    state = slow.run(backend=FakeEngine(), stream=True)
    seen = []
    for piece in state.text_iter():
        seen.append(piece)
        if piece == "ok":
            go.set()  # the first generation arrived although the body has neither read it nor ended
    assert seen == ["one ", "ok", " two ", "ok"]


def test_reads_from_outside_wait_for_the_running_program() -> None:
    @sl.function
    def slow(s):
        go.wait(2)
        s += "x" + sl.gen("a")
        s["b"] = 5

    go = threading.Event()
    state = slow.run(backend=FakeEngine(), stream=True)
    threading.Timer(0.02, go.set).start()
    assert state["b"] == 5
    assert state["a"] == "ok"
    assert state.text() == "xok"


def test_streaming_inside_a_program() -> None:
    @sl.function
    def inside(s):
        s += "x" + sl.gen("a")
        return list(s.text_iter("a")), list(s.text_iter())

    plain = inside.run(backend=FakeEngine({"a": "abcdefg"}))
    assert plain.ret_value == (["abcdefg"], ["xabcdefg"])
    state = inside.run(backend=FakeEngine({"a": "abcdefg"}), stream=True)
    state.sync()
    assert state.ret_value == (["abc", "def", "g"], ["x", "abc", "def", "g"])


def test_async_iteration_with_meta_data() -> None:
    async def main() -> None:
        state = await program.arun(backend=engine(), stream=True)
        pieces = [p async for p in state.text_async_iter("answer", return_meta_data=True)]
        assert "".join(text for text, _ in pieces) == ANSWER
        total = 0
        logprobs = []
        for _, meta in pieces:
            total += len(meta["output_token_logprobs"])
            logprobs += meta["output_token_logprobs"]
            assert meta["completion_tokens"] == meta["output_token_logprobs_length"] == total
        await state.async_sync()
        final = state.get_meta_info("answer")
        assert logprobs == final["output_token_logprobs"]
        assert "".join([p async for p in state.text_async_iter()]) == state.text()

    asyncio.run(main())


def test_async_program_streams_to_a_sync_consumer() -> None:
    @sl.function
    async def body(s):
        s += "x" + sl.gen("a")
        await s.aget("a")
        s += "y"

    state = body.run(backend=FakeEngine({"a": "abcdef"}), stream=True)
    assert list(state.text_iter()) == ["x", "abc", "def", "y"]


def test_errors_end_the_stream() -> None:
    @sl.function
    def bad(s):
        s += "x" + sl.gen("a")

    @sl.function
    def worse(s):
        s += "x"
        raise ZeroDivisionError

    state = bad.run(backend=FakeEngine({"a": InternalError("boom")}), stream=True)
    with pytest.raises(InternalError, match="boom"):
        list(state.text_iter())
    with pytest.raises(InternalError):
        state["a"]
    state = worse.run(backend=FakeEngine(), stream=True)
    with pytest.raises(ZeroDivisionError):
        list(state.text_iter())
    with pytest.raises(ZeroDivisionError):
        state["a"]
    assert isinstance(state.error(), ZeroDivisionError)


def test_samples_stream_their_first() -> None:
    @sl.function
    def many(s):
        s += sl.gen("a", n=2)

    state = many.run(backend=FakeEngine({"a": ["first", "second"]}), stream=True)
    assert "".join(state.text_iter("a")) == "first"
    assert state["a"] == ["first", "second"]


def failing(*, asynchronous: bool) -> sl.Function:
    def body(s):
        s += "one " + sl.gen("a")
        s["kept"] = s["a"]
        s += " two " + sl.gen("b")
        raise KeyError("mine")

    async def coroutine(s):
        s += "one " + sl.gen("a")
        s["kept"] = await s.aget("a")
        s += " two " + sl.gen("b")
        raise KeyError("mine")

    return sl.function(coroutine if asynchronous else body)


READS: dict[str, Callable[[sl.ProgramState], object]] = {
    "variable": lambda s: s["b"],
    "unset": lambda s: s["c"],
    "value": lambda s: s.value("b"),
    "awaited": lambda s: asyncio.run(s.aget("b")),
    "facts": lambda s: s.get_meta_info("b"),
    "pieces of all": lambda s: list(s.text_iter()),
    "pieces of one": lambda s: list(s.text_iter("b")),
    "sync": lambda s: s.sync(),
    "text": lambda s: s.text(),
    "messages": lambda s: s.messages(),
    "result": lambda s: s.ret_value,
}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("read", READS)
def test_what_the_body_raises_reaches_who_watches_the_stream(read: str, asynchronous: bool) -> None:
    state = failing(asynchronous=asynchronous).run(backend=FakeEngine({"a": "A"}), stream=True)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine") as error:
            READS[read](state)
        assert type(error.value) is KeyError
        assert error.value.__context__ is None
        names = [entry.name for entry in error.traceback]
        assert names.count("body") + names.count("coroutine") == 1, names
    assert state["a"] == state["kept"] == "A"
    assert isinstance(state.error(), KeyError)


def test_a_run_that_does_not_stream_says_so_once() -> None:
    with pytest.raises(KeyError, match="mine") as error:
        failing(asynchronous=False).run(backend=FakeEngine({"a": "A"}))
    state = error.value.state  # type: ignore[attr-defined]
    assert state["kept"] == "A"
    with pytest.raises(Aborted) as aborted:
        state["b"]
    assert aborted.value.__cause__ is error.value
    assert state.ret_value is None


def test_the_result_of_a_stream_is_waited_for() -> None:
    go = threading.Event()

    @sl.function
    def slow(s):
        go.wait(5)
        return 7

    state = slow.run(backend=FakeEngine(), stream=True)
    threading.Timer(0.05, go.set).start()
    assert state.ret_value == 7
