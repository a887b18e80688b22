"""Tokenizers against the originals: the tokenizers library, sentencepiece, and recorded ids."""

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
from support.byte_tokenizer import IM_END, ByteTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

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

TEXTS = [
    "Hello world, the quick brown fox jumps over the lazy dog.",
    "I'm sure they've said we'll; HE'S here, don't 'tis",
    "Ça va très bien — naïve façade, Straße, Grüße",
    "Привет, как дела? Ёлка и ещё раз привет",
    "Γειά σου Κόσμε, καλημέρα κόσμε",
    "שלום עולם, שלום לך",
    "مرحبا بالعالم ١٢٣٤٥ كيف حالك",
    "नमस्ते दुनिया, कैसे हो १२३",
    "ภาษาไทยสวัสดีชาวโลก",
    "日本語の文章です。カタカナと漢字１２３",
    "你好，世界！今天天气怎么样？",
    "안녕하세요 세계, 한국어 문장입니다",
    "ქართული Հայերեն አማርኛ தமிழ்",
    "👨‍👩‍👧‍👦 family 🏳️‍🌈 flag 🇵🇹 👍🏽 ❤️ 1️⃣",
    "e\u0301 a\u0308 Z\u0334\u0322 combining, \ue000\uf8ff private \U0010fffd",
    "zero\u200bwidth \u00a0nbsp \u3000wide \u2028line \u0085next",
    "def f(x):\n    if x > 0:\n        return [i**2 for i in range(10)]\n\treturn {'a': 1}\n",
    '{"name": "Ann", "age": 34, "tags": ["x", "y"], "ok": true}',
    " ",
    "   ",
    " a  b   c    d ",
    "x" + " " * 50 + "y",
    "\n\n\n a\r\nb\r\n\r\nc\r \t\t\n  \n",
    "0 12 123 1234 12345 1234567890 3.14159 1,000,000 x1y22 ½²①",
    "!!! ... ?!?! $%^&*() === <<<>>> // --",
    "aaaaaaaaaaaaaaaa abababababab hahahaha thethethe",
    "\x00\x01\x7f",
    "<|im_start|>user\nHi<|im_end|> <s> </s> <0x0A> <unk>",
]
CORPUS = TEXTS * 3
SPECIALS = ["<|im_start|>", "<|im_end|>"]
_CHARS = st.sampled_from("aetho TH'’1234 \n\t\r.,é日<|>_▁ΣЖ\u0301🎉\u200d") | st.characters(
    exclude_categories=["Cs"]
)
any_text = st.text(_CHARS, max_size=40)


# --- byte-level BPE ---


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


def _gguf(path: Path, write: Callable[[GGUFWriter], None]) -> GGUFFile:
    writer = GGUFWriter(path, "llama")
    write(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GGUFFile.open(path)


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
    return _gguf(path, _write_byte_level(byte_level_library, "smollm"))


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

    tokenizer = tokenizer_from_gguf(_gguf(tmp_path / "m.gguf", write))
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
    file = _gguf(tmp_path / "pre.gguf", _write_byte_level(byte_level_library, "klingon"))
    with pytest.raises(UnsupportedModel, match="'klingon'") as caught:
        tokenizer_from_gguf(file)
    assert "smollm" in str(caught.value.hint)
    file = _gguf(tmp_path / "bert.gguf", lambda writer: writer.add_tokenizer_model("bert"))
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
            tokenizer_from_gguf(_gguf(tmp_path / f"{i}.gguf", write))


def test_lone_surrogates_are_refused(byte_level: Tokenizer) -> None:
    with pytest.raises(InvalidRequest, match="U\\+D800"):
        byte_level.encode("a\ud800b")


# --- SentencePiece ---


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
    ours = tokenizer_from_gguf(_gguf(path, _write_sentence_piece(model, request.param)))
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
    ours = tokenizer_from_gguf(_gguf(tmp_path / "m.gguf", _write_sentence_piece(model, "llama")))
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

    ours = tokenizer_from_gguf(_gguf(tmp_path / "m.gguf", write))
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


# --- the tokenizer of tests, and recorded ids ---


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
