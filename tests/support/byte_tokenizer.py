"""A tokenizer for tests: one token per byte, a few longer ones, three specials. No files."""

from __future__ import annotations

import hashlib

from stolon.srt.tokenizer.pieces import AddedToken, PieceTokenizer

BOS = "<|bos|>"
IM_START = "<|im_start|>"
IM_END = "<|im_end|>"
VOCAB_SIZE = 288
_LONGER = ("th", "he", "the", " the", "  ", "\n\n", '{"', '":', ', "')


class ByteTokenizer(PieceTokenizer):
    """Ids 0..255 are the bytes, 256..258 <|bos|>, <|im_start|>, <|im_end|> (eos), then longer ones.

    Ordinary text is cut greedily, the longest token first. Ids up to 287 that stand for nothing
    pad the vocabulary.
    """

    def __init__(self, *, add_bos: bool = False) -> None:
        specials = [
            AddedToken(text=text, id=256 + i, special=True)
            for i, text in enumerate((BOS, IM_START, IM_END))
        ]
        longer = [text.encode() for text in _LONGER]
        table = [bytes((b,)) for b in range(256)] + [t.text.encode() for t in specials] + longer
        first = 256 + len(specials)
        self._longer = sorted(
            ((text, first + i) for i, text in enumerate(longer)), key=lambda e: -len(e[0])
        )
        super().__init__(
            token_bytes=table + [b""] * (VOCAB_SIZE - len(table)),
            added=specials,
            bos_id=256,
            eos_ids=[258],
            add_bos=add_bos,
            settings=[hashlib.sha256(repr(_LONGER).encode()).digest()],
        )

    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        data = text.encode()
        ids: list[int] = []
        at = 0
        while at < len(data):
            longer = [entry for entry in self._longer if data.startswith(entry[0], at)]
            piece, id = longer[0] if longer else (data[at : at + 1], data[at])
            ids.append(id)
            at += len(piece)
        return ids
