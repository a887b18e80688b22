"""Mistakes in programs: refused where they are made, with the line, what is meant, and what to do."""

from __future__ import annotations

import asyncio
import copy
import enum
import inspect
import pickle
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import (
    Aborted,
    ContextLengthExceeded,
    InternalError,
    InvalidRequest,
    StolonError,
    UnknownVariable,
    error_from_code,
)
from stolon.srt.protocol import Event, Request


def line(offset: int = 0) -> str:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return f"test_lang_mistakes.py:{frame.f_back.f_lineno + offset}"


@sl.function
def profile(s, note, scale=1):
    s += f"{note}:" + sl.gen("a")
    return scale


def appending(value: Any, backend: FakeEngine | None = None) -> sl.ProgramState:
    @sl.function
    def program(s):
        s += value() if inspect.isfunction(value) else value

    return program.run(backend=backend or FakeEngine())


# -- variables that are not there ----------------------------------------------------------------


def test_an_unknown_variable_is_a_key_error_and_an_invalid_request() -> None:
    for stream in (False, True):
        state = profile.run("x", backend=FakeEngine(), stream=stream)
        reads: list[Callable[[], Any]] = [
            lambda state=state: state["nope"],
            lambda state=state: state.get_var("nope"),
            lambda state=state: state.value("nope"),
            lambda state=state: state.scores("nope"),
            lambda state=state: state.get_meta_info("nope"),
            lambda state=state: list(state.text_iter("nope")),
            lambda state=state: asyncio.run(state.aget("nope")),
            lambda state=state: asyncio.run(state.avalue("nope")),
        ]
        for read in reads:
            with pytest.raises(KeyError) as error:
                read()
            assert isinstance(error.value, UnknownVariable)
            assert error.value.code == "unknown_variable"
            assert str(error.value).startswith("no variable 'nope'; variables so far: 'a' [at ")
            assert error.value.hint in str(error.value)
        assert "nope" not in state
    made = error_from_code("unknown_variable", "gone")
    assert isinstance(made, KeyError)
    assert str(made) == "gone"


def test_an_unknown_variable_names_the_line_that_reads_it() -> None:
    seen = []

    @sl.function
    def program(s):
        try:
            s["nope"]
        except KeyError as error:
            seen.append((error.where, line(-2)))

    @sl.function
    async def coroutine(s):
        try:
            await s.aget("nope")
        except KeyError as error:
            seen.append((error.where, line(-2)))
        try:
            async for _ in s.text_async_iter("nope"):
                pass
        except KeyError as error:
            seen.append((error.where, line(-3)))

    program.run(backend=FakeEngine())
    coroutine.run(backend=FakeEngine())
    assert len(seen) == 3
    assert all(where == wanted for where, wanted in seen)


def test_other_reads_that_are_refused_name_their_line() -> None:
    state = profile.run("x", backend=FakeEngine())
    with pytest.raises(InvalidRequest, match="not a selection") as error:
        state.scores("a")
    assert error.value.where == line(-1)

    @sl.function
    def scoped(s):
        with s.var_scope("v"):
            s["v"]

    with pytest.raises(InvalidRequest, match="var_scope") as error:
        scoped.run(backend=FakeEngine())
    assert str(error.value.where).startswith("test_lang_mistakes.py:")


# -- expressions ---------------------------------------------------------------------------------

