"""Mistakes in the body of a program: refused where they are made, with the line and what to do."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template
from support.small_programs import profile
from support.where import line

import stolon as sl
from stolon.errors import (
    InvalidRequest,
)


def appending(value: Any, backend: FakeEngine | None = None) -> sl.ProgramState:
    @sl.function
    def program(s):
        s += value() if inspect.isfunction(value) else value

    return program.run(backend=backend or FakeEngine())


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
