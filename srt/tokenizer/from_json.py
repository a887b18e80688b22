"""A tokenizer and chat template from a Hugging Face folder (``tokenizer.json`` and its companions).

Format: https://huggingface.co/docs/tokenizers. Of its models only BPE is implemented: byte-level
(GPT-2, Llama 3, Qwen) and SentencePiece-style with byte fallback (Llama 2, Mistral, Gemma).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from stolon.errors import ModelFileError, ModelNotFound, UnsupportedModel
from stolon.srt.tokenizer.base import Tokenizer
from stolon.srt.tokenizer.bpe import BytePairTokenizer, checked_merges, piece_bytes
from stolon.srt.tokenizer.chat import ChatTemplate
from stolon.srt.tokenizer.pieces import AddedToken, find_eos
from stolon.srt.tokenizer.spm import SPACE

Json = dict[str, Any]
_MAX_TOKEN_ID = 1 << 24
_BYTE_PIECES = {f"<0x{b:02X}>": bytes((b,)) for b in range(256)}


def tokenizer_from_folder(path: str | Path) -> Tokenizer:
    """The tokenizer of a folder.

    A normalizer of the file (Qwen: NFC) is kept, so there text decodes to its normal form.
    Raises ModelNotFound without a tokenizer.json, ModelFileError if it is malformed,
    UnsupportedModel for models other than BPE.
    """
    folder = Path(path)
    file = folder / "tokenizer.json"
    spec = _read(file)
    if spec is None:
        raise ModelNotFound(f"there is no {file}", hint="the folder must hold a fast tokenizer")
    try:
        return _build(folder, spec)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelFileError(
            f"the tokenizer is malformed: {type(error).__name__}: {error}", where=str(file)
        ) from error


def chat_template_from_folder(
    path: str | Path, *, tokenizer: Tokenizer | None = None
) -> ChatTemplate | None:
    """The chat template of a folder: chat_template.jinja, or the one in tokenizer_config.json."""
    folder = Path(path)
    config = _read(folder / "tokenizer_config.json") or {}
    file = folder / "chat_template.jinja"
    try:
        source = file.read_text("utf-8") if file.is_file() else config.get("chat_template")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(
            f"the chat template can't be read: {error}", where=str(file)
        ) from error
    if isinstance(source, list):  # several by name
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        return None
    tokenizer = tokenizer or tokenizer_from_folder(folder)
    return ChatTemplate(
        source,
        special_tokens=list(tokenizer.special_tokens),
        bos_token=_content(config.get("bos_token")),
        eos_token=_content(config.get("eos_token")),
    )


def _read(file: Path) -> Json | None:
    """A JSON object, None if the file does not exist."""
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"the file can't be read as JSON: {error}", where=str(file)) from error
    if not isinstance(value, dict):
        raise ModelFileError("the file must hold a JSON object", where=str(file))
    return value


def _content(token: object) -> str:
    """The spelling of a token in tokenizer_config.json: a string or an object with `content`."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _build(folder: Path, spec: Json) -> Tokenizer:
    model: Json = spec["model"]
    kind = model.get("type", "BPE" if "merges" in model else "unknown")
    if kind != "BPE":
        raise UnsupportedModel(
            f"the tokenizer model {kind!r} is not implemented",
            where=str(folder / "tokenizer.json"),
            hint="supported: BPE, byte-level or SentencePiece-style",
        )
    if model.get("dropout"):
        raise UnsupportedModel("BPE dropout makes encoding random; remove it from tokenizer.json")
    vocab: dict[str, int] = model["vocab"]
    added = [_added_token(entry) for entry in spec.get("added_tokens") or ()]
    byte_level = "ByteLevel" in _types(spec.get("pre_tokenizer"))
    ids = [*vocab.values(), *(t.id for t in added)]
    if not ids or not all(type(i) is int and 0 <= i < _MAX_TOKEN_ID for i in ids):
        raise ValueError("token ids must be integers from 0 to 2**24")
    to_bytes = piece_bytes if byte_level else _sentence_piece_bytes
    token_bytes = [b""] * (max(ids) + 1)
    for piece, id in vocab.items():
        token_bytes[id] = to_bytes(piece)
    for token in added:
        token_bytes[token.id] = token.text.encode()
    prefix = "never" if byte_level else _take_space_prefix(spec)
    library = _library(spec, added)
    config = _read(folder / "tokenizer_config.json") or {}
    by_text = {t.text: t.id for t in added} | {
        p: i for p, i in vocab.items() if p not in {t.text for t in added}
    }
    bos_id = by_text.get(_content(config.get("bos_token")))
    settings = [json.dumps(spec, sort_keys=True).encode()]
    arguments: Json = {
        "token_bytes": token_bytes,
        "added": added,
        "bos_id": bos_id,
        "eos_ids": find_eos(
            [by_text.get(_content(config.get("eos_token"))), *_named_eos(folder)], added
        ),
        "add_bos": _adds_bos(spec, config, bos_id, added),
        "settings": settings,
    }
    if byte_level:
        return BytePairTokenizer(library, **arguments)
    return _SpacedTokenizer(library, prefix=prefix, **arguments)


