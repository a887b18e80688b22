"""What the runtime needs of a tokenizer: text to ids, ids to bytes, and which ids are special."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence


class Tokenizer(ABC):
    """A byte-exact tokenizer.

    Attributes:
        vocab_size: number of ids, special ones included.
        token_bytes: the bytes each id stands for in running text; for special tokens the bytes of their
            spelling (``<|im_end|>``); ids that stand for nothing have ``b""``.
        special_tokens: spelling to id of every control token.
        special_ids: ids of those.
        bos_id: beginning-of-sequence id, if the model has one.
        eos_ids: ids that end a generation.
        add_bos: whether a sequence begins with `bos_id`.
        fingerprint: hex digest of vocabulary, merges and settings; equal means interchangeable.
    """

    vocab_size: int
    token_bytes: Sequence[bytes]
    special_tokens: dict[str, int]
    special_ids: frozenset[int]
    bos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool
    fingerprint: str

    @abstractmethod
    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, at_start: bool = False
    ) -> list[int]:
        """Encode consecutive pieces of text as one text. A piece is (text, special).

        Special tokens are recognised only inside pieces whose flag is set; in the others their spelling
        is ordinary text. Ordinary text that continues across pieces is tokenised together. `at_start`
        says that the text begins the sequence (a SentencePiece dummy prefix goes there). Never adds BOS.
        """

    def encode(self, text: str, *, special: bool = False, at_start: bool = False) -> list[int]:
        """Encode one text; `special` as in `encode_parts`."""
        return self.encode_parts([(text, special)], at_start=at_start)

    def decode_bytes(self, ids: Sequence[int], *, skip_special: bool = True) -> bytes:
        """The bytes of a run of ids. Never strips or cleans anything up."""
        special = self.special_ids if skip_special else frozenset()
        return b"".join(self.token_bytes[i] for i in ids if i not in special)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of a run of ids; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", "replace")
