"""What every tokenizer shares: added tokens are split off before text is tokenised."""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from stolon.errors import InvalidRequest, ModelFileError
from stolon.srt.tokenizer.base import Tokenizer
from stolon.srt.tokenizer.memo import TokenMemo
from stolon.srt.tokenizer.token_bytes import TokenBytes

# End-of-turn and end-of-text spellings of known model families. A model file usually names only one
# of its end tokens; generation must end at all of them.
WELL_KNOWN_EOS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "</s>",
    "<eos>",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched as a whole, before the merges see the text.

    Attributes:
        special: a control token, recognised only in special pieces; otherwise user-defined,
        recognised
            everywhere.
        lstrip, rstrip: swallow the blanks before or after it.
        single_word: only where no word character touches it.
    """

    text: str
    id: int
    special: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False

    def pattern(self) -> str:
        pattern = re.escape(self.text)
        if self.single_word:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        return (r"\s*" if self.lstrip else "") + pattern + (r"\s*" if self.rstrip else "")


class Splitter:
    """Cuts a text at added tokens: leftmost match, the longest spelling where several begin."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        ordered = sorted((t for t in tokens if t.text), key=lambda t: (-len(t.text), t.id))
        self._ids: dict[str, int] = {}
        for token in ordered:
            self._ids.setdefault(token.text, token.id)
        self._blanks = any(t.lstrip or t.rstrip for t in ordered)
        self._regex = re.compile("|".join(t.pattern() for t in ordered)) if ordered else None

    def split(self, text: str) -> Iterator[str | int]:
        """Ordinary stretches as str (never empty), added tokens as ids, in order."""
        at = 0
        for match in self._regex.finditer(text) if self._regex else ():
            if match.start() > at:
                yield text[at : match.start()]
            yield self._id(match.group())
            at = match.end()
        if at < len(text):
            yield text[at:]

    def _id(self, matched: str) -> int:
        found = self._ids.get(matched)
        return found if found is not None else self._ids[matched.strip()]


class PieceTokenizer(Tokenizer):
    """A tokenizer that owns its added tokens; a subclass tokenises ordinary text only."""

    def __init__(
        self,
        *,
        token_bytes: Sequence[bytes],
        added: Sequence[AddedToken],
        bos_id: int | None,
        eos_ids: Iterable[int],
        add_bos: bool,
        settings: Iterable[bytes],
        cut: re.Pattern[str] | None = None,
    ) -> None:
        """`settings` is whatever else determines the result (merges, scores, regexes); for `cut` see
        `TokenMemo`."""
        self.token_bytes = (
            token_bytes if isinstance(token_bytes, TokenBytes) else TokenBytes(token_bytes)
        )
        self.vocab_size = len(token_bytes)
        self.special_tokens = {t.text: t.id for t in added if t.special}
        self.special_ids = frozenset(t.id for t in added if t.special)
        self.bos_id = bos_id
        self.eos_ids = frozenset(eos_ids)
        self.add_bos = add_bos and bos_id is not None
        for token in (*self.eos_ids, *(t.id for t in added), *([] if bos_id is None else [bos_id])):
            if not 0 <= token < self.vocab_size:
                raise ModelFileError(
                    f"the tokenizer names token {token}; its vocabulary has {self.vocab_size}"
                )
        self._control = Splitter(t for t in added if t.special)
        self._user_defined = Splitter(t for t in added if not t.special)
        self.fingerprint = _fingerprint(self, added, settings)
        self._memo = TokenMemo(cut)

    @abstractmethod
    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        """Encode text without added tokens. `at_start`: nothing but BOS comes before it."""

    def encode_parts(
        self, parts: Sequence[tuple[str, bool]], *, at_start: bool = False
    ) -> list[int]:
        ids: list[int] = []
        run: list[str] = []  # ordinary text that no control token interrupts, across pieces
        for text, special in parts:
            for piece in self._control.split(text) if special else (text,):
                if isinstance(piece, str):
                    run.append(piece)
                else:
                    self._encode_run(run, ids, at_start)
                    ids.append(piece)
        self._encode_run(run, ids, at_start)
        return ids

    def _encode_run(self, run: list[str], ids: list[int], at_start: bool) -> None:
        text = "".join(run)
        run.clear()
        _refuse_surrogates(text)
        for piece in self._user_defined.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                begins = at_start and (not ids or ids == [self.bos_id])
                ids += self._memo.encode(piece, self._encode_piece, at_start=begins)

    def _encode_piece(self, text: str, at_start: bool) -> list[int]:
        return self._encode_ordinary(text, at_start=at_start)


def find_eos(named: Iterable[int | None], added: Sequence[AddedToken]) -> frozenset[int]:
    """The end tokens that a model file names, and the well-known ones among its control tokens."""
    known = {t.id for t in added if t.special and t.text in WELL_KNOWN_EOS}
    return frozenset(known | {token for token in named if token is not None})


def _refuse_surrogates(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"U+{ord(text[error.start]):04X}"
        raise InvalidRequest(
            f"the text has a lone surrogate ({code}) at character {error.start}",
            hint="it is not valid Unicode; replace it before sending",
        ) from error


def _fingerprint(
    tokenizer: Tokenizer, added: Sequence[AddedToken], settings: Iterable[bytes]
) -> str:
    digest = hashlib.sha256()
    digest.update(np.array(list(map(len, tokenizer.token_bytes)), "<u4").tobytes())
    digest.update(b"".join(tokenizer.token_bytes))
    for token in sorted(added, key=lambda t: t.id):
        digest.update(repr(token).encode("utf-8", "backslashreplace"))
    ends = sorted(tokenizer.eos_ids)
    digest.update(repr((tokenizer.bos_id, tokenizer.add_bos, ends)).encode())
    for setting in settings:
        digest.update(len(setting).to_bytes(8, "little") + setting)
    return digest.hexdigest()
