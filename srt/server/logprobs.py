"""Log-probs in the two shapes of OpenAI."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable

from stolon.srt.protocol import TokenLogprob
from stolon.srt.tokenizer import Tokenizer

FLOOR = -9999.0  # JSON has no infinity; OpenAI's own floor


def finite(logprob: float) -> float:
    """A log-prob that JSON can hold."""
    return logprob if math.isfinite(logprob) else FLOOR


def alternatives(entry: TokenLogprob) -> list[tuple[int, float]]:
    """The top list, best first. It always contains the token itself."""
    top = list(entry.top)
    if entry.logprob is not None and all(token != entry.token for token, _ in top):
        top.append((entry.token, entry.logprob))
    return top


def chat_logprobs(
    entries: Iterable[TokenLogprob], tokenizer: Tokenizer, *, with_top: bool
) -> dict[str, object]:
    """The ``logprobs`` object of a chat choice."""

    def one(token: int, logprob: float | None) -> dict[str, object]:
        raw = tokenizer.token_bytes[token]
        return {
            "token": raw.decode("utf-8", "replace"),
            "logprob": FLOOR if logprob is None else finite(logprob),
            "bytes": list(raw),
        }

    content = [
        {
            **one(entry.token, entry.logprob),
            "top_logprobs": [one(*pair) for pair in alternatives(entry)] if with_top else [],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def token_text(token: int, tokenizer: Tokenizer) -> str:
    """A token as a legacy string: its text, or ``bytes:\\xe2`` if that is not whole characters."""
    raw = tokenizer.token_bytes[token]
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class LegacyLogprobs:
    """The ``logprobs`` object of text completions, piece by piece.

    `text_offset` counts characters of the text emitted so far, across pieces, so streamed offsets
    equal unstreamed ones. A token that begins within a character has that character's offset.
    """

    def __init__(self, tokenizer: Tokenizer, *, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._clear()

    def add(
        self,
        entries: Iterable[TokenLogprob],
        *,
        hidden: frozenset[int] = frozenset(),
        first_hidden: bool = False,
    ) -> None:
        """Append tokens.

        Those in `hidden`, and the first if `first_hidden`, have no place in the text.

        The first token of a prompt has no log-prob: null in both lists.
        """
        for i, entry in enumerate(entries):
            self._tokens.append(token_text(entry.token, self._tokenizer))
            self._offsets.append(self._offset)
            self._logprobs.append(None if entry.logprob is None else finite(entry.logprob))
            self._tops.append(self._top_of(entry))
            if entry.token not in hidden and not (first_hidden and i == 0):
                raw = self._tokenizer.token_bytes[entry.token]
                self._offset += len(self._decoder.decode(raw))

    def take(self) -> dict[str, object]:
        """The object for what was added since the last call."""
        piece: dict[str, object] = {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops if self._top else None,
            "text_offset": self._offsets,
        }
        self._clear()
        return piece

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def _top_of(self, entry: TokenLogprob) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        out: dict[str, float] = {}
        for token, logprob in alternatives(entry):
            out.setdefault(token_text(token, self._tokenizer), finite(logprob))
        return out
