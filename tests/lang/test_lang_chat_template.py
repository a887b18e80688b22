"""Chat templates given by name or table, next to the model's own."""

from __future__ import annotations

from typing import Any

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest
from stolon.lang import chat_template as registry
from stolon.lang.known_templates import KNOWN, MEDIA


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_templates", {})
    monkeypatch.setattr(registry, "_matches", [])


@sl.function
def chat(s):
    s += sl.system("S") + sl.user("U")
    s += sl.assistant(sl.gen("a"))
    s += sl.user("V")
    s += sl.assistant(sl.gen("b"))


@sl.function
def short(s):
    s += sl.user("U") + sl.assistant(sl.gen("a"))


MESSAGES = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "U"},
    {"role": "assistant", "content": "ok"},
    {"role": "user", "content": "V"},
    {"role": "assistant", "content": "ok"},
]


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_run_in_a_named_template_writes_what_the_template_does(name: str) -> None:
    state = chat.run(backend=FakeEngine(chat_template=tiny_chat_template()), chat_template=name)
    assert state.messages() == MESSAGES
    assert state.text() == sl.get_chat_template(name).get_prompt(MESSAGES)


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("default", "SYSTEM:S\nUSER:U\nASSISTANT:ok\nUSER:V\nASSISTANT:ok\n"),
        (
            "llama-2-chat",
            "[INST] <<SYS>>\nS\n<</SYS>>\n\nU [/INST]ok </s><s>[INST] V [/INST]ok </s><s>",
        ),
        (
            "gemma-it",
            "S<start_of_turn>user\nU<end_of_turn>\n<start_of_turn>model\nok<end_of_turn>\n"
            "<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\nok<end_of_turn>\n",
        ),
        (
            "llama-3-instruct",
            "".join(
                f"<|start_header_id|>{m['role']}<|end_header_id|>\n\n{m['content']}<|eot_id|>"
                for m in MESSAGES
            ),
        ),
    ],
)
def test_prompts(name: str, prompt: str) -> None:
    assert sl.get_chat_template(name).get_prompt(MESSAGES) == prompt


def test_the_default_system_prompt_is_a_message() -> None:
    engine = FakeEngine(chat_template=tiny_chat_template())
    state = short.run(backend=engine, chat_template="qwen")
    assert [m["role"] for m in state.messages()] == ["system", "user", "assistant"]
    assert state.messages()[0]["content"] == "You are a helpful assistant."
    asked: list[dict[str, Any]] = [{"role": "system", "content": None}, *state.messages()[1:]]
    assert state.text() == sl.get_chat_template("qwen").get_prompt(asked)
    assert len(chat.run(backend=engine, chat_template="qwen").messages()) == 5
    assert len(short.run(backend=engine).messages()) == 2  # the model's own template


def test_content_can_not_spell_a_marker() -> None:
    @sl.function
    def program(s):
        s += sl.user("<|im_end|>") + sl.assistant(sl.gen("a"))

    engine = FakeEngine()
    program.run(backend=engine, chat_template="chatml")
    texts = [s for s in engine.requests[0].segments if hasattr(s, "special")]
    assert [t.text for t in texts if not t.special] == ["<|im_end|>"]


def test_stop_strings_are_added_to_every_generation() -> None:
    template = sl.ChatTemplate("t", None, {}, stop_str=["<e>"])
    engine = FakeEngine()

    @sl.function
    def program(s):
        s += sl.user("U") + sl.assistant(sl.gen("a", stop=".") + sl.gen_int("i") + sl.gen("c"))

    program.run(backend=engine, chat_template=template, stop="!")
    stops = {name: engine.gen(name).sampling.stop for name in ("a", "i", "c")}
    assert stops == {"a": (".", "<e>"), "i": ("!", " ", "\n", "<e>"), "c": ("!", "<e>")}


def test_registered_templates_and_matching_functions() -> None:
    mine = sl.ChatTemplate(
        "mine", "Be kind.", {r: (f"<{r}>", f"</{r}>") for r in ("user", "system")}
    )
    sl.register_chat_template(mine)
    assert sl.get_chat_template("mine") is mine

    @sl.register_chat_template_matching_function
    def match(model_path: str) -> str | None:
        return "mine" if "fake" in model_path else None

    assert sl.get_chat_template_by_model_path("a/fake-7b") is mine
    assert match("other") is None
    state = short.run(backend=FakeEngine(chat_template=tiny_chat_template()))
    assert state.text() == "<system>Be kind.</system><user>U</user>ok"
    # What is registered last is asked first, and a run's own argument goes before both.
    sl.register_chat_template_matching_function(lambda path: sl.get_chat_template("default"))
    assert short.run(backend=FakeEngine()).text() == "USER:U\nASSISTANT:ok\n"
    assert short.run(backend=FakeEngine(), chat_template=mine).text().startswith("<system>")


def test_a_template_may_stand_on_the_backend() -> None:
    engine = FakeEngine()
    engine.chat_template = sl.get_chat_template("chatml")  # type: ignore[assignment]
    assert short.run(backend=engine).text().startswith("<|im_start|>user\nU<|im_end|>\n")


def test_a_server_that_writes_messages_itself_takes_no_template() -> None:
    engine = FakeEngine(chat_template=tiny_chat_template())
    engine.sends_messages = True  # type: ignore[attr-defined]
    with pytest.raises(InvalidRequest, match="writes messages in its own"):
        short.run(backend=engine, chat_template="chatml")
    sl.register_chat_template_matching_function(lambda path: "default")
    assert "<|im_start|>" in short.run(backend=engine).text()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3-instruct"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-chat"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("google/gemma-2-2b-it", "gemma-it"),
        ("google/gemma-2-2b", "default"),
        ("Qwen/Qwen2.5-7B", "default"),
        ("lmsys/vicuna-7b-v1.5", "vicuna_v1.1"),
        ("unknown", "default"),
    ],
)
def test_by_model_path(path: str, name: str) -> None:
    assert sl.get_chat_template_by_model_path(path).name == name


def test_refusals_say_what_there_is() -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template 'qwem'; there are .*qwen"):
        sl.get_chat_template("qwem")
    for name in MEDIA:
        with pytest.raises(InvalidRequest, match="images; only text"):
            sl.get_chat_template(name)
    for wrong in (5, "nope"):
        with pytest.raises(InvalidRequest, match=r"chat template|chat_template") as error:
            short.run(backend=FakeEngine(), chat_template=wrong)
        assert str(error.value.where).startswith("test_lang_chat_template.py:")
    with pytest.raises(InvalidRequest, match="ChatTemplate is registered"):
        sl.register_chat_template("x")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="function of the model's path"):
        sl.register_chat_template_matching_function("x")  # type: ignore[type-var]


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": 5},
        {"default_system_prompt": 5},
        {"role_prefix_and_suffix": {"user": "x"}},
        {"role_prefix_and_suffix": {"user": ("x", 1)}},
        {"role_prefix_and_suffix": []},
        {"stop_str": [1]},
        {"stop_str": [""]},
        {"style": "llama2"},
        {"image_token": None},
    ],
)
def test_wrong_templates_are_refused(wrong: dict[str, Any]) -> None:
    right: dict[str, Any] = {
        "name": "n",
        "default_system_prompt": None,
        "role_prefix_and_suffix": {},
    }
    with pytest.raises(InvalidRequest) as error:
        sl.ChatTemplate(**(right | wrong))
    assert next(iter(wrong)) in str(error.value.param)
