"""Selections on other servers: scored where they give log-probs of given text, else refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
from support.openai_answers import CHAT, TEXT, backend
from support.wire_server import WireServer, wire

import stolon as sl
from stolon.errors import BackendError, InvalidRequest

BEFORE = "It is"
CHOICES = [" a", " a b", " c"]
# ids of the text's tokens, and of those that follow
IDS = {"It": 10, " is": 11, " a": 1, " b": 2, " c": 3}
GIVEN = {" a": -1.0, " b": -0.2, " c": -0.5}
ALONE = {" a": -0.1, " b": -2.0, " c": -3.0}


def pieces(text: str) -> list[str]:
    words = text.replace(" ", "\0 ").split("\0")
    return [word for word in words if word]


def logprob(text: str, at: int) -> float:
    return (GIVEN if text.startswith(BEFORE) else ALONE).get(pieces(text)[at], -9.0)


def vllm(body: Any) -> dict[str, Any]:
    """Log-probs of the prompt by ids; the first token is not named."""
    words = pieces(body["prompt"])
    listed: list[Any] = [None]
    listed += [
        {str(IDS[word]): {"logprob": logprob(body["prompt"], at), "rank": 1, "decoded_token": word}}
        for at, word in enumerate(words)
        if at
    ]
    assert body["max_tokens"] == 1
    return {"choices": [{"text": "x", "finish_reason": "length", "prompt_logprobs": listed}]}


def sglang(body: Any) -> dict[str, Any]:
    words = pieces(body["text"])
    listed = [
        [logprob(body["text"], at) if at else None, IDS[word], word]
        for at, word in enumerate(words)
    ]
    assert body["sampling_params"]["max_new_tokens"] == 0
    return {"text": "", "meta_info": {"input_token_logprobs": listed, "prompt_tokens": len(words)}}


def echo(body: Any) -> dict[str, Any]:
    """The prompt and one token more; a beginning-of-sequence token is counted and not listed."""
    words = [*pieces(body["prompt"]), " x"]
    values = [None, *(logprob(body["prompt"], at) for at in range(1, len(words) - 1)), -7.0]
    return {
        "choices": [
            {
                "text": body["prompt"] + " x",
                "finish_reason": "length",
                "logprobs": {"tokens": words, "token_logprobs": values, "top_logprobs": None},
            }
        ],
        "usage": {"prompt_tokens": len(words), "completion_tokens": 1},
    }


SERVERS = {"vllm": (TEXT, vllm), "sglang": ("/generate", sglang), "llama-cpp-python": (TEXT, echo)}


@sl.function
def pick(s: sl.ProgramState, method: Any = None, temperature: float = 0.0) -> None:
    s += BEFORE + sl.select("x", CHOICES, temperature, choices_method=method)


@pytest.mark.parametrize("dialect", SERVERS)
@pytest.mark.parametrize(
    ("method", "best", "normalized"),
    [
        ("token_length_normalized", " c", (-1.0, -0.6, -0.5)),
        ("sum", " c", (-1.0, -1.2, -0.5)),
        ("greedy_token_selection", " c", (-1.0, -0.6, -0.5)),
        # alone, the first token of each choice has no log-prob: it counts as 0
        ("unconditional_likelihood_normalized", " a b", (-1.0, 0.4, -0.5)),
    ],
)
def test_choices_are_scored_by_what_the_server_says(
    dialect: str, method: str, best: str, normalized: tuple[float, ...]
) -> None:
    path, answer = SERVERS[dialect]
    server = WireServer({path: answer})
    state = pick.run(method, backend=backend(server, dialect))
    assert state["x"] == best
    assert state.text() == BEFORE + best
    scores = state.scores("x")
    assert [scores.normalized(choice) for choice in CHOICES] == pytest.approx(normalized)
    assert list(scores.values()) == pytest.approx([-1.0, -1.2, -0.5])
    within = state.get_meta_info("x")["input_token_logprobs"][1]
    assert [text for _, _, text in within] == [" a", " b"]


def test_draws_follow_the_scores_and_the_seed() -> None:
    server = WireServer({TEXT: vllm})
    engine = backend(server, "vllm")
    drawn = [
        pick.run("sum", 1.0, backend=engine, seed=seed)["x"] for seed in (*range(40), *range(40))
    ]
    assert drawn[:40] == drawn[40:]
    share = drawn.count(" c") / 80
    weights = [math.exp(value) for value in (-1.0, -1.2, -0.5)]
    assert abs(share - weights[2] / sum(weights)) < 0.2
    assert set(drawn) == set(CHOICES)


def test_recorded_scores_of_vllm() -> None:
    record = wire("vllm")
    server = WireServer({TEXT: lambda body: record["score_text"][body["prompt"]]})

    @sl.function
    def capital(s: sl.ProgramState) -> None:
        s += "Capital of France:" + sl.select("x", [" Paris", " Rome"])

    state = capital.run(backend=backend(server, "vllm"))
    assert state["x"] == " Paris"
    assert state.scores("x")[" Paris"] > state.scores("x")[" Rome"]

    def answer(body: Any) -> Any:
        last = body["messages"][-1]
        assert body.get("continue_final_message", False) == (last["role"] == "assistant")
        return record["score_chat"][last["content"] if last["role"] == "assistant" else ""]

    server = WireServer({CHAT: answer})

    @sl.function
    def snow(s: sl.ProgramState) -> None:
        s += sl.user("Is snow white?") + sl.assistant(sl.select("x", ["yes", "no"]))

    state = snow.run(backend=backend(server, "vllm"))
    details = state.scores("x").details
    assert [len(score.token_ids) for score in details] == [1, 1]
    listed = record["score_chat"]["yes"]["prompt_logprobs"][-1]
    assert details[0].logprob == next(iter(listed.values()))["logprob"]


def test_logprobs_that_belong_to_other_tokens_are_not_used() -> None:
    # This model begins without a special token; the server then lists the next place's log-probs.
    record = wire("llama-cpp-python")["score_text"]
    server = WireServer({TEXT: lambda body: record[body["prompt"]]})

    @sl.function
    def capital(s: sl.ProgramState) -> None:
        s += "Capital of France:" + sl.select("x", [" Paris", " Rome"])

    with pytest.raises(InvalidRequest, match=r"llama-cpp-python.* begins without a special token"):
        capital.run(backend=backend(server, "llama-cpp-python"))


@pytest.mark.parametrize("dialect", ["openai", "compatible", "ollama", "llama-server", "nim"])
def test_servers_without_scores_refuse(dialect: str) -> None:
    server = WireServer({})
    with pytest.raises(InvalidRequest, match=r"can't honour select\(\)") as refused:
        pick.run(backend=backend(server, dialect))
    assert refused.value.param == "choices"
    assert not server.requests


def test_a_chat_has_no_text_without_context() -> None:
    @sl.function
    def chat(s: sl.ProgramState) -> None:
        s += sl.user("Hi") + sl.assistant(
            sl.select("x", CHOICES, choices_method="unconditional_likelihood_normalized")
        )

    with pytest.raises(InvalidRequest) as refused:
        chat.run(backend=backend(WireServer({}), "vllm"))
    assert refused.value.param == "choices_method"


def test_nothing_before_a_selection_is_refused() -> None:
    @sl.function
    def empty(s: sl.ProgramState) -> None:
        s += sl.select("x", CHOICES)

    with pytest.raises(InvalidRequest, match="nothing before it"):
        empty.run(backend=backend(WireServer({}), "vllm"))


def test_one_choice_can_be_generated_where_that_is_asked_for() -> None:
    server = WireServer({TEXT: {"choices": [{"text": " c", "finish_reason": "stop"}]}})
    engine = backend(server, "llama-server", select="constrained")
    state = pick.run("greedy_token_selection", backend=engine)
    assert state["x"] == " c"
    assert dict(state.scores("x")) == {}
    assert server.bodies[0]["temperature"] == 0.0
    assert server.bodies[0]["grammar"].startswith("root ::= [\\x20] [a] | ")
    with pytest.raises(InvalidRequest, match="greedy_token_selection"):
        pick.run(backend=engine)
    server.answers[TEXT] = {"choices": [{"text": " d", "finish_reason": "stop"}]}
    with pytest.raises(BackendError, match="none of the choices"):
        pick.run("greedy_token_selection", backend=engine)
