"""Byte-level BPE (GPT-2): the `tokenizers` library splits and merges ordinary text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Regex, pre_tokenizers
from tokenizers import Tokenizer as Library
from tokenizers.models import BPE

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.tokenizer.pieces import AddedToken, PieceTokenizer


def _byte_alphabet() -> dict[str, int]:
    """The printable character that GPT-2's vocabulary writes for each byte, inverted."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()
_LATIN1_OF_CHAR = {ord(char): chr(byte) for char, byte in BYTE_OF_CHAR.items()}


def piece_bytes(piece: str) -> bytes:
    """The bytes that a byte-level vocabulary entry stands for.

    A character outside the byte alphabet (some files hold plain text entries) stands for its UTF-8.
    """
    # Most pieces are ASCII behind at most a blank, and ASCII stands for itself.
    spaced = piece.replace("Ġ", " ")
    if spaced.isascii():
        return spaced.encode()
    try:
        return piece.translate(_LATIN1_OF_CHAR).encode("latin-1")
    except UnicodeEncodeError:
        return b"".join(
            bytes((BYTE_OF_CHAR[c],)) if c in BYTE_OF_CHAR else c.encode() for c in piece
        )


# How each family cuts text into words before merging, by its name in GGUF (tokenizer.ggml.pre).
# Each regex of a row isolates its matches in the words that the ones before made. They are those of
# the models' own tokenizer.json; "default" is what llama.cpp does for files that name no family.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_TAIL}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_TEKKEN = rf"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
_GPT4O = (
    rf"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    rf"|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)

WORD_REGEXES: Mapping[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+",
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
        r"\p{N}+",
        r"[0-9][0-9][0-9]",
    ),
    "smollm": (r"\p{N}", _GPT2),
    "qwen2": (_QWEN2,),
    "llama-bpe": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
    "tekken": (_TEKKEN,),
    "gpt-4o": (_GPT4O,),
}
# With every regex above, a line that begins with a letter after one that does not end in a blank is a
# new word, whatever stands before or after: no alternative goes on from a line feed to a letter, and
# the one that looks ahead sees no more than the next character.
LINE_CUT = re.compile(r"(?<=\S\n)(?=[A-Za-z])")
LONG_TEXT = 2000
"""Characters that take about half a millisecond."""
_ALIASES = {
    "phi-2": "gpt-2",
    "olmo": "gpt-2",
    "starcoder": "smollm",
    "command-r": "smollm",
    "deepseek-r1-qwen": "qwen2",
    "stablelm2": "qwen2",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
}
# These families use a whole word that is in the vocabulary even if no merge leads to it.
_IGNORE_MERGES = frozenset({"llama-bpe", "tekken"})


def word_regexes(name: str) -> tuple[tuple[str, ...], bool]:
    """(regexes, ignore_merges) of a pre-tokenizer by its GGUF name. Raises UnsupportedModel."""
    family = _ALIASES.get(name, name)
    if family not in WORD_REGEXES:
        known = ", ".join(sorted([*WORD_REGEXES, *_ALIASES]))
        raise UnsupportedModel(
            f"the pre-tokenizer {name!r} is not implemented", hint=f"supported: {known}"
        )
    return WORD_REGEXES[family], family in _IGNORE_MERGES


def checked_merges(
    merges: Iterable[Sequence[str]], vocab: Mapping[str, int], control: Collection[str]
) -> list[tuple[str, str]]:
    """The merges that the library may see. Raises ModelFileError if one is not in the vocabulary.

    Merges that make or use a control token are left out, so that no ordinary text can ever become
    a control token.
    """
    # Hundreds of thousands of strings: the vocabulary's own ones are used, the others go at once.
    own = {piece: piece for piece in vocab if piece not in control}
    kept = []
    for pair in merges:
        try:
            left, right = pair
            if left + right in own and left and right:
                kept.append((own[left], own[right]))
                continue
        except (TypeError, ValueError, KeyError):
            pass  # said below, unless there is a control token in it
        _check_odd_merge(pair, vocab, control)
    return kept


def _check_odd_merge(
    pair: Sequence[str], vocab: Mapping[str, int], control: Collection[str]
) -> None:
    """Raise ModelFileError unless it is a merge of pieces some of which are control tokens."""
    if len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
        raise ModelFileError(f"{pair!r} is not a merge of two pieces", where="merges")
    left, right = pair
    for piece in (left, right, left + right):
        if piece not in vocab and piece not in control:
            raise ModelFileError(
                f"the merge of {left!r} and {right!r} needs {piece!r}, which is no token",
                where="merges",
            )


class BytePairTokenizer(PieceTokenizer):
    """Byte-level BPE. `library` must hold no added tokens, no normalizer that we do not know of."""

    def __init__(
        self,
        library: Library,
        *,
        token_bytes: Sequence[bytes],
        added: Sequence[AddedToken],
        bos_id: int | None,
        eos_ids: Iterable[int],
        add_bos: bool,
        settings: Iterable[bytes],
        cut: re.Pattern[str] | None = None,
    ) -> None:
        super().__init__(
            token_bytes=token_bytes,
            added=added,
            bos_id=bos_id,
            eos_ids=eos_ids,
            add_bos=add_bos,
            settings=settings,
            cut=cut,
        )
        self._library = library
        self._added = added

    def to_json(self) -> str:
        """This tokenizer as the text of a ``tokenizer.json``, for programs that read such files."""
        data = json.loads(self._library.to_str())
        data["model"]["vocab"] |= {token.text: token.id for token in self._added}
        data["added_tokens"] = [
            {
                "id": token.id,
                "content": token.text,
                "special": token.special,
                "single_word": token.single_word,
                "lstrip": token.lstrip,
                "rstrip": token.rstrip,
                "normalized": False,
            }
            for token in sorted(self._added, key=lambda token: token.id)
        ]
        bytes_to_text = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        data["decoder"] = {"type": "ByteLevel", **bytes_to_text}
        return json.dumps(data, ensure_ascii=False)

    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        if len(text) > LONG_TEXT:
            # The library keeps the interpreter lock for one text, and gives it up for a batch.
            (found,) = self._library.encode_batch([text], add_special_tokens=False)
        else:
            found = self._library.encode(text, add_special_tokens=False)
        ids: list[int] = found.ids
        return ids


def byte_level_library(model: BPE, regexes: Sequence[str]) -> Library:
    """The library's tokenizer that splits with `regexes`, then maps bytes and merges."""
    library = Library(model)
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in regexes
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    library.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return library
