"""Text of a growing list of tokens, given out as soon as it is certain."""

from __future__ import annotations

import codecs

from stolon.srt.tokenizer.base import Tokenizer


class IncrementalDecoder:
    """Decodes tokens one by one; an incomplete UTF-8 sequence at the end is held back.

    All results of `push` and the final `flush` concatenate to ``tokenizer.decode(ids)`` exactly,
    replacement characters included.
    """

    __slots__ = ("_decoder", "_skipped", "_token_bytes")

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset[int]()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The text that became certain with this token."""
        if id in self._skipped:
            return ""
        return self._decoder.decode(self._token_bytes[id])

    @property
    def holding(self) -> bool:
        """Whether bytes of an incomplete character are held back."""
        return bool(self._decoder.getstate()[0])

    def flush(self) -> str:
        """What was held back, as it reads if nothing follows. The decoder starts anew."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text

    def copy(self) -> IncrementalDecoder:
        """An independent decoder in the same state."""
        twin = IncrementalDecoder.__new__(IncrementalDecoder)
        twin._token_bytes = self._token_bytes
        twin._skipped = self._skipped
        twin._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        twin._decoder.setstate(self._decoder.getstate())
        return twin
