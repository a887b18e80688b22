"""A branch of a program as a text, for servers that take text or messages and know no token ids of ours.

The "tokens" of such a branch are the letters of an alphabet: the 256 bytes, two marks around every message,
and, as they come in, the token texts that the server reports. So tokens only grow here too, forks share
them, and a prefix can be read back exactly, as one text or as messages.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from stolon.errors import BackendError
from stolon.lang.ir import Role
from stolon.srt.tokenizer import ChatTemplate, Tokenizer

BEGIN, END = 256, 257
MARKS = {"<|im_start|>": BEGIN, "<|im_end|>": END}
"""What a chat template (ChatML) writes around messages. Content that spells them stays content."""

MAX_PIECES = 1 << 20
"""Different token texts that one server may report."""

_FIRST_PIECE = 258
_ROLES: frozenset[str] = frozenset(get_args(Role))


def transcript_template() -> ChatTemplate:
    """The template whose marks `TranscriptTokenizer` reads."""
    return ChatTemplate.chatml()


class TranscriptTokenizer(Tokenizer):
    """The alphabet of one server. Thread-safe."""

    def __init__(self) -> None:
        self.vocab_size = _FIRST_PIECE + MAX_PIECES
        self._bytes = [bytes([i]) for i in range(256)] + [mark.encode() for mark in MARKS]
        self.token_bytes = self._bytes
        self.special_tokens = dict(MARKS)
        self.special_ids = frozenset(MARKS.values())
        self.bos_id = None
        self.eos_ids = frozenset({END})
        self.add_bos = False
        self.fingerprint = "transcript"
        self._pieces: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, at_start: bool = False
    ) -> list[int]:
        """UTF-8 bytes, and marks where special text spells them."""
        ids: list[int] = []
        for text, special in parts:
            ids += _marked(text) if special else text.encode()
        return ids

    def piece(self, token: bytes) -> int:
        """The letter of a token's bytes. Raises BackendError when a server reports too many of them."""
        if len(token) == 1:
            return token[0]
        with self._lock:
            id = self._pieces.get(token)
            if id is None:
                id = len(self._bytes)
                if id >= self.vocab_size:
                    raise BackendError(f"the server reports more than {MAX_PIECES:,} tokens")
                self._bytes.append(token)
                self._pieces[token] = id
            return id


def _marked(text: str) -> list[int]:
    ids: list[int] = []
    while text:
        found = [(at, mark) for mark in MARKS if (at := text.find(mark)) >= 0]
        if not found:
            return ids + list(text.encode())
        at, mark = min(found)
        ids += [*text[:at].encode(), MARKS[mark]]
        text = text[at + len(mark) :]
    return ids


@dataclass(frozen=True, slots=True)
class Message:
    """A complete chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Transcript:
    """A prefix, read back.

    Attributes:
        text: all of it, marks spelled out.
        messages: the complete ones.
        open: role of the message that has begun and not ended.
        begun: what that message says so far.
        outside: text that belongs to no message.
    """

    text: str
    messages: tuple[Message, ...] = ()
    open: str | None = None
    begun: str = ""
    outside: str = ""

    @property
    def bare(self) -> bool:
        """Whether there are no messages, only text."""
        return self.open is None and not self.messages


def read(ids: Sequence[int], tokenizer: TranscriptTokenizer) -> Transcript:
    """Read a prefix back. Raises BackendError if it is none."""
    spans: list[tuple[int | None, bytes]] = []  # (mark before it, bytes)
    mark: int | None = None
    start = 0
    for at, id in enumerate(ids):
        if id in (BEGIN, END):
            spans.append((mark, tokenizer.decode_bytes(ids[start:at])))
            mark, start = id, at + 1
    spans.append((mark, tokenizer.decode_bytes(ids[start:])))
    try:
        text = tokenizer.decode_bytes(ids, skip_special=False).decode()
        return _parsed(text, [(mark, data.decode()) for mark, data in spans])
    except UnicodeDecodeError:
        raise BackendError("the text of a branch ends inside a character") from None


def _parsed(text: str, spans: list[tuple[int | None, str]]) -> Transcript:
    messages: list[Message] = []
    outside = ""
    role: str | None = None
    begun = ""
    for mark, span in spans:
        if mark == BEGIN:
            role, _, begun = span.partition("\n")
            if role not in _ROLES:
                raise BackendError(f"there is no role {role!r}")
            continue
        if mark == END and role is not None:
            messages.append(Message(role, begun))
            role, begun = None, ""
            span = span.removeprefix("\n")
        outside += span
    return Transcript(text, tuple(messages), role, begun, outside)
