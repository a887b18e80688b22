"""A vocabulary as the automata need it: the trie of its ordinary tokens, built once."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from stolon.constrained.fsm import portable
from stolon.constrained.vocabulary import Vocabulary, unpack

try:
    from stolon.constrained import _fsm
except ImportError:  # installed without C++
    native = None
else:
    native = _fsm

__all__ = ["TokenTrie", "native", "token_trie"]

_LOCK = threading.Lock()
_KNOWN: weakref.WeakKeyDictionary[Vocabulary, TokenTrie] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class TokenTrie:
    """The ordinary tokens of a vocabulary.

    Attributes:
        module: what has the classes `Trie` and `Automaton`: C++, or Python where that is not there.
        trie: a `Trie` of that module.
        alphabet: the bytes that occur in some token. A text with others can't be written.
    """

    module: Any
    trie: Any
    alphabet: frozenset[int]


def token_trie(vocabulary: Vocabulary) -> TokenTrie:
    """The trie of a vocabulary, built on first use (tens of milliseconds for 150k tokens)."""
    with _LOCK:
        found = _KNOWN.get(vocabulary)
        if found is None:
            found = _KNOWN[vocabulary] = build_trie(vocabulary, native or portable)
        return found


def build_trie(vocabulary: Vocabulary, module: Any) -> TokenTrie:
    """The trie of a vocabulary for the automata of `module`."""
    use = unpack(vocabulary.ordinary_row, vocabulary.size).astype(np.uint8)
    texts = vocabulary.token_bytes
    offsets = np.zeros(vocabulary.size + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, vocabulary.size), out=offsets[1:])
    joined = np.frombuffer(b"".join(texts), np.uint8)
    counted = np.repeat(use, np.diff(offsets)).astype(bool)
    return TokenTrie(
        module, module.Trie(joined, offsets, use), frozenset(np.unique(joined[counted]).tolist())
    )
