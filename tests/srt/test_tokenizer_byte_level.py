"""Byte-level BPE against the tokenizers library, and the files that hold it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from gguf import GGUFWriter
from hypothesis import given, settings
from support.tokenizer_texts import CORPUS, SPECIALS, TEXTS, any_text, tokenizer_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from stolon.errors import InvalidRequest, ModelFileError, ModelNotFound, UnsupportedModel
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.tokenizer import (
    Tokenizer,
    chat_template_from_folder,
    chat_template_from_gguf,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)
from stolon.srt.tokenizer.bpe import BYTE_OF_CHAR


def _train_byte_level() -> tokenizers.Tokenizer:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIALS,
        show_progress=False,
    )
    library.train_from_iterator(CORPUS, trainer)
    library.add_tokens(["<tool>", "<tool>x"])
    return library


def _write_byte_level(library: tokenizers.Tokenizer, pre: str) -> Callable[[GGUFWriter], None]:
    spec = json.loads(library.to_str())
    by_id = {id: piece for piece, id in library.get_vocab(with_added_tokens=True).items()}
    added = {t["id"]: 3 if t["special"] else 4 for t in spec["added_tokens"]}

    def write(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list([by_id[i] for i in range(len(by_id))])
        writer.add_token_types([added.get(i, 1) for i in range(len(by_id))])
        writer.add_token_merges([" ".join(pair) for pair in spec["model"]["merges"]])
        writer.add_eos_token_id(library.token_to_id("<|im_end|>"))
        writer.add_chat_template("{{ messages[0].content + '<|im_end|>' }}")

    return write


@pytest.fixture(scope="module")
def byte_level_library() -> tokenizers.Tokenizer:
    return _train_byte_level()


@pytest.fixture(scope="module")
def byte_level_file(
    byte_level_library: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> GGUFFile:
    path = tmp_path_factory.mktemp("bpe") / "m.gguf"
    return tokenizer_file(path, _write_byte_level(byte_level_library, "smollm"))


@pytest.fixture(scope="module")
def byte_level_folder(
    byte_level_library: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("hf")
    byte_level_library.save(str(folder / "tokenizer.json"))
    config = {
        "eos_token": {"content": "<|im_end|>"},
        "bos_token": "<|im_start|>",
        "add_bos_token": True,
        "chat_template": [{"name": "default", "template": "{{ bos_token }}{{ eos_token }}"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    return folder


@pytest.fixture(scope="module", params=["gguf", "json"])
def byte_level(
    request: pytest.FixtureRequest, byte_level_file: GGUFFile, byte_level_folder: Path
) -> Tokenizer:
    if request.param == "gguf":
        return tokenizer_from_gguf(byte_level_file)
    return tokenizer_from_folder(byte_level_folder)


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_equals_the_library(
    byte_level: Tokenizer, byte_level_library: tokenizers.Tokenizer, text: str
) -> None:
    wanted = byte_level_library.encode(text, add_special_tokens=False).ids
    assert byte_level.encode(text, special=True) == wanted
    assert byte_level.decode(wanted, skip_special=False) == text


@settings(max_examples=200, deadline=None)
@given(text=any_text)
def test_byte_level_on_any_text(
    byte_level: Tokenizer, byte_level_library: tokenizers.Tokenizer, text: str
) -> None:
    ids = byte_level.encode(text)
    assert ids == byte_level_library.encode(text, add_special_tokens=False).ids
    assert byte_level.decode_bytes(ids) == text.encode()


def test_ordinary_text_never_makes_a_special_token(byte_level: Tokenizer) -> None:
    parts = [("<|im_start|>user\n", True), ("Hi <|im_end|>", False), ("<|im_end|>\n", True)]
    ids = byte_level.encode_parts(parts)
    start, end = (byte_level.special_tokens[t] for t in SPECIALS)
    assert [i for i in ids if i in byte_level.special_ids] == [start, end]
    assert byte_level.decode(ids) == "user\nHi <|im_end|>\n"
    assert byte_level.decode(ids, skip_special=False) == "".join(text for text, _ in parts)
    assert byte_level.encode_parts([("<|im_", True), ("end|>", True)]) == byte_level.encode(
        "<|im_end|>"
    )


def test_ordinary_text_is_tokenised_across_pieces(byte_level: Tokenizer) -> None:
    text = "Hello world, the quick"
    for cut in range(len(text)):
        for first, second in ((True, False), (False, True)):
            parts = [(text[:cut], first), (text[cut:], second)]
            assert byte_level.encode_parts(parts) == byte_level.encode(text)


def test_user_defined_tokens_match_in_ordinary_text(
    byte_level: Tokenizer, byte_level_library: tokenizers.Tokenizer
) -> None:
    tool, tool_x = (byte_level_library.token_to_id(t) for t in ("<tool>", "<tool>x"))
    assert byte_level.encode("<tool><tool>x") == [tool, tool_x]
    assert tool not in byte_level.special_ids


def test_control_tokens_in_the_merges_stay_out_of_reach(tmp_path: Path) -> None:
    """A file whose merges would lead ordinary text to a control token."""
    alphabet = list(BYTE_OF_CHAR)

    def write(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("llama-bpe")
        writer.add_token_list([*alphabet, "ab", "abc"])
        writer.add_token_types([1] * 257 + [3])
        writer.add_token_merges(["a b", "ab c"])

    tokenizer = tokenizer_from_gguf(tokenizer_file(tmp_path / "m.gguf", write))
    assert tokenizer.encode("abc") == [256, alphabet.index("c")]
    assert tokenizer.encode("abc", special=True) == [257]


def test_settings_of_a_gguf(byte_level_file: GGUFFile, tmp_path: Path) -> None:
    tokenizer = tokenizer_from_gguf(byte_level_file)
    assert tokenizer.eos_ids == {tokenizer.special_tokens["<|im_end|>"]}
    assert tokenizer.bos_id is None
    assert not tokenizer.add_bos
    assert tokenizer.fingerprint == tokenizer_from_gguf(byte_level_file).fingerprint
    template = chat_template_from_gguf(byte_level_file)
    assert template is not None
    hostile = [{"role": "user", "content": "<|im_end|>"}]
    parts = [("<|im_end|>", False), ("<|im_end|>", True)]
    assert template.render_parts(hostile) == parts
    with_tokenizer = chat_template_from_gguf(byte_level_file, tokenizer=tokenizer)
    assert with_tokenizer is not None
    assert with_tokenizer.render_parts(hostile) == parts


def test_settings_of_a_folder(byte_level_folder: Path) -> None:
    tokenizer = tokenizer_from_folder(byte_level_folder)
    assert tokenizer.bos_id == tokenizer.special_tokens["<|im_start|>"]
    assert tokenizer.add_bos
    assert tokenizer.eos_ids == {tokenizer.special_tokens["<|im_end|>"], 3, 4}
    template = chat_template_from_folder(byte_level_folder)
    assert template is not None
    assert template.render([]) == "<|im_start|><|im_end|>"


def test_unknown_kinds_are_refused_by_name(
    byte_level_library: tokenizers.Tokenizer, tmp_path: Path
) -> None:
    file = tokenizer_file(tmp_path / "pre.gguf", _write_byte_level(byte_level_library, "klingon"))
    with pytest.raises(UnsupportedModel, match="'klingon'") as caught:
        tokenizer_from_gguf(file)
    assert "smollm" in str(caught.value.hint)
    file = tokenizer_file(tmp_path / "bert.gguf", lambda writer: writer.add_tokenizer_model("bert"))
    with pytest.raises(UnsupportedModel, match="'bert'"):
        tokenizer_from_gguf(file)
    with pytest.raises(ModelNotFound):
        tokenizer_from_folder(tmp_path)
    tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="a")).save(
        str(tmp_path / "tokenizer.json")
    )
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        "[]",
        "{}",
        '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 99999999999}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, "added_tokens": [{"id": 1}]}',
    ],
)
def test_malformed_folders_are_refused(tmp_path: Path, broken: str) -> None:
    (tmp_path / "tokenizer.json").write_text(broken)
    with pytest.raises(ModelFileError):
        tokenizer_from_folder(tmp_path)


def test_malformed_metadata_is_refused(tmp_path: Path) -> None:
    def one(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b"])
        writer.add_token_types([1])

    def two(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["a", "b"])
        writer.add_token_types([1, 1])
        writer.add_token_merges(["a b"])

    def three(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["a", "b"])
        writer.add_token_types([1, 1])
        writer.add_token_scores([0.0, float("nan")])

    def four(writer: GGUFWriter) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["a", "b"])
        writer.add_token_types([1, 1])
        writer.add_token_scores([0.0, -1.0])
        writer.add_eos_token_id(2)

    for i, write in enumerate((one, two, three, four)):
        with pytest.raises(ModelFileError):
            tokenizer_from_gguf(tokenizer_file(tmp_path / f"{i}.gguf", write))


def test_lone_surrogates_are_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="U\\+D800"):
        byte_level.encode("a\ud800b")
