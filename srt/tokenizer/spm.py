"""SentencePiece BPE from pieces and scores (Kudo & Richardson, arXiv 1808.06226), as in Llama 2 and
Gemma.

The file has no merge list: any two neighbours whose concatenation is a piece may merge, the best
score first, the leftmost on ties. That rule is applied directly, so nothing has to be derived when
loading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from stolon.srt.tokenizer.pieces import AddedToken, PieceTokenizer

SPACE = "\u2581"  # how pieces write a blank
_MAX_CACHED_WORDS = 50_000
_MAX_CACHED_CHARS = 32


def blanks_escaped(text: str) -> str:
    return text.replace(" ", SPACE)


class SentencePieceTokenizer(PieceTokenizer):
    """BPE by scores with byte fallback.

    * With `space_prefix` (Llama 2, Mistral) encoding puts one blank before text that begins the
      sequence. It is part of the tokens from then on: decoding a run of ids never strips anything,
      so a decoded sequence that began with text begins with that blank.
    * SentencePiece can't tell the character U+2581 from a blank. Here it is spelled in byte tokens
      where the model has them, so that every text decodes to itself.
    """

    def __init__(
        self,
        *,
        pieces: Mapping[str, int],
        scores: Sequence[float],
        unused: frozenset[str],
        byte_ids: Sequence[int] | None,
        unknown_id: int | None,
        space_prefix: bool,
        token_bytes: Sequence[bytes],
        added: Sequence[AddedToken],
        bos_id: int | None,
        eos_ids: Iterable[int],
        add_bos: bool,
        settings: Iterable[bytes],
    ) -> None:
        """`pieces` maps a spelling to its id, by which `scores` are; `unused` ones may be steps of a
        merge, never results.

        `byte_ids` are the ids of <0x00> to <0xFF>, or None if the model has no byte tokens.
        """
        super().__init__(
            token_bytes=token_bytes,
            added=added,
            bos_id=bos_id,
            eos_ids=eos_ids,
            add_bos=add_bos,
            settings=settings,
        )
        self._pieces = pieces
        self._scores = scores
        self._unused = unused
        self._byte_ids = byte_ids
        self._unknown_id = unknown_id
        self._space_prefix = space_prefix
        self._word_start = _word_start(pieces)
        self._cache: dict[str, list[int]] = {}

    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        ids: list[int] = []
        prefix = SPACE if at_start and self._space_prefix else ""
        stretches = [text] if self._byte_ids is None else text.split(SPACE)
        for i, stretch in enumerate(stretches):
            if i and self._byte_ids is not None:
                ids += [self._byte_ids[b] for b in SPACE.encode()]
            self._encode_stretch(prefix + blanks_escaped(stretch), ids)
            prefix = ""
        return ids

    def _encode_stretch(self, text: str, ids: list[int]) -> None:
        at = 0
        cache = self._cache
        for end in (*(m.start() for m in self._word_start.finditer(text, 1)), len(text)):
            word = text[at:end]
            at = end
            found = cache.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= _MAX_CACHED_CHARS:
                    if len(cache) >= _MAX_CACHED_WORDS:
                        cache.clear()
                    cache[word] = found
            ids += found
        if self._byte_ids is None and self._unknown_id is not None:
            self._fuse_unknown(ids)

    def _encode_word(self, word: str) -> list[int]:
        made_of: dict[str, tuple[str, str]] = {}
        ids: list[int] = []
        for piece in merge(word, self._pieces, self._scores, self._unused, made_of):
            self._emit(piece, made_of, ids)
        return ids

    def _emit(self, piece: str, made_of: Mapping[str, tuple[str, str]], ids: list[int]) -> None:
        """Append the ids of a merged piece; an unused one is taken apart again."""
        pending = [piece]
        while pending:
            piece = pending.pop()
            found = self._pieces.get(piece)
            if found is not None and piece not in self._unused:
                ids.append(found)
            elif piece in made_of:
                pending += reversed(made_of[piece])
            elif self._byte_ids is not None:
                ids += [self._byte_ids[b] for b in piece.encode()]
            elif self._unknown_id is not None:
                ids.append(self._unknown_id)

    def _fuse_unknown(self, ids: list[int]) -> None:
        unknown = self._unknown_id
        ids[:] = [t for i, t in enumerate(ids) if t != unknown or i == 0 or ids[i - 1] != unknown]


def merge(
    word: str,
    pieces: Mapping[str, int],
    scores: Sequence[float],
    unused: frozenset[str],
    made_of: dict[str, tuple[str, str]],
) -> list[str]:
    """Merge the characters of `word` until no neighbours form a piece. O(n log n) in its length.

    `made_of` receives how each unused piece came about.
    """
    symbols = list(word)
    count = len(symbols)
    following = list(range(1, count + 1))
    before = list(range(-1, count - 1))
    heap: list[tuple[float, int, str, str]] = []

    def candidate(left: int) -> tuple[float, int, str, str] | None:
        right = following[left]
        pair = symbols[left] + symbols[right]
        found = pieces.get(pair)
        if found is None:
            return None
        if pair in unused:
            made_of[pair] = (symbols[left], symbols[right])
        return (-scores[found], left, symbols[left], symbols[right])

    for i in range(count - 1):
        if (entry := candidate(i)) is not None:
            heap.append(entry)
    heapify(heap)
    while heap:
        _, left, first, second = heappop(heap)
        if symbols[left] != first:
            continue
        right = following[left]
        # A symbol that was merged away is "", one that grew differs: the entry is stale.
        if right >= count or symbols[right] != second:
            continue
        symbols[left] = first + second
        symbols[right] = ""
        after = following[right]
        following[left] = after
        if after < count:
            before[after] = left
            if (entry := candidate(left)) is not None:
                heappush(heap, entry)
        if before[left] >= 0 and (entry := candidate(before[left])) is not None:
            heappush(heap, entry)
    return [symbol for symbol in symbols if symbol]


def _word_start(pieces: Iterable[str]) -> re.Pattern[str]:
    """Where a text may be cut without changing its merges: before a blank that no piece joins to
    the left.

    No merge can cross a pair of characters that no piece contains, so both sides are independent.
    """
    glued = {SPACE}
    for piece in pieces:
        at = piece.find(SPACE, 1)
        while at > 0:
            glued.add(piece[at - 1])
            at = piece.find(SPACE, at + 1)
    return re.compile(f"(?<![{''.join(re.escape(c) for c in sorted(glued))}]){SPACE}")
