"""`stolon chat`: what it keeps of a conversation, its commands, and a full context."""

import io
import sys
from contextlib import nullcontext

import msgspec
import pytest
from support.default_engine import default_engine

import stolon
from stolon import cli
from stolon.commands import chat
from stolon.errors import (
    ContextLengthExceeded,
)
from stolon.srt.protocol import Sampling


@pytest.fixture
def engine(monkeypatch):
    with default_engine(monkeypatch) as fake:
        yield fake


def test_chat_keeps_tokens(engine, capsys):
    talk = chat.Conversation(engine, system="Be brief.")
    talk.answer("Hello", Sampling(max_tokens=8))
    first = list(talk.tokens)
    talk.answer("Again", Sampling(max_tokens=8))
    assert talk.tokens[: len(first)] == first
    text = engine.tokenizer.decode(talk.tokens, skip_special=False)
    expected = engine.chat_template.render(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "fine"},
            {"role": "user", "content": "Again"},
            {"role": "assistant", "content": "fine"},
        ]
    )
    assert expected.startswith(text)
    assert capsys.readouterr().out == "fine\nfine\n"


def chatting(monkeypatch, engine, typed, **info):
    """Run `stolon chat` with bytes on stdin."""
    for name, value in info.items():
        engine.info = msgspec.structs.replace(engine.info, **{name: value})
    monkeypatch.setattr(stolon, "Engine", lambda *_, **__: nullcontext(engine))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed), "utf-8"))
    return cli.main(["chat"])


def test_chat_survives_bytes_that_are_no_text(engine, monkeypatch, capsys):
    assert chatting(monkeypatch, engine, b"caf\xe9\nagain\n") == 0
    assert capsys.readouterr().out == "fine\nfine\n"
    assert "caf\ufffd" in engine.received[0].prompt


def test_chat_says_that_the_context_is_full(engine, monkeypatch, capsys):
    engine.default = ContextLengthExceeded("the prompt has 99 tokens")
    assert chatting(monkeypatch, engine, b"long\n") == 1
    assert capsys.readouterr().err == "stolon: the prompt has 99 tokens\n"
    engine.answers = {}
    engine.default = "fine"
    assert chatting(monkeypatch, engine, b"Hello\n", context_length=4) == 0
    err = capsys.readouterr().err
    assert err == (
        "stolon: the context of 4 tokens is full, the answer ends here; /reset frees it\n"
    )


def test_chat_without_room_for_a_message(engine, monkeypatch, capsys):
    def answer(prompt, gen):
        if "more" in prompt:
            raise ContextLengthExceeded("the prompt has 99 tokens")
        return "fine"

    engine.default = answer
    assert chatting(monkeypatch, engine, b"Hello\nmore\n/reset\nHello\n/quit\n") == 1
    out, err = capsys.readouterr()
    assert out == "fine\nfine\n"
    assert err.count("\n") == 1
    assert "tokens are used; /reset frees them" in err


def test_chat_commands(engine, capsys):
    talk = chat.Conversation(engine)
    talk.answer("Hello", Sampling(max_tokens=8))
    chat._command("/stats", engine, talk)
    assert f"history {len(talk.tokens)} of" in capsys.readouterr().out
    assert chat._command("/system Be kind.", engine, talk).system == "Be kind."
    assert chat._command("/reset", engine, talk).tokens == []
    assert chat._command("/nonsense", engine, talk) is talk
    assert "unknown command /nonsense" in capsys.readouterr().out