WRONG: list[Callable[[], Any]] = [
    lambda: sl.gen("x", max_tokens="5"),  # type: ignore[arg-type]
    lambda: sl.gen("x", n=0),
    lambda: sl.gen("x", temperature="hot"),  # type: ignore[arg-type]
    lambda: sl.gen("x", stop=5),  # type: ignore[arg-type]
    lambda: sl.gen("x", logit_bias=5),  # type: ignore[arg-type]
    lambda: sl.gen("x", logit_bias={1.5: 1}),  # type: ignore[dict-item]
    lambda: sl.gen("x", logit_bias={b"1": 1}),  # type: ignore[dict-item]
    lambda: sl.gen("x", logit_bias={1: "2"}),  # type: ignore[dict-item]
    lambda: sl.gen("x", logit_bias={True: 1}),
    lambda: sl.gen("x", stop_token_ids=[True]),
    lambda: sl.gen("x", stop_token_ids=b"ab"),
    lambda: sl.gen("x", stop=b"."),  # type: ignore[arg-type]
    lambda: sl.gen("x", stop=[b"."]),  # type: ignore[list-item]
    lambda: sl.gen("x", stop_regex=b"."),  # type: ignore[arg-type]
    lambda: sl.gen("x", regex=b"."),  # type: ignore[arg-type]
    lambda: sl.gen("x", schema=b"{}"),
    lambda: sl.gen("x", jump_forward=b"off"),  # type: ignore[arg-type]
    lambda: sl.gen(b"x"),  # type: ignore[arg-type]
    lambda: sl.gen("x") + b"bytes",
    lambda: b"bytes" + sl.gen("x"),
    lambda: sl.user(b"bytes"),
    lambda: sl.select("x", b"ab"),  # type: ignore[arg-type]
    lambda: sl.select("x", [b"a"]),  # type: ignore[list-item]
    lambda: sl.select("x", {"a": 1}),
    lambda: sl.select("x", {"a", "b"}),
    lambda: sl.gen("x", top_logprobs_num=1, return_logprob=False),
    lambda: sl.gen("x", json_schema="{"),
    lambda: sl.gen("x", schema=5),
    lambda: sl.gen("x", regex="a", ebnf="b"),
    lambda: sl.gen("x", regex=""),
    lambda: sl.gen("x", dtype="complex"),
    lambda: sl.gen("x", choices=["a"], n=2),
    lambda: sl.gen("x", choices_method=sl.greedy_token_selection),
    lambda: sl.gen(""),
    lambda: sl.gen_int("x", regex="a"),
    lambda: sl.gen_string("x", max_tokens="5"),
    lambda: sl.select("x"),
    lambda: sl.select("x", ["a", "a"]),
    lambda: sl.select("x", []),
    lambda: sl.select("x", ["a"], choices_method="best"),  # type: ignore[arg-type]
    lambda: sl.user([None]),
    lambda: sl.assistant(None) + None,
    lambda: None + sl.gen("x"),
    lambda: sl.image("a.png"),
    lambda: f"a {sl.gen('x')}",
    lambda: str(sl.gen("x")),
]


@pytest.mark.parametrize("index", range(len(WRONG)))
def test_mistakes_in_expressions_name_their_line(index: int) -> None:
    with pytest.raises(InvalidRequest) as error:
        WRONG[index]()
    assert error.value.where == f"test_lang_mistakes.py:{WRONG[index].__code__.co_firstlineno}"


@pytest.mark.parametrize("size", [0, -1, True, 1.5, 100_001])
def test_a_fork_has_at_least_one_branch_and_a_bounded_number(size: Any) -> None:
    state = profile.run("x", backend=FakeEngine())
    with pytest.raises(InvalidRequest, match=r"fork\(\)") as error:
        state.fork(size)
    assert error.value.param == "size"
    assert str(error.value.where).startswith("test_lang_mistakes.py:")


def test_mistakes_outside_of_expressions_name_their_line() -> None:
    def forking(s: sl.ProgramState) -> None:
        forks = s.fork(2)
        forks += ["one"]

    calls: list[Callable[[], Any]] = [
        lambda: profile.run("x", temperature="hot", backend=FakeEngine()),
        lambda: profile.run_batch([("x",)], num_threads=0, backend=FakeEngine()),
        lambda: profile.bind(note="x").run(note="y", backend=FakeEngine()),
        lambda: forking(profile.run("x", backend=FakeEngine())),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest) as error:
            call()
        assert str(error.value.where).startswith("test_lang_mistakes.py:")


