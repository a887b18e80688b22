"""What a program written for SGLang's frontend uses: names, arguments, and what they mean here."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.engines import hash_engine
from support.fake_engine import FakeEngine

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang import backend as backends
from stolon.lang.ir import GenExpr, SelectExpr
from stolon.lang.known_templates import KNOWN
from stolon.lang.reasoning import FAMILIES
from stolon.lang.traced_state import TracedState
from stolon.srt.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with hash_engine() as made:
        yield made


@sl.function
def scored(s, **arguments):
    s += "once upon" + sl.gen("x", max_tokens=4, **arguments)


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


# -- log-probs -----------------------------------------------------------------------------------


def test_log_probs_of_the_text_before(engine: Engine) -> None:
    info = scored.run(backend=engine, seed=1, logprob_start_len=0).get_meta_info("x")
    rows = info["input_token_logprobs"]
    assert "".join(text for _, _, text in rows) == "once upon"
    assert rows[0][0] is None
    assert all(logprob <= 0 for logprob, _, _ in rows[1:])
    assert len(info["output_token_logprobs"]) == info["completion_tokens"]
    later = scored.run(backend=engine, seed=1, logprob_start_len=3).get_meta_info("x")
    assert later["input_token_logprobs"] == rows[3:]
    none = scored.run(backend=engine, seed=1, return_logprob=True, logprob_start_len=-1)
    assert "input_token_logprobs" not in none.get_meta_info("x")


def test_log_probs_of_everything_said_so_far(engine: Engine) -> None:
    @sl.function
    def program(s):
        s += "ab" + sl.gen("x", max_tokens=3) + "cd"
        s += sl.gen("y", max_tokens=2, logprob_start_len=0, top_logprobs_num=2)
        s += "ef" + sl.gen("z", max_tokens=2, n=2, logprob_start_len=1)

    state = program.run(backend=engine, seed=3)
    info = state.get_meta_info("y")
    assert "".join(row[2] for row in info["input_token_logprobs"]) == f"ab{state['x']}cd"
    assert [len(row) for row in info["input_top_logprobs"]][1:] == [2] * (
        len(info["input_token_logprobs"]) - 1
    )
    first, second = state.get_meta_info("z")
    assert first["input_token_logprobs"] == second["input_token_logprobs"]
    # Asking changes nothing else.
    plain = scored.run(backend=engine, seed=5)
    assert scored.run(backend=engine, seed=5, logprob_start_len=0)["x"] == plain["x"]


def test_the_text_of_tokens_can_be_left_out(engine: Engine) -> None:
    arguments = {"backend": engine, "seed": 1, "top_logprobs_num": 1, "logprob_start_len": 0}
    with_text = scored.run(**arguments).get_meta_info("x")
    without = scored.run(**arguments, return_text_in_logprobs=False).get_meta_info("x")
    for key in ("output_token_logprobs", "input_token_logprobs"):
        assert [row[:2] for row in with_text[key]] == [row[:2] for row in without[key]]
        assert all(isinstance(row[2], str) for row in with_text[key])
        assert all(row[2] is None for row in without[key])
    assert without["output_top_logprobs"][0][0][2] is None

    async def pieces() -> list[Any]:
        state = scored.run(**arguments, return_text_in_logprobs=False, stream=True)
        return [m async for _, m in state.text_async_iter("x", return_meta_data=True)]

    rows = [row for meta in asyncio.run(pieces()) for row in meta.get("output_token_logprobs", [])]
    assert rows == without["output_token_logprobs"]


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        (sl.token_length_normalized, set()),
        (sl.greedy_token_selection, {"greedy_logprob_matrix"}),
        (
            sl.unconditional_likelihood_normalized,
            {"normalized_unconditional_prompt_logprobs"},
        ),
    ],
)
def test_facts_of_a_selection(engine: Engine, method: Any, keys: set[str]) -> None:
    @sl.function
    def program(s):
        s += "pick" + sl.select("x", ["a", "bcd", "ef"], choices_method=method)

    state = program.run(backend=engine)
    info = state.get_meta_info("x")
    rows = info["input_token_logprobs"]
    means = [sum(logprob for logprob, _, _ in row) / len(row) for row in rows]
    assert info["normalized_prompt_logprobs"] == pytest.approx(means)
    assert info["output_token_logprobs"] == [[], [], []]
    assert {key for key in info if "greedy" in key or "unconditional" in key} == keys
    for row, padded, mean in zip(rows, info.get("greedy_logprob_matrix", []), means, strict=False):
        assert padded[: len(row)] == [logprob for logprob, _, _ in row]
        assert padded[len(row) :] == pytest.approx([mean] * (3 - len(row)))


# -- reasoning and templates on an engine --------------------------------------------------------


def test_reasoning_and_constraint_on_an_engine(engine: Engine) -> None:
    @sl.function
    def program(s):
        s += sl.user("2+2?")
        s += sl.assistant(
            sl.separate_reasoning(sl.gen("n", regex="[0-9]", max_tokens=6), "deepseek-r1")
        )
        s += sl.user("Sure?") + sl.assistant(sl.gen("sure", max_tokens=3))

    runs = [
        program.run(backend=engine, seed=2, chat_template="chatml", stream=stream)
        for stream in (False, True)
    ]
    texts = [state.text() for state in runs]
    assert texts[0] == texts[1]
    assert runs[0]["n"] in "0123456789"
    assert f"assistant\n{runs[0]['n']}<|im_end|>\n" in texts[0]
    assert runs[0]["n_reasoning_content"] == runs[1]["n_reasoning_content"]


# -- global configuration ------------------------------------------------------------------------


@pytest.fixture
def config() -> Iterator[Any]:
    given = backends._default
    before = dict(vars(sl.global_config))
    yield sl.global_config
    backends._default = given
    for name, value in before.items():
        setattr(sl.global_config, name, value)


def test_the_listed_fields_and_their_values(config: Any) -> None:
    assert vars(config) == {
        "verbosity": 0,
        "skip_special_tokens_in_output": True,
        "spaces_between_special_tokens_in_out": True,
        "enable_precache_with_tracing": True,
        "enable_parallel_encoding": True,
    }
    for wrong, value in (("verbosity", True), ("verbosity", "2"), ("enable_parallel_encoding", 1)):
        with pytest.raises(InvalidRequest, match=wrong) as error:
            setattr(config, wrong, value)
        assert str(error.value.where).startswith("test_lang_surface.py:")
    with pytest.raises(
        InvalidRequest, match="has no 'verbosty'; it has default_backend, verbosity"
    ):
        config.verbosty = 2
    config.enable_parallel_encoding = False


def test_the_default_backend_is_that_of_set_default_backend(config: Any) -> None:
    backend = FakeEngine()
    config.default_backend = backend
    assert config.default_backend is backend
    assert scored.run()["x"] == "ok"
    sl.set_default_backend(None)
    assert config.default_backend is None


def test_special_tokens_in_output(config: Any) -> None:
    config.skip_special_tokens_in_output = False
    backend = FakeEngine()
    scored.run(backend=backend)
    assert not backend.gen("x").sampling.skip_special_tokens
    backend = FakeEngine()
    scored.run(backend=backend, skip_special_tokens=True)
    assert backend.gen("x").sampling.skip_special_tokens


def test_verbosity_prints_the_text_of_a_run(
    config: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    @sl.function
    async def coroutine(s):
        s += "async " + sl.gen("x")

    scored.run(backend=FakeEngine())
    assert capsys.readouterr().out == ""
    config.verbosity = 2
    scored.run(backend=FakeEngine())
    coroutine.run(backend=FakeEngine())
    assert capsys.readouterr().out == "once uponok\nasync ok\n"


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
