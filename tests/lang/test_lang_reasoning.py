"""`separate_reasoning`: the answer goes on, the reasoning is kept apart."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.byte_tokenizer import ByteTokenizer
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest, ProgramError
from stolon.lang.reasoning import FAMILIES, Splitter, family_of, split_reasoning
from stolon.srt.protocol import Gen, Select, Text

THOUGHT = "<think>\nOne and one.\n</think>\n\nTwo."
TOKENS = len(ByteTokenizer().encode(THOUGHT))


@sl.function
def ask(s, question="1+1?", **arguments):
    s += sl.user(question)
    s += sl.assistant(sl.separate_reasoning(sl.gen("answer", **arguments), model_type="qwen3"))


def chatting(**answers: Any) -> FakeEngine:
    return FakeEngine(answers, chat_template=tiny_chat_template())


@pytest.mark.parametrize(
    ("family", "text", "reasoning", "answer"),
    [
        ("qwen3", THOUGHT, "One and one.", "Two."),
        ("qwen3", " no thought ", "", " no thought "),
        ("qwen3", "<think></think>x", "", "x"),
        ("qwen3", "<think>cut", "cut", ""),
        ("qwen3", "<thin", "", "<thin"),
        ("qwen3", "<think>a</think>b</think>", "a", "b</think>"),
        ("deepseek-r1", "so</think>\nx ", "so", "x "),
        ("deepseek-r1", "<think>so</think>x", "so", "x"),
        ("deepseek-r1", "never ends </th", "never ends </th", ""),
        ("deepseek-v3", "x", "", "x"),
        ("kimi", "◁think▷so◁/think▷x", "so", "x"),
        (
            "gpt-oss",
            "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final<|message|>x",
            "so",
            "x",
        ),
        ("gpt-oss", "<|channel|>final<|message|>x", "", "x"),
    ],
)
def test_splitting_does_not_depend_on_the_pieces(
    family: str, text: str, reasoning: str, answer: str
) -> None:
    found = family_of(family)
    inside = found.begins_inside
    assert split_reasoning(text, found, inside=inside) == (reasoning, answer)
    rng = random.Random(family)
    for _ in range(50):
        splitter = Splitter(found, inside=inside)
        parts = []
        rest = text
        while rest:
            size = rng.randint(1, 5)
            parts.append(splitter.feed(rest[:size]))
            rest = rest[size:]
        parts.append(splitter.feed("", last=True))
        assert tuple(map("".join, zip(*parts, strict=True))) == (reasoning, answer)


def test_variables_text_and_messages() -> None:
    state = ask.run(backend=chatting(answer=THOUGHT))
    assert state["answer"] == "Two."
    assert state["answer_reasoning_content"] == "One and one."
    assert state.messages()[-1] == {"role": "assistant", "content": "Two."}
    assert "One and one" not in state.text()
    assert state.text().endswith("<|im_start|>assistant\nTwo.<|im_end|>\n")
    assert state.get_meta_info("answer")["completion_tokens"] == TOKENS


def test_what_follows_goes_on_from_the_answer_alone() -> None:
    @sl.function
    def twice(s):
        ask(s)
        s += sl.user("And?") + sl.assistant(sl.gen("more"))

    engine = chatting(answer=THOUGHT)
    twice.run(backend=engine)
    first, second = engine.received_by("answer"), engine.received_by("more")
    assert second.prompt.startswith(first.prompt + "Two.<|im_end|>\n")
    assert "One and one" not in second.prompt


def test_a_constraint_begins_after_the_reasoning() -> None:
    engine = chatting(answer="7", answer_reasoning_content="Seven it is.")
    state = ask.run(backend=engine, dtype=int, stop="x", min_tokens=1, return_logprob=True)
    assert state.value("answer") == 7
    assert state["answer_reasoning_content"] == "Seven it is."
    request = engine.received_by("answer")
    kinds = [type(s) for s in request.segments]
    assert kinds[-5:] == [Text, Text, Gen, Text, Gen] or kinds[-4:] == [Text, Gen, Text, Gen]
    free, bound = (s for s in request.segments if isinstance(s, Gen))
    assert free.grammar is None
    assert free.sampling.stop == ("</think>",)
    assert free.sampling.min_tokens == 0
    assert free.logprobs is not None
    assert bound.grammar is not None
    assert bound.sampling.stop == ("x", " ", "\n")
    texts = [s for s in request.segments if isinstance(s, Text)]
    assert [(t.text, t.special) for t in texts[-2:]] == [
        ("<think>\n", True),
        ("</think>\n\n", True),
    ]
    assert state.messages()[-1]["content"] == "7"


def test_a_selection_comes_after_the_reasoning() -> None:
    @sl.function
    def choose(s):
        s += "Yes or no? " + sl.separate_reasoning(
            sl.select("c", [("yes", 1), ("no", 0)]), model_type="DeepSeek-R1"
        )

    engine = FakeEngine({"c": "no", "c_reasoning_content": "<think>Hm."})
    state = choose.run(backend=engine)
    assert (state["c"], state.value("c"), state["c_reasoning_content"]) == ("no", 0, "Hm.")
    assert set(state.scores("c")) == {"yes", "no"}
    free, chosen = (s for s in engine.requests[0].segments if isinstance(s, Gen | Select))
    assert isinstance(free, Gen)
    assert isinstance(chosen, Select)
    assert state.text() == "Yes or no? no"


def test_lists_with_text_between() -> None:
    @sl.function
    def both(s):
        s += sl.separate_reasoning(
            ["A: ", sl.gen("a"), " B: ", sl.gen("b"), sl.gen()], model_type="qwen3"
        )
        s += sl.separate_reasoning(None, "qwen3")

    engine = FakeEngine({"a": "<think>x</think>1", "b": "2"}, default="<think>y</think>3")
    state = both.run(backend=engine)
    assert state.text() == "A: 1 B: 23"
    assert (state["a_reasoning_content"], state["b_reasoning_content"]) == ("x", "")


@pytest.mark.parametrize(
    ("opening", "reasoning", "text"),
    [
        ("<think>\n", "so", "Q<think>\n\n</think>\n\nx"),
        ("<think>\n\n</think>\n\n", "", "Q<think>\n\n</think>\n\nso</think>x"),
    ],
)
def test_the_template_may_have_begun_or_ended_the_reasoning(
    opening: str, reasoning: str, text: str
) -> None:
    @sl.function
    def program(s):
        s += "Q" + opening + sl.separate_reasoning(sl.gen("a"), "qwen3")

    state = program.run(backend=FakeEngine({"a": "so</think>x"}))
    assert state["a_reasoning_content"] == reasoning
    assert state.text() == text


def test_markers_are_no_content_of_a_message() -> None:
    template = sl.ChatTemplate(
        "thinking", None, {"user": ("U:", "\n"), "assistant": ("A:<think>\n", "\n")}
    )
    engine = FakeEngine({"answer": "so</think>x"})
    state = ask.run(backend=engine, chat_template=template)
    assert state.text() == "U:1+1?\nA:<think>\n\n</think>\n\nx\n"
    assert state.messages()[-1]["content"] == "x"


@pytest.mark.parametrize("family", ["qwen3", "gpt-oss"])
def test_special_markers_stay_in_the_text(family: str) -> None:
    @sl.function
    def program(s):
        s += "Q" + sl.separate_reasoning(sl.gen("a"), family)

    engine = FakeEngine({"a": "x"})
    program.run(backend=engine)
    assert engine.gen("a").sampling.skip_special_tokens is not FAMILIES[family].special


def test_samples_are_lists_and_the_first_answer_goes_on() -> None:
    engine = chatting(answer=["<think>a</think>1", "<think>b</think>2"])
    state = ask.run(backend=engine, n=2)
    assert state["answer"] == ["1", "2"]
    assert state["answer_reasoning_content"] == ["a", "b"]
    assert state.messages()[-1]["content"] == "1"
    with pytest.raises(InvalidRequest, match="several samples under a constraint") as error:
        ask.run(backend=engine, n=2, regex="a")
    assert str(error.value.where).startswith("test_lang_reasoning.py:")


def test_streaming_gives_each_side_its_pieces() -> None:
    long = "<think>" + "why " * 5 + "</think>\n" + "because " * 5
    for name, wanted in (
        ("answer", "because " * 5),
        ("answer_reasoning_content", "why " * 4 + "why"),
    ):
        state = ask.run(backend=chatting(answer=long), stream=True)
        pieces = list(state.text_iter(name))
        assert "".join(pieces) == wanted == state[name]
        assert len(pieces) > 3
    state = ask.run(backend=chatting(answer=long), stream=True)
    pieces = list(state.text_iter())
    assert "".join(pieces) == state.text()
    assert len(pieces) > 6


def test_streamed_log_probs_go_with_one_side_each() -> None:
    async def pieces(name: str) -> list[tuple[str, dict[str, Any]]]:
        state = ask.run(backend=chatting(answer=THOUGHT), stream=True, return_logprob=True)
        return [p async for p in state.text_async_iter(name, return_meta_data=True)]

    sides = [asyncio.run(pieces(n)) for n in ("answer", "answer_reasoning_content")]
    count = [sum(len(m.get("output_token_logprobs", [])) for _, m in side) for side in sides]
    assert sum(count) == TOKENS
    assert min(count) > 0


def test_errors_and_cut_answers_are_those_of_the_generation() -> None:
    state = ask.run(backend=chatting(answer="<think>on and on"), max_tokens=9)
    assert state["answer"] == ""
    engine = chatting(answer="no number", answer_reasoning_content="x")
    with pytest.raises(ProgramError, match="'answer' is no valid int"):
        ask.run(backend=engine, dtype=int, max_tokens=20).value("answer")
    engine = chatting(answer=InvalidRequest("refused"))
    with pytest.raises(InvalidRequest, match="refused") as error:
        ask.run(backend=engine)
    with pytest.raises(InvalidRequest, match="refused"):
        error.value.state["answer_reasoning_content"]


def test_async_fork_and_join() -> None:
    @sl.function
    async def program(s):
        s += "Q"
        forks = s.fork(2)
        forks += sl.separate_reasoning(sl.gen("a"), "qwen3")
        forks.join()
        return await s.aget("a"), await s.aget("a_reasoning_content")

    state = program.run(backend=FakeEngine({"a": "<think>x</think>1"}))
    assert state.ret_value == (["1", "1"], ["x", "x"])


def test_wrong_families_are_refused_with_the_list() -> None:
    with pytest.raises(InvalidRequest, match=r"deepseek-r1, .*not 'qwen9'") as error:
        sl.separate_reasoning(sl.gen("a"), model_type="qwen9")
    assert str(error.value.where).startswith("test_lang_reasoning.py:")
    with pytest.raises(InvalidRequest, match="needs a model_type"):
        sl.separate_reasoning(sl.gen("a"))
