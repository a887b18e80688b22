"""Masks of whole subtrees at once, against tokens tried one by one."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from support import random_regexes
from support.automata import MODULES, NAMES

from stolon.constrained import Vocabulary
from stolon.constrained.fsm.build import build_program
from stolon.constrained.fsm.tokens import TokenTrie, build_trie
from stolon.constrained.regex import parse_regex
from stolon.constrained.vocabulary import unpack

PIECES = ["a", "b", "c", "e", "z", " ", "1", "-", '"', "\\", "\n", "é", "ж", "漢", "🎈"]
FREE = [
    r'"[^"\\\x00-\x1f]*"',
    r'"[^"\\\x00-\x1f]{3,9}"',
    r'"(?:[^"\\\x00-\x1f]|\\["n])*"( *1)?',
    r"(?s:.*)",
    r".{2,5}\n?",
    r"[a-z -]+(?:1[a-z -]*)?",
    r"[^a]{0,4}(?:[^b]{2,3}c)?",
    r"\w+(?: \w+){0,2}",
    r"[\x00-\x7f]+",
    r"[^\x{80}-\x{7ff}]*",
    r"(?:[a-z]{1,3} ?){2,4}",
]


def vocabulary() -> Vocabulary:
    """Some 2,500 tokens: texts of up to four pieces, and pieces of characters."""
    rng = random.Random(2)
    texts = {"".join(t).encode() for n in (1, 2) for t in itertools.product(PIECES, repeat=n)}
    texts |= {"".join(rng.choices(PIECES, k=rng.randrange(3, 9))).encode() for _ in range(1500)}
    texts |= {text[i:j] for text in sorted(texts) for i, j in ((1, 9), (0, -1)) if text[i:j]}
    tokens = sorted(texts)
    rng.shuffle(tokens)
    return Vocabulary([*tokens, b"<end>"], frozenset([len(tokens)]), frozenset(), lambda text: [])


VOCABULARY = vocabulary()
TRIES = {module: build_trie(VOCABULARY, module) for module in MODULES}


def automaton(pattern: str, tokens: TokenTrie) -> Any:
    program = build_program(parse_regex(pattern), tokens.alphabet)
    if program.start is None:
        return None
    return tokens.module.Automaton(
        *(tokens.trie, program.start, program.code, program.targets, program.nodes, program.edges),
        memory=32 << 20,
        set_size=2048,
        work=1 << 22,
    )


def allowed(machine: Any, state: int) -> set[int]:
    row = np.zeros(len(VOCABULARY.ordinary_row), np.int32)
    assert machine.fill(machine.coarse(state), row)
    return set(np.flatnonzero(unpack(row, VOCABULARY.size)).tolist())


def one_by_one(machine: Any, state: int) -> set[int]:
    return {t for t in range(VOCABULARY.size) if machine.advance(state, t) >= 0}


def check(machine: Any, rng: random.Random, steps: int) -> int:
    """Follow tokens at random; returns how many were allowed on the way."""
    state, total = machine.start(), 0
    for _ in range(steps):
        # The mask first: it must not depend on what is known of states.
        mask = allowed(machine, state)
        assert mask == one_by_one(machine, state)
        total += len(mask)
        if not mask:
            break
        state = machine.advance(state, rng.choice(sorted(mask)))
    return total


@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_free_text(module: Any) -> None:
    for pattern in FREE:
        machine = automaton(pattern, TRIES[module])
        assert check(machine, random.Random(pattern), 5) > 100, pattern


@pytest.mark.parametrize("module", MODULES[1:], ids=NAMES[1:])
def test_random_patterns(module: Any) -> None:
    rng = random.Random(4)
    total = 0
    for _ in range(300):
        machine = automaton(random_regexes.pattern(rng, 3), TRIES[module])
        if machine is not None:
            total += check(machine, rng, 3)
    assert total > 10_000
