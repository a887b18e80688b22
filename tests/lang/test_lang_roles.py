"""Roles: messages, the text that a template makes of them, and what is refused inside one."""

from __future__ import annotations

import pytest
from support.fake_engine import FakeEngine, tiny_chat_template

import stolon as sl
from stolon.errors import InvalidRequest


def test_two_turn_chat_text_and_messages() -> None:
    @sl.function
    def chat(s, question):
        s += sl.system("Be brief.")
        with s.user():
            s += "  " + question
        s.assistant(sl.gen("first"))
        s += sl.user_begin() + "And?" + sl.user_end()
        s += sl.assistant_begin()
        s += sl.gen("second")
        s += sl.assistant_end()

    engine = FakeEngine({"first": "one", "second": "two"}, chat_template=tiny_chat_template())
    state = chat.run("Q", backend=engine)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "two"},
    ]
    begin, end = "<|im_start|>", "<|im_end|>\n"
    assert state.text() == (
        f"{begin}system\nBe brief.{end}{begin}user\n  Q{end}{begin}assistant\none{end}"
        f"{begin}user\nAnd?{end}{begin}assistant\ntwo{end}"
    )


def test_the_templates_default_system_prompt_is_in_the_text() -> None:
    @sl.function
    def chat(s):
        s += sl.user("Q") + sl.assistant(sl.gen("a"))

    engine = FakeEngine(chat_template=tiny_chat_template("Be kind."))
    state = chat.run(backend=engine)
    assert state.text().startswith("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nQ")
    assert len(state.messages()) == 2


def test_roles_without_a_template_or_after_text_are_plain() -> None:
    @sl.function
    def chat(s):
        s += sl.user("Q") + sl.assistant(sl.gen("a"))

    @sl.function
    def late(s):
        s += "Some text.\n"
        chat(s)

    assert "User: Q" in chat.run(backend=FakeEngine()).text()
    state = late.run(backend=FakeEngine(chat_template=tiny_chat_template()))
    assert "<|im_start|>" not in state.text()
    assert state.text().startswith("Some text.\nUser: Q")


def test_user_text_is_never_special() -> None:
    @sl.function
    def chat(s):
        s += sl.user("<|im_end|>") + sl.assistant(sl.gen("a"))

    engine = FakeEngine(chat_template=tiny_chat_template())
    chat.run(backend=engine)
    texts = engine.requests[0].segments[:-1]
    assert [t.special for t in texts] == [True, False, True, True]
    assert texts[1].text == "<|im_end|>"


def test_roles_do_not_nest_and_must_match() -> None:
    @sl.function
    def nested(s):
        s += sl.user("a" + sl.assistant("b"))

    @sl.function
    def unmatched(s):
        s += sl.user_begin() + sl.assistant_end()

    @sl.function
    def closed(s):
        s += sl.user_end()

    engine = FakeEngine()
    with pytest.raises(InvalidRequest, match="nest"):
        nested.run(backend=engine)
    with pytest.raises(InvalidRequest, match="inside role 'user'"):
        unmatched.run(backend=engine)
    with pytest.raises(InvalidRequest, match="outside any role"):
        closed.run(backend=engine)


def test_scopes_close_when_the_body_raises() -> None:
    @sl.function
    def program(s):
        try:
            with s.user(), s.var_scope("v"):
                s += "hi"
                raise ValueError
        except ValueError:
            pass
        s += sl.assistant(sl.gen("a"))

    state = program.run(backend=FakeEngine())
    assert [m["role"] for m in state.messages()] == ["user", "assistant"]
    assert state["v"] == "hi"


def test_message_content_keeps_blanks_at_its_end() -> None:
    @sl.function
    def program(s):
        s += sl.user(" \n a b \n")

    assert program.run(backend=FakeEngine()).messages() == [{"role": "user", "content": "a b \n"}]
