"""Programs on real servers of other projects, started by scripts/peers.sh."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pydantic import BaseModel, Field

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang.backends.openai import OpenAI

URLS = [url for url in os.environ.get("STOLON_PEER_URLS", "").split(",") if url]
WHY = "STOLON_PEER_URLS is not set: scripts/peers.sh starts servers and prints it"
pytestmark = pytest.mark.skipif(not URLS, reason=WHY)


@pytest.fixture(params=URLS or ["none"], scope="module")
def peer(request: pytest.FixtureRequest) -> Iterator[OpenAI]:
    backend = OpenAI(base_url=request.param)
    yield backend
    backend.close()


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=120)


@sl.function
def facts(s: sl.ProgramState) -> None:
    s += sl.user("Maria is 34. Extract the person as JSON with name and age.")
    s += sl.assistant(sl.gen("person", schema=Person, max_tokens=40))
    s += sl.user("How old is she? A number only.") + sl.assistant(sl.gen("age", dtype=int))
    s += sl.user("Is she older than 30?") + sl.assistant(sl.gen("old", regex="(yes|no)"))


def test_typed_values_of_a_chat(peer: OpenAI) -> None:
    state = facts.run(backend=peer, temperature=0.0, max_tokens=8)
    assert isinstance(state.value("person"), Person)
    assert isinstance(state.value("age"), int)
    assert state["old"] in ("yes", "no")
    assert len(state.messages()) == 6


@sl.function
def capitals(s: sl.ProgramState) -> None:
    s += "The capital of France is" + sl.gen("a", max_tokens=4, stop=".")
    s += ". Italy's is" + sl.gen("b", max_tokens=4, stop=".", return_logprob=True)
    s += '. As JSON: {"population": ' + sl.gen("n", dtype=int, max_tokens=8)


def test_text_logprobs_and_streams(peer: OpenAI) -> None:
    state = capitals.run(backend=peer, temperature=0.0)
    assert "Paris" in state["a"]
    assert isinstance(state.value("n"), int)
    meta = state.get_meta_info("b")
    assert "".join(text for _, _, text in meta["output_token_logprobs"]) == state["b"]
    assert meta["prompt_tokens"] > 0
    streamed = capitals.run(backend=peer, temperature=0.0, stream=True)
    assert "".join(streamed.text_iter("b")) == state["b"]
    assert streamed.text() == state.text()


def test_samples_differ_and_seeds_repeat(peer: OpenAI) -> None:
    @sl.function
    def free(s: sl.ProgramState, n: int) -> None:
        s += "My favourite number, animal and town are" + sl.gen("x", n=n, max_tokens=8)

    assert len(set(free.run(3, backend=peer, seed=5)["x"])) > 1
    first = free.run(1, backend=peer, seed=5)["x"]
    assert free.run(1, backend=peer, seed=5)["x"] == first


def test_selections_are_scored(peer: OpenAI) -> None:
    @sl.function
    def pick(s: sl.ProgramState) -> None:
        s += "The capital of France is" + sl.select("x", [" Rome", " Paris"])

    if peer.row.scoring == "echo":
        pytest.skip("depends on whether the model begins with a special token")
    state = pick.run(backend=peer)
    assert state["x"] == " Paris"
    assert state.scores("x")[" Paris"] > state.scores("x")[" Rome"]


def test_prefill_is_gone_on_with_or_refused(peer: OpenAI) -> None:
    @sl.function
    def count(s: sl.ProgramState) -> None:
        s += sl.user("Count to five.") + sl.assistant("1, 2," + sl.gen("x", max_tokens=4))

    if peer.row.prefill is None:
        with pytest.raises(InvalidRequest, match="can't generate here"):
            count.run(backend=peer, temperature=0.0)
    else:
        assert "3" in count.run(backend=peer, temperature=0.0)["x"]


def test_the_servers_own_refusal_is_told(peer: OpenAI) -> None:
    wrong = OpenAI("no such model", base_url=peer.server, dialect=peer.dialect)
    if peer.dialect == "llama-cpp-python":
        pytest.skip("it answers for any model")
    with pytest.raises(sl.StolonError, match="no such model"):
        capitals.run(backend=wrong)
    wrong.close()
