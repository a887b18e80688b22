"""Compile a spec over the byte tokenizer and walk texts through its masks."""

from __future__ import annotations

import json
import random
from typing import Any

from support.byte_tokenizer import ByteTokenizer

from stolon.constrained import Grammar, GrammarCompiler, GrammarSpec, Mask, Matcher, Vocabulary

TOKENIZER = ByteTokenizer()
(EOS,) = TOKENIZER.eos_ids


def make_vocabulary() -> Vocabulary:
    return Vocabulary(
        TOKENIZER.token_bytes, TOKENIZER.eos_ids, TOKENIZER.special_ids, TOKENIZER.encode
    )


COMPILER = GrammarCompiler(make_vocabulary())


def spec(kind: str, text: Any = "", **options: Any) -> GrammarSpec:
    """A spec; choices and schemas may be given as values."""
    if not isinstance(text, str) or kind == "choice":
        text = json.dumps(text)
    return GrammarSpec(kind=kind, text=text, **options)


def compiled(kind: str, text: Any = "", *, prefix: bytes = b"", **options: Any) -> Grammar:
    return COMPILER.compile(spec(kind, text, **options), prefix=prefix)


def ids_of(mask: Mask) -> set[int]:
    return {token for token in range(TOKENIZER.vocab_size) if mask.allows(token)}


def accepts(grammar: Grammar, text: str | bytes) -> bool:
    """Whether every byte is allowed in turn and the text may end there."""
    matcher = grammar.start()
    for byte in text.encode() if isinstance(text, str) else text:
        if not matcher.accept(byte):
            return False
    assert matcher.error is None
    assert matcher.mask().allows(EOS) == matcher.accepting
    return matcher.accepting


def walk(grammar: Grammar, rng: random.Random, *, limit: int = 400) -> bytes | None:
    """A random text of the grammar, drawn from the masks; None if it did not end within `limit`."""
    matcher = grammar.start()
    text = b""
    for step in range(limit):
        allowed = sorted(ids_of(matcher.mask()))
        assert allowed, f"dead end after {text!r}: {matcher.error}"
        if EOS in allowed and (len(allowed) == 1 or rng.random() < 0.3 + step / limit):
            assert matcher.accept(EOS)
            assert matcher.finished
            return text
        closing = [t for t in allowed if TOKENIZER.token_bytes[t] in (b'"', b"}", b"]", b",", b":")]
        readable = [t for t in allowed if t != EOS and all(31 < b < 127 for b in token(t))]
        pool = [t for t in allowed if t != EOS]
        if closing and rng.random() < 0.3 + step / limit:
            pool = closing
        elif readable and rng.random() < 0.9:
            pool = readable
        chosen = rng.choice(pool)
        assert matcher.accept(chosen), (text, token(chosen))
        text += token(chosen)
    return None


def token(id: int) -> bytes:
    return TOKENIZER.token_bytes[id]


def feed(matcher: Matcher, text: str) -> Matcher:
    for byte in text.encode():
        assert matcher.accept(byte), text
    return matcher
