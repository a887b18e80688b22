"""The compact list of a vocabulary's byte strings reads like a list."""

import pytest

from stolon.srt.tokenizer.token_bytes import TokenBytes

TOKENS = [b"a", b"", b" the", b"\xff\x00", b"", b"z" * 300]


def test_reads_like_a_list():
    tokens = TokenBytes(iter(TOKENS))
    assert len(tokens) == len(TOKENS)
    assert list(tokens) == TOKENS
    assert [tokens[i] for i in range(len(TOKENS))] == TOKENS
    assert [tokens[-i] for i in range(1, len(TOKENS) + 1)] == TOKENS[::-1]
    assert tokens[1:5:2] == TOKENS[1:5:2]
    assert tokens.index(b" the") == 2
    assert b"\xff\x00" in tokens
    assert list(TokenBytes([])) == []


@pytest.mark.parametrize("index", [len(TOKENS), -len(TOKENS) - 1, 10**6])
def test_what_is_outside_is_refused(index):
    with pytest.raises(IndexError):
        TokenBytes(TOKENS)[index]
