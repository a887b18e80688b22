"""SentencePiece vocabularies against the sentencepiece library."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from gguf import GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tokenizer_texts import CORPUS, TEXTS, any_text, tokenizer_file
from tokenizers import models, normalizers, pre_tokenizers, trainers

from stolon.srt.tokenizer import (
    Tokenizer,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)


def _train_sentence_piece(**options: Any) -> bytes:
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t.replace("\n", " ") for t in CORPUS if "\x00" not in t]),
        model_writer=out,
        model_type="bpe",
        vocab_size=800,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return out.getvalue()


SENTENCE_PIECE: dict[str, dict[str, Any]] = {
    "llama": {"byte_fallback": True, "allow_whitespace_only_pieces": True},
    "gemma": {
        "byte_fallback": True,
        "add_dummy_prefix": False,
        "allow_whitespace_only_pieces": True,
        "user_defined_symbols": ["<tool>", "\u2581\u2581", "\u2581\u2581\u2581", "\n", "\n\n"],
        "control_symbols": ["<turn>"],
    },
    "across blanks": {"byte_fallback": True, "split_by_whitespace": False},
    "without bytes": {"add_dummy_prefix": False},
}


def _write_sentence_piece(model: bytes, name: str) -> Callable[[GGUFWriter], None]:
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    options = SENTENCE_PIECE[name]
    ids = range(original.vocab_size())

    def kind(id: int) -> int:
        tests = {2: original.is_unknown, 3: original.is_control, 6: original.is_byte}
        for number, test in tests.items():
            if test(id):
                return number
        return 4 if original.id_to_piece(id) in options.get("user_defined_symbols", ()) else 1

    def write(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([original.id_to_piece(i) for i in ids])
        writer.add_token_scores([original.get_score(i) for i in ids])
        writer.add_token_types([kind(i) for i in ids])
        writer.add_bos_token_id(original.bos_id())
        writer.add_eos_token_id(original.eos_id())
        writer.add_unk_token_id(original.unk_id())
        writer.add_add_space_prefix(options.get("add_dummy_prefix", True))

    return write


@pytest.fixture(scope="module", params=SENTENCE_PIECE)
def sentence_piece(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Tokenizer, Any]:
    model = _train_sentence_piece(**SENTENCE_PIECE[request.param])
    path = tmp_path_factory.mktemp("spm") / "m.gguf"
    ours = tokenizer_from_gguf(tokenizer_file(path, _write_sentence_piece(model, request.param)))
    return ours, sentencepiece.SentencePieceProcessor(model_proto=model)


def _has_bytes(tokenizer: Tokenizer) -> bool:
    return bytes((0xFF,)) in tokenizer.token_bytes


def test_sentence_piece_equals_the_original(sentence_piece: tuple[Tokenizer, Any]) -> None:
    ours, original = sentence_piece
    for text in TEXTS:
        wanted = original.encode(text)
        assert ours.encode(text, at_start=True) == wanted
        if _has_bytes(ours):
            assert ours.decode(ours.encode(text)) == text


def _same_on(tokenizer: Tokenizer, original: Any, text: str) -> None:
    ids = tokenizer.encode(text, at_start=True)
    # SentencePiece takes U+2581 for a blank and stops at U+0000; we do neither.
    if "\u2581" not in text and "\0" not in text:
        assert ids == original.encode(text)
    if _has_bytes(tokenizer):
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text.encode()


@settings(max_examples=200, deadline=None)
@given(text=any_text)
def test_sentence_piece_on_any_text(sentence_piece: tuple[Tokenizer, Any], text: str) -> None:
    _same_on(*sentence_piece, text)


@settings(max_examples=200, deadline=None)
@given(text=st.text("abht e", max_size=60))
def test_sentence_piece_ties_and_repetitions(
    sentence_piece: tuple[Tokenizer, Any], text: str
) -> None:
    _same_on(*sentence_piece, text)


def test_the_space_prefix_is_only_at_the_start(tmp_path: Path) -> None:
    model = _train_sentence_piece(**SENTENCE_PIECE["llama"])
    ours = tokenizer_from_gguf(
        tokenizer_file(tmp_path / "m.gguf", _write_sentence_piece(model, "llama"))
    )
    assert ours.decode(ours.encode("Hello", at_start=True)) == " Hello"
    assert ours.decode(ours.encode("Hello")) == "Hello"
    parts = [("<s>", True), ("Hello", False), ("</s>", True), ("world", False)]
    ids = ours.encode_parts(parts, at_start=True)
    assert ours.decode(ids, skip_special=False) == "<s> Hello</s>world"
    assert ours.add_bos


def test_equal_scores_merge_the_leftmost_first(tmp_path: Path) -> None:
    def write(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "a", "b", "ab", "ba", "aba"])
        writer.add_token_types([2, 1, 1, 1, 1, 5])
        writer.add_token_scores([0.0, -9.0, -9.0, -1.0, -1.0, -5.0])
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(False)

    ours = tokenizer_from_gguf(tokenizer_file(tmp_path / "m.gguf", write))
    assert ours.encode("abab") == [3, 3]
    assert ours.encode("bab") == [4, 2]
    assert ours.encode("aba") == [3, 1]  # the unused piece is taken apart again
    assert ours.encode("xyza") == [0, 1]  # unknown characters fuse


def test_sentence_piece_style_json_equals_the_library(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    library.normalizer = normalizers.Replace(" ", "\u2581")
    library.pre_tokenizer = pre_tokenizers.Split("\u2581", "merged_with_next")
    alphabet = [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=["<unk>", "<s>", *alphabet], show_progress=False
    )
    library.train_from_iterator(CORPUS[: len(CORPUS) // 2], trainer)
    spec = json.loads(library.to_str())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["id"] < 2]
    spec["pre_tokenizer"] = None
    spec["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    original = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = tokenizer_from_folder(tmp_path)
    for text in TEXTS:
        text = text.replace("<s>", "").replace("<unk>", "")
        assert ours.encode(text, at_start=True) == original.encode(text).ids
        assert ours.decode_bytes(ours.encode(text)) == text.encode()