def test_names_of_variables_are_strings() -> None:
    def item(s: sl.ProgramState) -> None:
        s[b"x"] = 1  # type: ignore[index]

    def scope(s: sl.ProgramState) -> None:
        with s.var_scope(3):  # type: ignore[arg-type]
            pass

    for body in (item, scope, lambda s: s.set_var("", 1)):

        @sl.function
        def program(s, body=body):
            body(s)

        with pytest.raises(InvalidRequest, match="name of a variable must be") as error:
            program.run(backend=FakeEngine())
        assert str(error.value.where).startswith("test_lang_mistakes.py:")


def test_ids_and_numbers_of_numpy_are_taken() -> None:
    numpy = pytest.importorskip("numpy")
    made = sl.gen("x", logit_bias={numpy.int64(5): numpy.float32(1), "6": 2})  # type: ignore[dict-item]
    assert made.options.logit_bias == {5: 1.0, 6: 2.0}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "option",
    [
        {"url": b"http://x"},
        {"url": 5},
        {"dialect": b"vllm"},
        {"dialect": "nothing"},
        {"api_key": b"secret"},
        {"headers": {"a": b"b"}},
        {"retries": "3"},
        {"retries": -1},
        {"retries": True},
        {"connect_timeout": "3"},
        {"connect_timeout": float("nan")},
        {"read_timeout": -1},
        {"max_connections": 0},
    ],
    ids=str,
)
def test_options_of_connections_are_checked_before_anything_is_sent(option: Any) -> None:
    with pytest.raises(InvalidRequest) as error:
        sl.connect(**{"url": "http://127.0.0.1:9", **option})
    assert error.value.param == {"url": "base_url"}.get(next(iter(option)), next(iter(option)))
    assert "secret" not in str(error.value)


def test_lines_are_the_programs_also_inside_a_with() -> None:
    lines = []

    @sl.function
    def program(s):
        lines.append(line(+1))
        with s.user(), s.system():
            s += "x"

    with pytest.raises(InvalidRequest, match="do not nest") as error:
        program.run(backend=FakeEngine(chat_template=tiny_chat_template()))
    assert [error.value.where] == lines


@pytest.mark.parametrize(
    "made",
    [
        sl.gen("x"),
        sl.select("x", ["a"]),
        sl.user("q"),
        sl.user_begin(),
        sl.user_end(),
        "a" + sl.gen("x"),
    ],
)
def test_expressions_have_no_text(made: object) -> None:
    for text in (str, format, "{}".format, "{:>9}".format):
        with pytest.raises(InvalidRequest, match="put it together with"):
            text(made)
    assert f"{made!r}" == repr(made)


# -- what can be appended ------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Named:
    def __str__(self) -> str:
        return "named"


@pytest.mark.parametrize(
    "value",
    [1, 1.5, True, Path("a/b"), Colour.RED, {"a": 1}, Named(), 2 + 1j, ValueError("oops")],
)
def test_plain_values_become_text(value: object) -> None:
    assert appending(value).text() == str(value)


def test_objects_that_are_no_text_are_refused() -> None:
    state = profile.run("x", backend=FakeEngine())
    chosen = appending(sl.select("c", ["a", "b"])).scores("c")

    async def later() -> None: ...

    @sl.function
    async def coroutine(s):
        pass

    # Made inside the program, so that the line is the one that appends it.
    cases: list[tuple[Any, str]] = [
        (None, "returns nothing"),
        (state, r"profile\(s, \.\.\.\)"),
        (lambda: profile(note="x", backend=FakeEngine()), r"profile\(s, \.\.\.\)"),
        (profile, r"name\(s, \.\.\.\)"),
        (print, r"name\(s, \.\.\.\)"),
        (state.trace, r"str\(trace\)"),
        (state.fork(2), "join"),
        (chosen, "best"),
        (lambda: later(), "await"),
        (lambda: coroutine(), "await"),
        (lambda: (x for x in "ab"), "as a list"),
        (lambda: object(), "defines no __str__"),
        (b"bytes", "decode it"),
        (bytearray(b"bytes"), "decode it"),
        (memoryview(b"bytes"), "decode it"),
        (["a", b"bytes"], "decode it"),
        ({"a", "b"}, "no order"),
        (["a", state], r"profile\(s, \.\.\.\)"),
    ]
    for value, hint in cases:
        with pytest.raises(InvalidRequest, match="can't be appended") as error:
            appending(value)
        assert error.match(hint)
        assert str(error.value.where).startswith("test_lang_mistakes.py:")


