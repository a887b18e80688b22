"""Where a literal meets a generation: the one place that decides on tokens across that border.

A literal that ends in blanks usually ends in the middle of a token: models have seen "the answer is" + " 42",
never "the answer is " + "42". Such a last token is taken back and generated anew under the constraint that
it begins with the same bytes (token healing). See docs/decisions for why only blanks are healed.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stolon.srt.tokenizer import Tokenizer

_BLANKS = b" \t\n\r"
_CONTEXT_TOKENS = 8


@dataclass(frozen=True, slots=True)
class AllowList:
    """A mask that allows just these ids (ascending); the form that the sampler reads."""

    allow: NDArray[np.int64]
    deny: None = None
    bits: None = None

    @property
    def count(self) -> int:
        return len(self.allow)


class Boundary:
    """Token boundaries of one tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._starting_with: dict[bytes, AllowList] = {}

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        """Ordinary tokens by bytes, for prefix look-ups."""
        special = self._tokenizer.special_ids
        pairs = sorted(
            (data, token)
            for token, data in enumerate(self._tokenizer.token_bytes)
            if data and token not in special
        )
        return [data for data, _ in pairs], [token for _, token in pairs]

    def starting_with(self, prefix: bytes) -> AllowList:
        """The ordinary tokens whose bytes begin with `prefix`, as `heal` returns it.

        One list for all generations after it: it may have half of the vocabulary.
        """
        known = self._starting_with.get(prefix)
        if known is not None:
            return known
        keys, tokens = self._sorted
        first = last = bisect_left(keys, prefix)
        while last < len(keys) and keys[last].startswith(prefix):
            last += 1
        found = AllowList(np.array(sorted(tokens[first:last]), np.int64))
        return self._starting_with.setdefault(prefix, found)

    def heal(self, ids: list[int], *, keep: int) -> tuple[list[int], bytes]:
        """Take back the last token of a literal if it ends in a blank and longer tokens begin like it.

        Args:
            ids: tokens of the literal.
            keep: at least this many tokens stay (a sequence needs one to predict from).

        Returns:
            The tokens that stay, and the bytes that the generation must begin with.
        """
        if len(ids) <= keep or ids[-1] in self._tokenizer.special_ids:
            return ids, b""
        data = self._tokenizer.token_bytes[ids[-1]]
        if not data or data[-1] not in _BLANKS:
            return ids, b""
        keys, _ = self._sorted
        after = bisect_left(keys, data) + 1
        if after >= len(keys) or not keys[after].startswith(data):
            return ids, b""
        return ids[:-1], data

    def join_choices(
        self, ids: list[int], choices: tuple[str, ...], *, heal: bool, keep: int
    ) -> tuple[list[int], list[list[int]]]:
        """Tokens of each choice after a literal, from the last border that all of them share.

        With `heal`, the end of the literal is encoded again together with each choice, and the literal is
        cut back to where all encodings still agree; so "is " + "yes" is scored as "is" + " yes".
        """
        plain = [self._tokenizer.encode(choice) for choice in choices]
        if not heal:
            return ids, plain
        start = max(keep, len(ids) - _CONTEXT_TOKENS)
        for index in range(start, len(ids)):
            if ids[index] in self._tokenizer.special_ids:
                start = index + 1
        tail = ids[start:]
        try:
            text = self._tokenizer.decode_bytes(tail).decode("utf-8")
        except UnicodeDecodeError:
            return ids, plain
        if not tail or self._tokenizer.encode(text) != tail:
            return ids, plain
        joined = [self._tokenizer.encode(text + choice) for choice in choices]
        common = len(tail)
        for full in joined:
            agree = 0
            while agree < min(common, len(full) - 1) and full[agree] == tail[agree]:
                agree += 1
            common = agree
        return ids[: start + common], [full[common:] for full in joined]
