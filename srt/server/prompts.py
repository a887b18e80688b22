"""Prompts on their way to the engine: text, token ids, or rendered messages."""

from __future__ import annotations

from collections.abc import Sequence

from stolon.errors import ContextLengthExceeded, InvalidRequest
from stolon.srt.client import EngineClient
from stolon.srt.protocol import MAX_SEGMENTS, Segment, Text, Tokens
from stolon.srt.server.limits import ServerLimits
from stolon.srt.server.openai_schemas import ChatMessage
from stolon.srt.tokenizer import ChatTemplate, Message, Tokenizer

Parts = list[tuple[str, bool]]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class Prompts:
    """Makes and checks prompts for one engine."""

    def __init__(self, client: EngineClient, limits: ServerLimits) -> None:
        self._limits = limits
        self.tokenizer: Tokenizer = client.tokenizer
        self.vocab_size = client.info.vocab_size
        self.context_length = client.info.context_length
        self.template: ChatTemplate = client.chat_template or ChatTemplate.plain()
        self._max_token_bytes = max(map(len, client.tokenizer.token_bytes), default=1) or 1

    def chat(
        self, messages: list[ChatMessage], *, add_generation_prompt: bool = True
    ) -> tuple[Parts, list[Segment]]:
        """Rendered messages, as parts and as segments. Only the template's own text is special."""
        parts = self.template.render_parts(
            self._messages(messages), add_generation_prompt=add_generation_prompt
        )
        merged = _merge(parts)
        if len(merged) >= MAX_SEGMENTS:
            raise InvalidRequest("messages has too many messages", param="messages")
        self.check_size(sum(len(text.encode()) for text, _ in merged), "messages")
        return merged, [Text(text, special) for text, special in merged]

    def text(self, text: str, param: str) -> list[Segment]:
        """A raw prompt: its author may spell special tokens, as with a template applied by the
        client.
        """
        self.check_size(len(text.encode()), param)
        return [Text(text, special=True)]

    def ids(self, ids: Sequence[int], param: str) -> list[Segment]:
        """A prompt of token ids, range-checked."""
        if not ids:
            raise InvalidRequest(f"{param} has a prompt without tokens", param=param)
        self.check_ids(ids, param)
        if len(ids) > self.context_length:
            raise self._too_long(f"{len(ids)} tokens", param)
        return [Tokens(list(ids))]

    def check_ids(self, ids: Sequence[int], param: str) -> None:
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise InvalidRequest(
                    f"{param} holds a token id outside the vocabulary of {self.vocab_size}",
                    param=param,
                )

    def encode(self, parts: Parts, *, bos: bool = True) -> list[int]:
        """The token ids of a prompt, with BOS in front if the model wants one and it is not there
        yet.
        """
        ids = self.tokenizer.encode_parts(parts, at_start=True)
        first = self.tokenizer.bos_id
        if bos and self.tokenizer.add_bos and first is not None and ids[:1] != [first]:
            ids.insert(0, first)
        return ids

    def check_size(self, size: int, param: str) -> None:
        """Raise ContextLengthExceeded for so many bytes of text that no prompt can hold them."""
        # No token stands for more bytes than the longest one: this text can't fit, whatever its
        # tokens are.
        if size > self.context_length * self._max_token_bytes:
            raise self._too_long(f"{size} bytes of text", param)

    def _too_long(self, what: str, param: str) -> ContextLengthExceeded:
        return ContextLengthExceeded(
            f"the prompt has {what}; the context holds {self.context_length} tokens", param=param
        )

    def _messages(self, messages: list[ChatMessage]) -> list[Message]:
        if not 0 < len(messages) <= self._limits.max_messages:
            raise InvalidRequest(
                f"messages takes 1 to {self._limits.max_messages} messages", param="messages"
            )
        return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: ChatMessage, param: str) -> Message:
    if message.role not in _ROLES:
        raise InvalidRequest(
            f"{param}.role must be one of {', '.join(_ROLES)}", param=f"{param}.role"
        )
    if message.content is None and message.role != "assistant":
        raise InvalidRequest(f"{param}.content is missing", param=f"{param}.content")
    out: Message = {
        "role": "system" if message.role == "developer" else message.role,
        "content": _content(message, f"{param}.content"),
    }
    for name in ("name", "tool_calls", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            out[name] = value
    return out


def _content(message: ChatMessage, param: str) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    texts = []
    for i, part in enumerate(message.content):
        text = {"text": part.text, "refusal": part.refusal}.get(part.type)
        if text is None:
            raise InvalidRequest(
                f"{param}[{i}] must be a text part; this server takes text only",
                param=f"{param}[{i}]",
            )
        texts.append(text)
    return "\n".join(texts)


def _merge(parts: Sequence[tuple[str, bool]]) -> Parts:
    merged: Parts = []
    for text, special in parts:
        if merged and merged[-1][1] == special:
            merged[-1] = (merged[-1][0] + text, special)
        elif text:
            merged.append((text, special))
    return merged
