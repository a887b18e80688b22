"""A tokenizer from the metadata of a GGUF file (keys ``tokenizer.ggml.*``).

Specification: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#tokenizer
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
from tokenizers.models import BPE

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.tokenizer.base import Tokenizer
from stolon.srt.tokenizer.bpe import (
    LINE_CUT,
    BytePairTokenizer,
    byte_level_library,
    checked_merges,
    piece_bytes,
    word_regexes,
)
from stolon.srt.tokenizer.chat import ChatTemplate
from stolon.srt.tokenizer.pieces import AddedToken, find_eos
from stolon.srt.tokenizer.spm import SPACE, SentencePieceTokenizer
from stolon.srt.tokenizer.token_bytes import TokenBytes

if TYPE_CHECKING:
    from stolon.srt.loaders.gguf import GGUFFile

_KEY = "tokenizer.ggml."
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_MAX_PIECE_CHARS = 4096


class TokenType(IntEnum):
    """What an entry of the vocabulary is, as ``tokenizer.ggml.token_type`` numbers it."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_SPECIAL = (TokenType.CONTROL, TokenType.UNKNOWN)


def tokenizer_from_gguf(gguf_file: GGUFFile) -> Tokenizer:
    """The tokenizer of a GGUF file: byte-level BPE (model ``gpt2``) or SentencePiece BPE
    (``llama``).

    Raises ModelFileError if its metadata is missing or contradicts itself, UnsupportedModel for
    other tokenizers and for a pre-tokenizer that is not implemented.
    """
    model = gguf_file.get_str(_KEY + "model")
    if model == "gpt2":
        return _byte_level(gguf_file)
    if model == "llama":
        return _sentence_piece(gguf_file)
    raise UnsupportedModel(
        f"the tokenizer model {model!r} is not implemented",
        where=f"{gguf_file.path.name}: {_KEY}model",
        hint="supported: gpt2 (byte-level BPE), llama (SentencePiece BPE)",
    )


def chat_template_from_gguf(
    gguf_file: GGUFFile, *, tokenizer: Tokenizer | None = None
) -> ChatTemplate | None:
    """The chat template of a GGUF file, if it has one. `tokenizer`: its own, if already built."""
    source = gguf_file.get_str("tokenizer.chat_template", default="")
    if not source:
        return None
    spelled: Sequence[bytes]
    if tokenizer is None:
        pieces, types = _vocabulary(gguf_file)
        special = [p for p, t in zip(pieces, types, strict=True) if t in _SPECIAL and p]
        spelled = [piece.encode() for piece in pieces]
    else:
        spelled = tokenizer.token_bytes
        special = list(tokenizer.special_tokens)

    def spelling(key: str) -> str:
        token = _token_id(gguf_file, key, len(spelled))
        return "" if token is None else spelled[token].decode("utf-8", "replace")

    return ChatTemplate(
        source,
        special_tokens=special,
        bos_token=spelling("bos_token_id"),
        eos_token=spelling("eos_token_id"),
    )


def _vocabulary(file: GGUFFile) -> tuple[list[str], Sequence[int]]:
    pieces = file.get_strings(_KEY + "tokens").to_list()
    if _KEY + "token_type" not in file.metadata:
        return pieces, [int(TokenType.NORMAL)] * len(pieces)
    types = file.get_array(_KEY + "token_type")
    _same_length(file, "token_type", len(types), len(pieces))
    kinds: list[int] = types.tolist()
    if any(len(piece) > _MAX_PIECE_CHARS for piece in pieces):
        raise ModelFileError(
            f"a token has more than {_MAX_PIECE_CHARS} characters", where=file.path.name
        )
    return pieces, kinds


