"""Wrong arguments, of programs, runs, batches, words and connections, are refused by name."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.small_programs import profile
from support.where import line

import stolon as sl
from stolon.errors import (
    InternalError,
    InvalidRequest,
)


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
        assert str(error.value.where).startswith("test_lang_arguments.py:")


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
        assert str(error.value.where).startswith("small_programs.py:")
        assert "in item 2 of the batch" in error.value.__notes__


def test_an_address_is_no_backend() -> None:
    with pytest.raises(InvalidRequest, match="is an address") as caught:
        profile.run("x", backend="http://host:8000")
    assert "sl.connect('http://host:8000')" in str(caught.value.hint)


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
        assert (error.value.where or "").startswith("test_lang_arguments.py:")
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


def test_run_batch_cannot_wait_for_items() -> None:
    async def items() -> AsyncIterator[dict[str, Any]]:
        yield {}

    with pytest.raises(InvalidRequest, match="async iterable") as caught:
        own_arguments.run_batch(items(), backend=FakeEngine())
    assert "arun_batch" in (caught.value.hint or "")


def test_a_checkpoint_has_a_name() -> None:
    with pytest.raises(InvalidRequest, match="must be a path, not ''"):
        own_arguments.run_batch([{}], backend=FakeEngine(), checkpoint="")


def test_the_default_backend_must_be_one() -> None:
    for call in (sl.set_default_backend, sl.flush_cache, sl.get_server_info):
        with pytest.raises(InvalidRequest, match="5 is no backend") as error:
            call(5)
        assert error.value.where == line(-1)
