"""What an engine tells of generations and selections: log-probs of texts, before and after."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from support.engines import hash_engine
from support.small_programs import scored

import stolon as sl
from stolon.srt.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with hash_engine() as made:
        yield made


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