def _added_token(entry: Json) -> AddedToken:
    return AddedToken(
        text=entry["content"],
        id=entry["id"],
        special=bool(entry.get("special")),
        lstrip=bool(entry.get("lstrip")),
        rstrip=bool(entry.get("rstrip")),
        single_word=bool(entry.get("single_word")),
    )


def _library(spec: Json, added: Sequence[AddedToken]) -> Library:
    """The library's tokenizer without added tokens and what could make control tokens."""
    model: Json = dict(spec["model"])
    control = {t.text for t in added if t.special}
    pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in model["merges"]]
    model["merges"] = checked_merges(pairs, model["vocab"], control)
    unknown = model.get("unk_token")
    model["vocab"] = {p: i for p, i in model["vocab"].items() if p not in control or p == unknown}
    kept = {k: v for k, v in spec.items() if k in ("version", "normalizer", "pre_tokenizer")}
    text = json.dumps(kept | {"added_tokens": [], "model": model})
    try:
        return Library.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from error


def _steps(part: Json | None, members: str) -> list[Json]:
    """The steps of a normalizer or pre-tokenizer, whether one or a Sequence."""
    if part is None:
        return []
    return list(part[members]) if part["type"] == "Sequence" else [part]


def _types(pre_tokenizer: Json | None) -> list[str]:
    return [step["type"] for step in _steps(pre_tokenizer, "pretokenizers")]


def _take_space_prefix(spec: Json) -> str:
    """Take the rule for the leading blank out of the file: 'never', 'always', or 'missing' (if
    there is none).

    The library would apply it to every stretch between special tokens; it belongs to the start
    only.
    """
    rule = "never"
    steps = _steps(spec.get("normalizer"), "normalizers")
    if any(s["type"] == "Prepend" and s["prepend"] == SPACE for s in steps):
        rule = "always"
    steps = [s for s in steps if s["type"] != "Prepend"]
    spec["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None
    for step in _steps(spec.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Metaspace":
            scheme = step.get("prepend_scheme") or (
                "always" if step.get("add_prefix_space", True) else "never"
            )
            if scheme != "never":
                rule = "missing"
            step.pop("add_prefix_space", None)
            step["prepend_scheme"] = "never"
    return rule


def _sentence_piece_bytes(piece: str) -> bytes:
    found = _BYTE_PIECES.get(piece)
    return piece.replace(SPACE, " ").encode() if found is None else found


def _named_eos(folder: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = (_read(folder / name) or {}).get("eos_token_id")
        ids += [i for i in (value if isinstance(value, list) else [value]) if type(i) is int]
    return ids


def _adds_bos(spec: Json, config: Json, bos_id: int | None, added: Sequence[AddedToken]) -> bool:
    """tokenizer_config.json says so, or the post-processor puts the token first."""
    if isinstance(config.get("add_bos_token"), bool):
        return bool(config["add_bos_token"])
    post = spec.get("post_processor")
    for step in [] if post is None else _steps(post, "processors"):
        if step["type"] == "TemplateProcessing" and step["single"]:
            first = step["single"][0].get("SpecialToken")
            if first is not None and bos_id is not None:
                return any(t.text == first["id"] and t.id == bos_id for t in added)
    return False


class _SpacedTokenizer(BytePairTokenizer):
    """SentencePiece-style BPE with merges: the leading blank is ours, the rest the library's."""

    def __init__(self, library: Library, *, prefix: str, **arguments: Any) -> None:
        super().__init__(library, **arguments)
        self._prefix = prefix

    def _encode_ordinary(self, text: str, *, at_start: bool) -> list[int]:
        begins_blank = text.startswith((" ", SPACE))
        if at_start and (
            self._prefix == "always" or (self._prefix == "missing" and not begins_blank)
        ):
            text = " " + text
        return super()._encode_ordinary(text, at_start=at_start)
