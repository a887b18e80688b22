"""Automata over a small vocabulary, in C++ and in Python."""

from __future__ import annotations

from typing import Any

from support.grammar_walk import make_vocabulary

from stolon.constrained.fsm import portable
from stolon.constrained.fsm.build import build_program
from stolon.constrained.fsm.tokens import build_trie, native
from stolon.constrained.regex import parse_regex

MODULES = [portable, *([native] if native is not None else [])]
NAMES = ["portable", "native"][: len(MODULES)]
VOCABULARY = make_vocabulary()
TRIES = {module: build_trie(VOCABULARY, module) for module in MODULES}


def automaton(
    pattern: str, module: Any, *, memory: int = 32 << 20, set_size: int = 2048, work: int = 1 << 20
) -> Any:
    tokens = TRIES[module]
    program = build_program(parse_regex(pattern), tokens.alphabet)
    assert program.start is not None, "no text"
    return module.Automaton(
        tokens.trie,
        program.start,
        program.code,
        program.targets,
        program.nodes,
        program.edges,
        memory=memory,
        set_size=set_size,
        work=work,
    )


def takes(automaton: Any, text: str | bytes) -> bool:
    """Whether a whole text is accepted."""
    data = text.encode() if isinstance(text, str) else text
    state: int = automaton.advance_bytes(automaton.start(), data)
    assert state != -2
    return state >= 0 and bool(automaton.accepting(state))