# -- wrong arguments -----------------------------------------------------------------------------


def test_wrong_arguments_of_a_program_name_it() -> None:
    engine = FakeEngine()
    with pytest.raises(TypeError) as error:
        profile.run("x", z=3, backend=engine)
    assert str(error.value) == "profile() got an unexpected argument 'z'; it takes note, scale"
    with pytest.raises(TypeError, match=r"profile\(\).* 'tempreature'.* mean 'temperature'\?"):
        profile.run("x", tempreature=0, backend=engine)
    with pytest.raises(TypeError, match=r"mean 'scale'\?"):
        profile.run("x", scael=0, backend=engine)
    with pytest.raises(TypeError, match=r"profile\(\): missing .*'note'; it takes note, scale"):
        profile.run(backend=engine)
    with pytest.raises(TypeError, match=r"profile\(\): too many positional"):
        profile.run(1, 2, 3, backend=engine)
    with pytest.raises(TypeError, match="it takes scale"):
        profile.bind(note="x").run(z=1, backend=engine)
    with pytest.raises(TypeError, match=r"run_batch\(\).* mean 'progress'\?"):
        profile.run_batch([("x",)], progres=True, backend=engine)

    @sl.function
    def bare(s):
        profile(s, wrong=1)

    with pytest.raises(TypeError, match=r"bare\(\).*it takes no arguments"):
        bare.run(z=1, backend=engine)
    with pytest.raises(TypeError, match=r"profile\(\) got an unexpected argument 'wrong'"):
        bare.run(backend=engine)
    assert not engine.received


def test_wrong_arguments_of_the_words_name_the_closest() -> None:
    with pytest.raises(TypeError, match=r"gen\(\).*'tempreature'; did you mean 'temperature'\?"):
        sl.gen("x", tempreature=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"gen\(\).*mean 'max_tokens'\?"):
        sl.gen("x", max_new_tokens=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"gen_int\(\).*mean 'temperature'\?"):
        sl.gen_int("x", tempreature=0)
    with pytest.raises(TypeError, match=r"select\(\).*mean 'choices'\?"):
        sl.select("x", choises=["a"])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"gen\(\) got an unexpected argument 'zzz'$"):
        sl.gen("x", zzz=0)  # type: ignore[call-arg]
    assert list(inspect.signature(sl.gen).parameters)[:2] == ["name", "max_tokens"]


def test_the_error_of_a_batch_says_which_item() -> None:
    def answer(before: str, _: object) -> str:
        if before == "2:":
            raise InternalError("boom")
        return "ok"

    batch = [(i,) for i in range(4)]
    for style in (False, True):
        with pytest.raises(InternalError) as error:
            list(
                profile.run_batch(
                    batch, backend=FakeEngine({"a": answer}), generator_style=style, num_threads=1
                )
            )
        assert str(error.value.where).endswith(", item 2 of the batch")
        assert str(error.value.where).startswith("test_lang_mistakes.py:")
        assert "in item 2 of the batch" in error.value.__notes__


# -- ending a run early --------------------------------------------------------------------------


def test_cancel_aborts_a_streaming_run() -> None:
    ended, slowed = threading.Event(), threading.Event()

    @sl.function
    def program(s):
        try:
            s += "x" + sl.gen("first")
            s["first"]
            slowed.wait(5)
            s += sl.gen("slow")
            s["slow"]
        finally:
            ended.set()

    engine = FakeEngine()
    state = program.run(backend=engine, stream=True)
    assert state["first"] == "ok"
    engine.delay = 5.0
    slowed.set()
    pieces = state.text_iter()
    assert next(pieces) == "x"
    pieces.close()  # the run goes on
    assert not ended.wait(0.05)
    state.cancel()
    assert ended.wait(2)
    for read in (lambda: state["slow"], state.text, lambda: list(state.text_iter())):
        with pytest.raises(Aborted):
            read()
    assert isinstance(state.error(), Aborted)
    assert state["first"] == "ok"
    assert all(e.aborted.is_set() for e in engine.received if "slow" in e.names)


