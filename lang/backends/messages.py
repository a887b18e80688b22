"""What is before a generation, as the messages of a chat endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.backends.dialect import Dialect
from stolon.lang.backends.transcript import Transcript


def chat_messages(
    before: Transcript, row: Dialect
) -> tuple[list[dict[str, str]], Mapping[str, Any]]:
    """The messages, and the fields that make the server go on with the last one if it has begun.

    Raises InvalidRequest where a server that answers messages can't begin an answer.
    """
    messages = [{"role": message.role, "content": message.content} for message in before.messages]
    if before.outside.strip() or before.open != "assistant":
        raise _no_place(
            row,
            "it writes answers to messages, and nothing else",
            "put it into a message, as in sl.assistant(sl.gen(...)); or is_chat_model=False",
        )
    if not before.begun:
        return messages, {}
    if row.prefill is None:
        raise _no_place(
            row,
            f"it can't go on after {before.begun[-40:]!r} in the same message",
            "begin the message with gen(), once; or is_chat_model=False",
        )
    return [*messages, {"role": "assistant", "content": before.begun}], row.prefill


def _no_place(row: Dialect, why: str, hint: str) -> InvalidRequest:
    if "completions" not in row.endpoints:
        hint = hint.partition(";")[0]
    return InvalidRequest(f"{row.title} can't generate here: {why}", hint=hint)
