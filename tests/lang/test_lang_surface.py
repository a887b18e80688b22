"""What a program written for SGLang's frontend uses: names, arguments, and what they mean here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import FakeEngine
from support.small_programs import scored

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.ir import GenExpr, SelectExpr
from stolon.lang.known_templates import KNOWN
from stolon.lang.reasoning import FAMILIES
from stolon.lang.traced_state import TracedState

# -- arguments -----------------------------------------------------------------------------------

GEN = [
    "name",
    "max_tokens",
    "min_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "dtype",
    "choices",
    "choices_method",
    "regex",
    "json_schema",
]
RUN = [
    "max_new_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "return_logprob",
    "logprob_start_len",
    "top_logprobs_num",
    "return_text_in_logprobs",
    "stream",
    "backend",
    "use_thread",
]
STATE = {
    "system": ["expr"],
    "user": ["expr"],
    "assistant": ["expr"],
    "var_scope": ["name"],
    "fork": ["size", "position_ids_offset"],
    "copy": ["position_ids_offset"],
    "text": [],
    "messages": [],
    "sync": [],
    "error": [],
    "text_iter": ["var_name"],
    "text_async_iter": ["var_name", "return_meta_data"],
    "get_var": ["name"],
    "set_var": ["name", "value"],
    "get_meta_info": ["name"],
}
EXAMPLES: dict[str, Any] = {
    "stop": ["."],
    "stop_token_ids": [1],
    "stop_regex": "x",
    "ignore_eos": True,
    "return_logprob": True,
    "return_text_in_logprobs": True,
    "logprob_start_len": 0,
    "stream": False,
    "use_thread": False,
    "max_new_tokens": 3,
}


def test_gen_has_the_arguments_in_their_order() -> None:
    parameters = inspect.signature(sl.gen).parameters
    positional = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == GEN
    assert list(inspect.signature(sl.select).parameters) == [
        "name",
        "choices",
        "temperature",
        "choices_method",
    ]
    for shorthand in (sl.gen_int, sl.gen_string):
        made = shorthand("x", 5, 2, ["."], top_p=0.5, return_text_in_logprobs=True)
        assert isinstance(made, GenExpr)
        assert (made.options.max_tokens, made.options.n, made.options.stop) == (5, 2, (".",))


@pytest.mark.parametrize("kind", [sl.ProgramState, TracedState])
@pytest.mark.parametrize("method", STATE)
def test_methods_of_a_state_have_the_arguments_by_their_names(kind: type, method: str) -> None:
    assert list(inspect.signature(getattr(kind, method)).parameters) == ["self", *STATE[method]]


@pytest.mark.parametrize("name", [name for name in RUN if name != "backend"])
def test_run_takes_every_argument(name: str) -> None:
    backend = FakeEngine()
    value = EXAMPLES.get(name, 1)
    assert scored.run(backend=backend, **{name: value}).text() == "once uponok"
    if name not in ("stream", "use_thread"):
        assert len(scored.run_batch([{}, {}], backend=backend, **{name: value})) == 2


def test_sampling_arguments_reach_the_engine() -> None:
    backend = FakeEngine()
    scored.run(backend=backend, skip_special_tokens=False, min_p=0.5)
    sampling = backend.gen("x").sampling
    assert (sampling.skip_special_tokens, sampling.min_p, sampling.max_tokens) == (False, 0.5, 4)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: sl.gen("x", logprob_start_len=-2), "logprob_start_len"),
        (lambda: sl.gen("x", logprob_start_len=0, return_logprob=False), "logprob_start_len"),
        (lambda: sl.gen("x", logprob_start_len=0, choices=["a"]), "logprob_start_len"),
        (
            lambda: sl.gen("x", return_text_in_logprobs=True, choices=["a"]),
            "return_text_in_logprobs",
        ),
        (lambda: sl.gen("x", regex="a", dtype="int"), "regex"),
        (lambda: scored.run(use_thread="no", backend=FakeEngine()), "use_thread"),
        (lambda: sl.function(num_api_spec_tokens=64), "num_api_spec_tokens"),
        (lambda: sl.function(lambda s: None, 64), "num_api_spec_tokens"),
        (lambda: scored.run(backend=FakeEngine()).fork(2, [0, 0]), "position_ids_offset"),
        (
            lambda: scored.run(backend=FakeEngine()).fork(position_ids_offset=[0]),
            "position_ids_offset",
        ),
        (
            lambda: scored.run(backend=FakeEngine()).copy([0]).__enter__(),
            "position_ids_offset",
        ),
    ],
)
def test_arguments_without_a_meaning_are_refused_by_name(call: Any, named: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        call()
    assert error.value.param == named
    assert named in error.value.message
    assert str(error.value.where).startswith("test_lang_surface.py:")


def test_arguments_that_change_nothing_are_taken() -> None:
    assert (
        sl.function(num_api_spec_tokens=None)(lambda s: 3).run(backend=FakeEngine()).ret_value == 3
    )
    state = scored.run(backend=FakeEngine(), use_thread=False)
    assert len(state.fork(2, None)) == 2

    @sl.function
    def own(s, use_thread):
        return use_thread

    assert own.run(use_thread="mine", backend=FakeEngine()).ret_value == "mine"


# -- the rest of the surface ---------------------------------------------------------------------


def test_names() -> None:
    for name in [
        "function",
        "gen",
        "gen_int",
        "gen_string",
        "select",
        "image",
        "video",
        "system",
        "user",
        "assistant",
        "system_begin",
        "system_end",
        "user_begin",
        "user_end",
        "assistant_begin",
        "assistant_end",
        "separate_reasoning",
        "set_default_backend",
        "flush_cache",
        "get_server_info",
        "Engine",
        "greedy_token_selection",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
        "global_config",
        "__version__",
    ]:
        assert getattr(sl, name) is not None
    with pytest.raises(AttributeError, match=r"Runtime\(\.\.\.\)"):
        sl.ServerArgs  # noqa: B018


def test_the_page_lists_what_there_is() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "sglang.md").read_text(encoding="utf-8")
    for name in [*FAMILIES, *KNOWN, *GEN, *vars(sl.global_config)]:
        assert f"`{name}`" in page or f"`{name}(" in page, name


def test_roles_in_all_forms() -> None:
    @sl.function
    def program(s):
        s += sl.system("a")
        s.user("b")
        with s.assistant():
            s += sl.gen("x")
        s += sl.user_begin()
        s += "c"
        s += sl.user_end()
        s += sl.assistant_begin() + sl.gen("y") + sl.assistant_end()
        with s.system():
            s += "d"
        s.assistant(sl.gen("z"))
        s += sl.user()

    state = program.run(backend=FakeEngine())
    said = [(m["role"][0], m["content"]) for m in state.messages()]
    assert said == [
        ("s", "a"),
        ("u", "b"),
        ("a", "ok"),
        ("u", "c"),
        ("a", "ok"),
        ("s", "d"),
        ("a", "ok"),
        ("u", ""),
    ]


def test_a_name_used_twice_holds_the_later_text() -> None:
    @sl.function
    def program(s):
        s += sl.gen("x") + sl.gen("x")
        s["y"] = 1
        s["y"] = 2
        return s["x"], s["y"]

    answers = iter(("one", "two"))
    state = program.run(backend=FakeEngine({"x": lambda *_: next(answers)}))
    assert state.ret_value == ("two", 2)
    assert state.text() == "onetwo"


def test_an_unnamed_generation_is_no_variable() -> None:
    @sl.function
    def program(s):
        s += sl.gen() + sl.select(choices=["a"])

    state = program.run(backend=FakeEngine())
    assert None not in state
    assert state.text() == "oka"


@pytest.mark.parametrize("made", [sl.gen("x", choices=["a", "b"]), sl.select("x", ["a", "b"])])
def test_choices_are_scored_at_temperature_zero_unless_said(made: Any) -> None:
    assert isinstance(made, SelectExpr)
    assert (made.temperature, made.method) == (0.0, "token_length_normalized")