def test_cancel_does_not_wait_for_a_busy_body() -> None:
    go = threading.Event()

    @sl.function
    def program(s):
        s += "x"
        go.wait(5)
        s += sl.gen("later")

    engine = FakeEngine()
    state = program.run(backend=engine, stream=True)
    state.cancel()
    with pytest.raises(Aborted, match="cancelled"):
        state["later"]
    with pytest.raises(Aborted, match="cancelled"):
        state.text()
    go.set()
    assert not engine.received


def test_a_cancelled_run_has_failed_even_if_the_body_goes_on() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a")
        s["a"]
        s.cancel()
        s += sl.gen("b")
        with pytest.raises(Aborted):
            s["b"]
        s["note"] = 1

    with pytest.raises(Aborted, match="cancelled") as error:
        program.run(backend=FakeEngine())
    assert (error.value.state["a"], error.value.state["note"]) == ("ok", 1)


def test_cancel_after_the_end_does_nothing() -> None:
    state = profile.run("x", backend=FakeEngine())
    state.cancel()
    assert state.text() == "x:ok"
    assert state.error() is None


def test_a_run_that_ends_while_a_request_is_sent_aborts_it() -> None:
    class Slow(FakeEngine):
        def submit(self, request: Request, on_event: Callable[[Event], None]) -> None:
            run = state._branch.run
            run.abort()
            super().submit(request, on_event)

    @sl.function
    def program(s):
        go.wait(2)
        s += "x" + sl.gen("a")
        s["a"]

    go = threading.Event()
    engine = Slow()
    engine.gate.clear()
    state = program.run(backend=engine, stream=True)
    go.set()
    with pytest.raises(Aborted):
        state["a"]
    assert engine.received[0].aborted.wait(1)
    engine.gate.set()


# -- what was finished stays ---------------------------------------------------------------------


def test_an_error_carries_the_state_with_what_is_finished() -> None:
    @sl.function
    def program(s):
        s += "x" + sl.gen("a") + " then " + sl.gen("b")

    @sl.function
    def outer(s):
        s["mine"] = 1
        program.run(backend=engine)

    engine = FakeEngine({"b": ContextLengthExceeded("full")})
    with pytest.raises(ContextLengthExceeded) as error:
        program.run(backend=engine)
    assert error.value.state["a"] == "ok"
    with pytest.raises(ContextLengthExceeded):
        error.value.state["b"]
    with pytest.raises(ContextLengthExceeded) as error:
        asyncio.run(program.arun(backend=engine))
    assert error.value.state["a"] == "ok"
    with pytest.raises(ContextLengthExceeded) as error:
        outer.run(backend=engine)
    assert error.value.state["mine"] == 1  # of the run that the caller asked for

    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.state) == (str(error.value), None)


def test_errors_of_the_body_carry_the_state_too() -> None:
    class Own(Exception):
        state = "Ohio"

    @sl.function
    def program(s, kind):
        s += "x" + sl.gen("a")
        s["a"]
        raise kind

    @sl.function
    async def coroutine(s, kind):
        s += "x" + sl.gen("a")
        await s.aget("a")
        raise kind

    for body in (program, coroutine):
        with pytest.raises(ZeroDivisionError) as error:
            body.run(ZeroDivisionError, backend=FakeEngine())
        assert error.value.state["a"] == "ok"  # type: ignore[attr-defined]
        with pytest.raises(Own) as own:
            body.run(Own, backend=FakeEngine())
        assert own.value.state == "Ohio"
    results = program.run_batch(
        [(StolonError("no"),)], backend=FakeEngine(), return_exceptions=True
    )
    assert isinstance(results[0], StolonError)
    assert results[0].state["a"] == "ok"


def test_an_address_is_no_backend() -> None:
    with pytest.raises(InvalidRequest, match="is an address") as caught:
        profile.run("x", backend="http://host:8000")
    assert "sl.connect('http://host:8000')" in str(caught.value.hint)


