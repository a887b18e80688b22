"""Keeps what users write from becoming special tokens when a template is rendered around it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any


class ContentGuard:
    """Replaces spellings of special tokens in content by placeholders, and finds them again
    afterwards.

    A placeholder is 32 random hexadecimal digits and a number: nobody can guess it, and filters
    such as `tojson`, `upper` or `trim` leave it recognisable. A template sees all other content
    unchanged.

    Content that only begins or ends with a part of a spelling could be completed by the text next
    to it; its outermost character is hidden too. Not covered: a template that cuts content apart
    and puts the parts together so that they spell a token.
    """

    def __init__(self, spellings: Sequence[str]) -> None:
        ordered = sorted({s for s in spellings if s}, key=len, reverse=True)
        self._whole = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._heads = {s[i:] for s in ordered for i in range(1, len(s))}
        self._tails = {s[:i] for s in ordered for i in range(1, len(s))}
        self._longest = len(ordered[0]) if ordered else 0
        self._nonce = secrets.token_hex(16)
        self._hidden: list[str] = []

    def hide_messages(self, messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copies of messages with placeholders in every text.

        Roles are compared and spelled by templates (``'<|' + role + '|>'`` is a token in some):
        there only whole spellings are hidden.
        """
        hidden = [self.hide(dict(message)) for message in messages]
        for message, copy in zip(messages, hidden, strict=True):
            if isinstance(message.get("role"), str):
                copy["role"] = self._hide_whole(message["role"])
        return hidden

    def hide(self, value: Any) -> Any:
        """A copy of plain data with placeholders in every string."""
        if isinstance(value, str):
            return self._hide_edges(self._hide_whole(value)) if self._whole else value
        if isinstance(value, dict):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide(item) for item in value]
        return value

    def reveal(self, text: str) -> list[tuple[str, bool]]:
        """The rendered text in pieces: what was hidden with False, the rest with True."""
        pieces: list[tuple[str, bool]] = []
        at = 0
        for match in re.finditer(self._nonce + "([0-9a-f]{8})", text, re.IGNORECASE):
            if match.start() > at:
                pieces.append((text[at : match.start()], True))
            pieces.append((self._hidden[int(match[1], 16)], False))
            at = match.end()
        if at < len(text):
            pieces.append((text[at:], True))
        return pieces

    def _placeholder(self, text: str) -> str:
        self._hidden.append(text)
        return f"{self._nonce}{len(self._hidden) - 1:08x}"

    def _hide_whole(self, text: str) -> str:
        if self._whole is None:
            return text
        return self._whole.sub(lambda match: self._placeholder(match.group()), text)

    def _hide_edges(self, text: str) -> str:
        # Templates trim blanks, so the edges are those of the trimmed text.
        start = len(text) - len(text.lstrip())
        end = len(text.rstrip())
        lengths = range(1, min(self._longest, end - start + 1))
        if any(text[end - n : end] in self._tails for n in lengths):
            text = text[: end - 1] + self._placeholder(text[end - 1]) + text[end:]
        elif any(text[start : start + n] in self._heads for n in lengths):
            text = text[:start] + self._placeholder(text[start]) + text[start + 1 :]
        return text
