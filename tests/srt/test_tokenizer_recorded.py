"""The tokenizer of tests, and the default model's against recorded ids."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from support.byte_tokenizer import IM_END, ByteTokenizer
from support.tokenizer_texts import any_text

from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.tokenizer import (
    chat_template_from_gguf,
    tokenizer_from_gguf,
)


@settings(max_examples=200, deadline=None)
@given(any_text)
def test_the_byte_tokenizer_decodes_what_it_encodes(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


def test_the_byte_tokenizer() -> None:
    tokenizer = ByteTokenizer()
    assert (tokenizer.vocab_size, len(tokenizer.token_bytes)) == (288, 288)
    assert [tokenizer.token_bytes[i] for i in tokenizer.encode("in the")] == [b"i", b"n", b" the"]
    assert tokenizer.encode(IM_END, special=True) == list(tokenizer.eos_ids)
    assert len(tokenizer.encode(IM_END)) > 1


# Ids that llama.cpp (llama-cpp-python 0.3.36, vocab_only, add_bos=False, special=False) gives for
# SmolLM2-135M-Instruct.
SMOLLM2_IDS = {
    "Hello world": [19556, 905],
    "I'm sure they've 12345 apples!": [
        *[57, 5248, 2090, 502, 3543, 216, 33, 34, 35, 36, 37, 13855, 17]
    ],
    "Straße façade naïve": [48513, 34878, 85, 40852, 15486, 46494],
    "Привет, как дела?": [
        *[155, 249, 46879, 16464, 32547, 28, 31338, 6511, 13760, 33427, 42292, 6511, 47]
    ],
    "שלום עולם": [38229, 31838, 23970, 162, 247, 12960, 112, 23970, 31838, 162, 247],
    "नमस्ते दुनिया": [
        *[30658, 35090, 38770, 16525, 26293, 30581, 12335, 116, 42990, 30658, 27011, 32932],
        *[18075],
    ],
    "日本語の文章": [23274, 115, 40993, 179, 120, 248, 26453, 29184, 47287, 250],
    "e\u0301 \ue000\uf8ff": [85, 151, 219, 216, 185, 218, 218, 186, 113, 140],
    "def f(x):\n    return x ** 2\n\tpass\r\n": [
        *[1604, 275, 24, 104, 727, 472, 1003, 1792, 1903, 216, 34, 198, 197, 5467, 2738]
    ],
    " \n\n  a   b\t\t": [216, 8866, 253, 256, 278, 1656],
    "<|im_end|>": [44, 108, 306, 79, 486, 108, 46],
}


@pytest.fixture(scope="module")
def smollm2() -> GGUFFile:
    folders = [Path.home() / ".cache/stolon" / name for name in ("models", "dev-models")]
    found = [p for f in folders for p in sorted(f.rglob("smollm2-135m-instruct*.gguf"))]
    if not found:
        pytest.skip("the default model smollm2-135m is not in the model cache")
    return GGUFFile.open(found[0])


def test_smollm2_equals_recorded_ids(smollm2: GGUFFile) -> None:
    tokenizer = tokenizer_from_gguf(smollm2)
    for text, ids in SMOLLM2_IDS.items():
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
    assert tokenizer.encode("<|im_end|>", special=True) == [2]
    assert tokenizer.eos_ids == {0, 2}
    assert not tokenizer.add_bos


def test_smollm2_puts_a_system_prompt_first(smollm2: GGUFFile) -> None:
    template = chat_template_from_gguf(smollm2)
    assert template is not None
    prefix, suffix = template.role_affixes([], "user")
    assert prefix.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert prefix.endswith("<|im_end|>\n<|im_start|>user\n")
    assert suffix == "<|im_end|>\n"
    prefix, _ = template.role_affixes([{"role": "user", "content": "Hi"}], "assistant")
    assert prefix == "<|im_start|>assistant\n"
