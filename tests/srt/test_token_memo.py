"""Literals are tokenised once: what is remembered is exactly what tokenising anew would give."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import ByteTokenizer
from tokenizers.models import BPE

from stolon.srt.tokenizer import memo
from stolon.srt.tokenizer.bpe import (
    BYTE_OF_CHAR,
    LINE_CUT,
    WORD_REGEXES,
    BytePairTokenizer,
    byte_level_library,
)
from stolon.srt.tokenizer.memo import TokenMemo

# Pieces that meet in odd ways at the end of a line: blanks, digits, marks, other scripts, contractions.
_PIECES = [
    "a",
    "B",
    "ab",
    "1",
    "23",
    ".",
    "...",
    "/",
    "'s",
    "'",
    " ",
    "  ",
    "\t",
    "\n",
    "\r\n",
    "\n\n",
]
_PIECES += [
    "é",
    "e\u0301",
    "中",
    "\u200b",
    "\u00a0",
    "\u0085",
    "\x1c",
    "\u2028",
    "😀",
    "x\n",
    ".\ny",
]
TEXTS = st.lists(st.sampled_from(_PIECES), max_size=30).map("".join)


def words(name: str, text: str) -> list[str]:
    """The words that a family's regexes cut a text into: no merge crosses them."""
    pre_tokenizer: Any = byte_level_library(
        BPE(vocab={}, merges=[]), WORD_REGEXES[name]
    ).pre_tokenizer
    return [word for word, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", WORD_REGEXES)
@given(text=TEXTS)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_a_text_may_be_cut_at_lines(name: str, text: str) -> None:
    parts = [part for part in LINE_CUT.split(text) if part]
    assert [word for part in parts for word in words(name, part)] == words(name, text)


def counted(tokenizer: Any) -> list[str]:
    """Every text that the tokenizer really tokenises from now on."""
    texts: list[str] = []
    encode = tokenizer._encode_ordinary

    def counting(text: str, *, at_start: bool) -> list[int]:
        texts.append(text)
        ids: list[int] = encode(text, at_start=at_start)
        return ids

    tokenizer._encode_ordinary = counting
    return texts


def line_tokenizer() -> BytePairTokenizer:
    """Byte-level BPE of single bytes that may cut at lines."""
    vocab = {char: index for index, char in enumerate(BYTE_OF_CHAR)}
    return BytePairTokenizer(
        byte_level_library(BPE(vocab=vocab, merges=[]), WORD_REGEXES["smollm"]),
        token_bytes=[bytes((byte,)) for byte in BYTE_OF_CHAR.values()],
        added=[],
        bos_id=None,
        eos_ids=[],
        add_bos=False,
        settings=[],
        cut=LINE_CUT,
    )


def test_a_shared_beginning_is_tokenised_once() -> None:
    tokenizer = line_tokenizer()
    texts = counted(tokenizer)
    shots = "".join(f"Question {i}: what is {i}?\nAnswer: {i}.\n" for i in range(40))
    first, second = shots + "Q: one?", shots + "Q: another?"
    plain = [tokenizer._encode_ordinary(text, at_start=True) for text in (first, second)]
    texts.clear()
    assert [tokenizer.encode(first), tokenizer.encode(second)] == plain
    assert "".join(texts).startswith(first)
    assert sum(map(len, texts)) < len(first) + 2 * memo.CHUNK_CHARS
    texts.clear()
    assert [tokenizer.encode(first), tokenizer.encode(second)] == plain
    assert texts == []


def test_text_and_markup_are_different_things() -> None:
    tokenizer = ByteTokenizer()
    markup = tokenizer.encode("<|im_start|>user", special=True)
    assert tokenizer.encode("<|im_start|>user") != markup
    assert tokenizer.encode("<|im_start|>user", special=True) == markup


def test_the_beginning_of_a_sequence_is_another_text() -> None:
    found = TokenMemo()
    seen: list[tuple[str, bool]] = []

    def encode(text: str, at_start: bool) -> list[int]:
        seen.append((text, at_start))
        return [len(seen)]

    results = [found.encode("x", encode, at_start=start) for start in (True, False, True, False)]
    assert results == [[1], [2], [1], [2]]


def test_only_the_first_chunk_is_at_the_start() -> None:
    seen: list[tuple[str, bool]] = []

    def encode(text: str, at_start: bool) -> list[int]:
        seen.append((text, at_start))
        return list(text.encode())

    text = "a" * memo.CHUNK_CHARS + "\nb" + "c" * memo.CHUNK_CHARS + "\nd"
    found = TokenMemo(re.compile(r"(?<=\n)"))
    assert bytes(found.encode(text, encode, at_start=True)).decode() == text
    assert [start for _, start in seen] == [True, False, False]


def test_it_stays_within_its_memory() -> None:
    found = TokenMemo(max_bytes=10_000)
    for index in range(500):
        found.encode(f"{index:04d}" * 20, lambda text, _: list(text.encode()), at_start=False)
    assert 5_000 < found.nbytes <= 10_000
    before = found.nbytes
    found.encode("x" * (memo.MAX_CHUNK_CHARS + 1), lambda *_: [1], at_start=False)
    assert found.nbytes == before