# -- what would be dropped in silence ---------------------------------------------------------------


def test_a_generator_is_no_program() -> None:
    def generator(s):
        yield s

    async def asynchronous(s):
        yield s

    for body in (generator, asynchronous):
        with pytest.raises(InvalidRequest, match="can't be a generator") as error:
            sl.function(body)
        assert error.value.where == f"test_lang_mistakes.py:{body.__code__.co_firstlineno}"


def test_a_coroutine_that_nothing_would_run_is_refused() -> None:
    async def inner(s):
        s += "x"

    @sl.function
    def wrapped(s):
        return inner(s)

    @sl.function
    def outer(s):
        wrapped(s)

    for program in (wrapped, outer):
        with pytest.raises(InvalidRequest, match="'wrapped' returns a coroutine"):
            program.run(backend=FakeEngine())


def test_an_expression_is_no_condition() -> None:
    @sl.function
    def program(s):
        if sl.gen("x"):
            s += "always"

    with pytest.raises(InvalidRequest, match="no condition") as error:
        program.run(backend=FakeEngine())
    assert error.value.where == line(-5)


# -- arguments of a run that no generation uses -----------------------------------------------------

RUN_ARGUMENTS: list[dict[str, Any]] = [
    {"seed": "x"},
    {"seed": 1.5},
    {"seed": True},
    {"seed": -1},
    {"seed": 2**63},
    {"top_p": 9.0},
    {"max_tokens": -1},
    {"temperature": float("nan")},
    {"backend": 5},
    {"backend": FakeEngine},
]


@sl.function
def own_arguments(s):
    s += "a" + sl.gen("x", seed=1, top_p=0.5, max_tokens=3, temperature=0.0)


@pytest.mark.parametrize("given", RUN_ARGUMENTS, ids=str)
def test_arguments_of_a_run_are_checked_though_each_generation_has_its_own(given: Any) -> None:
    engine = FakeEngine()
    arguments = {"backend": engine} | given

    async def in_a_loop() -> None:
        await own_arguments.arun_batch([{}], **arguments)

    calls: list[Callable[[], object]] = [
        lambda: own_arguments.run(**arguments),
        lambda: own_arguments.run(**arguments, stream=True),
        lambda: asyncio.run(own_arguments.arun(**arguments)),
        lambda: own_arguments.run_batch([{}], **arguments),
        lambda: asyncio.run(in_a_loop()),
    ]
    for call in calls:
        with pytest.raises(InvalidRequest) as error:
            call()
        assert error.value.param == next(iter(given))
        assert (error.value.where or "").startswith("test_lang_mistakes.py:")
    assert not engine.received


def test_the_seed_of_a_run_may_be_an_integer_of_another_kind() -> None:
    class Whole:
        def __index__(self) -> int:
            return 7

    assert own_arguments.run(backend=FakeEngine(), seed=Whole()).seed == 7


@pytest.mark.parametrize("name", ["stream", "return_exceptions", "as_completed", "generator_style"])
def test_switches_of_a_run_are_bools(name: str) -> None:
    call = own_arguments.run if name == "stream" else partial(own_arguments.run_batch, [{}])
    with pytest.raises(InvalidRequest, match=f"{name} must be True or False") as error:
        call(backend=FakeEngine(), **{name: "yes"})
    assert error.value.param == name


def test_two_orders_of_results_are_one_too_many() -> None:
    with pytest.raises(InvalidRequest, match="give one of them"):
        own_arguments.run_batch([{}], backend=FakeEngine(), generator_style=True, as_completed=True)


def test_the_default_backend_must_be_one() -> None:
    for call in (sl.set_default_backend, sl.flush_cache, sl.get_server_info):
        with pytest.raises(InvalidRequest, match="5 is no backend") as error:
            call(5)
        assert error.value.where == line(-1)


def test_a_state_says_how_it_can_be_kept() -> None:
    state = own_arguments.run(backend=FakeEngine())
    for keep in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="bound to its run"):
            keep(state)
