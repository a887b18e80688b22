"""Incremental decoding: what is pushed and flushed concatenates to what decode gives."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from support.byte_tokenizer import IM_END, ByteTokenizer

from stolon.srt.tokenizer import IncrementalDecoder

TOKENIZER = ByteTokenizer()

# Bytes that begin, continue and break UTF-8 sequences, more often than chance would give them.
_tricky = st.sampled_from([0x41, 0x80, 0xBF, 0xC3, 0xA9, 0xE2, 0x82, 0xAC, 0xED, 0xA0, 0xF0, 0x9F])
_ids = st.lists(_tricky | st.integers(0, TOKENIZER.vocab_size - 1), max_size=24)


@settings(max_examples=500, deadline=None)
@given(_ids, st.booleans())
def test_pushes_and_flush_concatenate_to_decode(ids: list[int], skip_special: bool) -> None:
    decoder = IncrementalDecoder(TOKENIZER, skip_special=skip_special)
    text = "".join(decoder.push(id) for id in ids) + decoder.flush()
    assert text == TOKENIZER.decode(ids, skip_special=skip_special)


@settings(max_examples=200, deadline=None)
@given(_ids, _ids, _ids)
def test_a_copy_goes_its_own_way(head: list[int], one: list[int], other: list[int]) -> None:
    decoder = IncrementalDecoder(TOKENIZER)
    text = "".join(map(decoder.push, head))
    twin = decoder.copy()
    first = text + "".join(map(decoder.push, one)) + decoder.flush()
    second = text + "".join(map(twin.push, other)) + twin.flush()
    assert first == TOKENIZER.decode(head + one)
    assert second == TOKENIZER.decode(head + other)


def test_an_incomplete_character_is_held_back() -> None:
    decoder = IncrementalDecoder(TOKENIZER)
    assert [decoder.push(b) for b in "a€b".encode()] == ["a", "", "", "€", "b"]
    assert decoder.push(0xE2) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.push(0x41) == "A"


def test_special_tokens_are_skipped_or_spelled() -> None:
    end = TOKENIZER.special_tokens[IM_END]
    assert IncrementalDecoder(TOKENIZER).push(end) == ""
    assert IncrementalDecoder(TOKENIZER, skip_special=False).push(end) == IM_END
