"""The vocabulary a grammar is compiled against: the bytes of every token, and which are special."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import llguidance
import numpy as np
import numpy.typing as npt

from stolon.errors import InvalidRequest

__all__ = ["Vocabulary"]

# llguidance marks special tokens with this byte. No UTF-8 text contains it, so nothing is lost by
# hiding tokens that do.
_MARKER = b"\xff"


class _Tokens(llguidance.TokenizerWrapper):
    """What LLTokenizer reads: bytes per id, and canonical encoding of text."""

    is_tokenizer_wrapper = True

    def __init__(
        self, tokens: list[bytes], eos_ids: list[int], encode: Callable[[str], list[int]]
    ) -> None:
        # The base class would probe a tokenizer object; there is none, only a function.
        self.bos_token_id = None
        self.tokens = tokens
        self.eos_token_id = eos_ids[0]
        self.special_token_ids = eos_ids
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text)


class Vocabulary:
    """Token bytes, prepared once per model and shared by all its grammars. Thread-safe.

    Ids that stand for nothing (``b""``) and special ids are never allowed by a grammar, and
    end-of-sequence ids exactly where the grammar may end. A model whose logits are wider than its
    tokenizer passes `token_bytes` padded with ``b""`` to that width.

    Args:
        token_bytes: bytes of each id in running text.
        eos_ids: ids that end a generation; at least one.
        special_ids: control tokens; the end-of-sequence ids may be among them.
        encode: text to ids, the tokenizer's own way, without specials or a beginning-of-sequence.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        eos_ids: frozenset[int],
        special_ids: frozenset[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        self.size = len(token_bytes)
        if not eos_ids:
            raise InvalidRequest("a vocabulary needs an end-of-sequence id", param="eos_ids")
        if any(not 0 <= token < self.size for token in eos_ids | special_ids):
            raise InvalidRequest(
                f"an end-of-sequence or special id is outside the vocabulary of {self.size}",
                param="eos_ids",
            )
        self.token_bytes = token_bytes
        self.eos_ids = eos_ids
        self.special_ids = special_ids
        self._encode = encode
        self._lock = threading.Lock()
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._scratch = threading.local()
        ordinary = np.fromiter((bool(b) and _MARKER not in b for b in token_bytes), bool, self.size)
        ordinary[sorted(eos_ids | special_ids)] = False
        ending = np.zeros(self.size, bool)
        ending[sorted(eos_ids)] = True
        self.ordinary_row = pack(ordinary)
        self.eos_row = pack(ending)

    def scratch_row(self) -> tuple[npt.NDArray[np.int32], int]:
        """A row of bits and its address, with anything in it; the same one for each call in a thread."""
        found: tuple[npt.NDArray[np.int32], int] | None = getattr(self._scratch, "row", None)
        if found is None:
            row = np.zeros_like(self.ordinary_row)
            found = self._scratch.row = row, row.ctypes.data
        return found

    def encode(self, text: str) -> list[int]:
        """Text to ids, the tokenizer's own way."""
        return self._encode(text)

    @property
    def tokenizer(self) -> llguidance.LLTokenizer:
        """llguidance's view, built on first use (a fraction of a second for 150k tokens)."""
        with self._lock:
            if self._tokenizer is None:
                hidden = self.special_ids | self.eos_ids
                tokens = [
                    b"" if i in hidden or _MARKER in text else bytes(text)
                    for i, text in enumerate(self.token_bytes)
                ]
                # An end token must have a name; the marker keeps it apart from any running text.
                for token in self.eos_ids:
                    tokens[token] = b"<end-%d>" % token
                eos_ids = sorted(self.eos_ids)
                self._tokenizer = llguidance.LLTokenizer(
                    _Tokens(tokens, eos_ids, self._encode), eos_token=eos_ids
                )
            return self._tokenizer


def pack(allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """Bool [vocab] to bits, int32 [ceil(vocab / 32)]: id i is bit i % 32 of word i // 32."""
    padded = np.zeros((len(allowed) + 31) // 32 * 32, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.int32)


def unpack(row: npt.NDArray[np.int32], size: int) -> npt.NDArray[np.bool_]:
    """The inverse of `pack`."""
    return np.unpackbits(row.view(np.uint8), count=size, bitorder="little").view(np.bool_)