def _same_length(file: GGUFFile, key: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise ModelFileError(
            f"{_KEY}{key} has {got} entries for {wanted} tokens", where=file.path.name
        )


def _token_id(file: GGUFFile, key: str, vocab_size: int) -> int | None:
    token = file.get_int(_KEY + key, default=-1)
    if token == -1 or token == 0xFFFFFFFF:
        return None
    if not 0 <= token < vocab_size:
        raise ModelFileError(
            f"{_KEY}{key} is {token}; the vocabulary has {vocab_size} tokens", where=file.path.name
        )
    return token


def _added(pieces: Sequence[str], types: Sequence[int], *, blanks: bool) -> list[AddedToken]:
    """Control, unknown and user-defined tokens. `blanks`: U+2581 in user-defined ones is one."""
    added = []
    normal = int(TokenType.NORMAL)
    for id in [id for id, kind in enumerate(types) if kind != normal]:
        kind = types[id]
        if kind in _SPECIAL:
            added.append(AddedToken(text=pieces[id], id=id, special=True))
        elif kind == TokenType.USER_DEFINED:
            text = pieces[id].replace(SPACE, " ") if blanks else pieces[id]
            added.append(AddedToken(text=text, id=id, special=False))
    return added


def _spellings(added: Sequence[AddedToken]) -> dict[int, bytes]:
    return {token.id: token.text.encode() for token in added}


def _end_ids(file: GGUFFile, added: Sequence[AddedToken], vocab_size: int) -> frozenset[int]:
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    return find_eos((_token_id(file, key, vocab_size) for key in keys), added)


def _token_bytes(
    pieces: Sequence[str],
    types: Sequence[int],
    others: Mapping[int, bytes],
    spell: Callable[[str], bytes],
) -> TokenBytes:
    """What every token stands for: `spell` says it of a normal one's piece, `others` of the rest by id."""
    normal = int(TokenType.NORMAL)
    tokens = [spell(piece) for piece in pieces]
    for id in [id for id, kind in enumerate(types) if kind != normal]:
        tokens[id] = others.get(id, b"")
    return TokenBytes(tokens)


def _byte_level(file: GGUFFile) -> Tokenizer:
    pieces, types = _vocabulary(file)
    added = _added(pieces, types, blanks=False)
    name = file.get_str(_KEY + "pre", default="default")
    regexes, ignore_merges = word_regexes(name)
    token_bytes = _token_bytes(pieces, types, _spellings(added), piece_bytes)
    vocab: dict[str, int] = {}
    normal = int(TokenType.NORMAL)
    for id, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        if kind == normal:
            vocab.setdefault(piece, id)
    merges = file.get_strings(_KEY + "merges").to_list()
    control = {t.text for t in added if t.special}
    ordinary = {piece: id for piece, id in vocab.items() if piece not in control}
    kept = checked_merges((line.split(" ") for line in merges), ordinary, control)
    model = BPE(vocab=ordinary, merges=kept, ignore_merges=ignore_merges)
    return BytePairTokenizer(
        byte_level_library(model, regexes),
        token_bytes=token_bytes,
        added=added,
        bos_id=_token_id(file, "bos_token_id", len(pieces)),
        eos_ids=_end_ids(file, added, len(pieces)),
        add_bos=file.get_bool(_KEY + "add_bos_token", default=name in _BOS_BY_DEFAULT),
        settings=["\n".join(merges).encode(), repr((regexes, ignore_merges)).encode()],
        cut=LINE_CUT,
    )


# Files of these families were written before the key add_bos_token existed.
_BOS_BY_DEFAULT = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})


def _sentence_piece(file: GGUFFile) -> Tokenizer:
    pieces, types = _vocabulary(file)
    scores = file.get_array(_KEY + "scores")
    _same_length(file, "scores", len(scores), len(pieces))
    if not np.isfinite(scores).all():
        raise ModelFileError("a score is not a finite number", where=file.path.name)
    if file.get_bool(_KEY + "remove_extra_whitespaces", default=False):
        raise UnsupportedModel(
            "the tokenizer removes extra blanks, so text would not decode to itself",
            where=f"{file.path.name}: {_KEY}remove_extra_whitespaces",
        )
    added = _added(pieces, types, blanks=True)
    table: dict[str, int] = {}
    byte_ids: dict[int, int] = {}
    spelled: dict[int, bytes] = {}
    unused = []
    normal = int(TokenType.NORMAL)
    for id, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        if kind == normal:
            table.setdefault(piece, id)
        elif kind == TokenType.UNUSED:
            unused.append(piece)
            table.setdefault(piece, id)
        elif kind == TokenType.BYTE:
            match = _BYTE_PIECE.fullmatch(piece)
            if match is None:
                raise ModelFileError(
                    f"byte token {id} is spelled {piece!r}, not <0xNN>", where=file.path.name
                )
            spelled[id] = bytes.fromhex(match[1])
            byte_ids[spelled[id][0]] = id
    if byte_ids and len(byte_ids) != 256:
        raise ModelFileError(
            f"the vocabulary has {len(byte_ids)} of the 256 byte tokens", where=file.path.name
        )
    space_prefix = file.get_bool(_KEY + "add_space_prefix", default=True)
    return SentencePieceTokenizer(
        pieces=table,
        scores=array("d", scores.astype("<f8").tobytes()),
        unused=frozenset(unused),
        byte_ids=[byte_ids[b] for b in range(256)] if byte_ids else None,
        unknown_id=_token_id(file, "unknown_token_id", len(pieces)),
        space_prefix=space_prefix,
        token_bytes=_token_bytes(
            pieces,
            types,
            spelled | _spellings(added),
            lambda piece: piece.replace(SPACE, " ").encode(),
        ),
        added=added,
        bos_id=_token_id(file, "bos_token_id", len(pieces)),
        eos_ids=_end_ids(file, added, len(pieces)),
        add_bos=file.get_bool(_KEY + "add_bos_token", default=True),
        settings=[np.ascontiguousarray(scores, "<f4").tobytes(), repr(space_prefix).encode()],
    )
