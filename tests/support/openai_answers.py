"""A backend on a server with OpenAI's API, what such a server answers, and programs that ask it."""

from __future__ import annotations

import json
from typing import Any

from support.wire_server import WireServer

import stolon as sl
from stolon.lang.backends.openai import OpenAI

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def backend(server: WireServer, dialect: str = "vllm", **options: Any) -> OpenAI:
    return OpenAI(
        "m",
        base_url="http://host:8000",
        dialect=dialect,
        options=server.options(),
        **options,
    )


def said(text: str, **more: Any) -> dict[str, Any]:
    """A chat answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return {
        "choices": [choice | {"finish_reason": "stop"} | more],
        "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
    }


def written(text: str, **more: Any) -> dict[str, Any]:
    """A text answer."""
    return {"choices": [{"index": 0, "text": text, "finish_reason": "stop"} | more]}


def events(*payloads: Any) -> list[str]:
    return [f"data: {json.dumps(payload)}" for payload in payloads] + ["data: [DONE]"]


def piece(text: str, index: int = 0, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None} | more]}


@sl.function
def ask(s: sl.ProgramState, **options: Any) -> None:
    s += sl.system("Be brief.") + sl.user("Hi") + sl.assistant(sl.gen("a", **options))


def asked(server: WireServer, dialect: str = "vllm", **options: Any) -> sl.ProgramState:
    return ask.run(backend=backend(server, dialect), max_tokens=8, **options)


def bare(s: sl.ProgramState) -> None:
    s += "Hi" + sl.gen("a")
