"""The FSM tier: regular grammars walked by our own automata, behind the interface of all grammars.

What an automaton has no room for goes to llguidance instead: at once if the program or the first
mask is too large, and in the middle of a text by replaying its tokens. Neither is an error, and no
mask differs. In the middle of a text the grammar is compiled in a thread, and the engine's loop, which
must not wait, goes on with other sequences meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from stolon.constrained.fsm.build import build_program
from stolon.constrained.fsm.matcher import FsmMatcher
from stolon.constrained.fsm.program import Program, TooLarge
from stolon.constrained.fsm.tokens import TokenTrie, token_trie
from stolon.constrained.masks import Mask, MaskPool
from stolon.constrained.matching import Grammar
from stolon.constrained.regex_ast import Node
from stolon.constrained.turns import short_turns
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import InternalError, StolonError, UnsatisfiableGrammar

__all__ = ["FsmGrammar", "Walk", "compile_fsm"]

MAX_MEMORY = 32 << 20  # bytes of one automaton; then a new one is begun
LARGE = 8 << 20  # bytes from which the fallback is compiled beforehand, beside the engine's loop
MAX_SET = 2048
WORK_AT_START = 400_000  # closure steps for the first mask, about 20 ms
WORK = 100_000  # the same for one call in the engine's loop, about 5 ms
MAX_MASKS = 4096  # remembered by state


def compile_fsm(
    tree: Node,
    vocabulary: Vocabulary,
    pool: MaskPool,
    fallback: Callable[[], Grammar],
    *,
    kind: str = "grammar",
    tokens: TokenTrie | None = None,
) -> FsmGrammar | None:
    """The grammar of a regex tree; None if it is better left to llguidance.

    Args:
        fallback: compiles the same grammar for llguidance, for texts that outgrow the automaton.
        kind: what to call the grammar in a refusal.
        tokens: the trie of the vocabulary, if not the usual one.

    Raises:
        GrammarError: no text satisfies the tree, or none that the vocabulary can write.
    """
    tokens = tokens or token_trie(vocabulary)
    try:
        program = build_program(tree, tokens.alphabet)
    except (TooLarge, RecursionError):
        return None
    if program.start is None:
        raise UnsatisfiableGrammar(f"no text can satisfy this {kind}")
    grammar = FsmGrammar(vocabulary, pool, program, fallback, tokens)
    first = grammar.first_mask()
    if first is not None and not first.count:
        raise UnsatisfiableGrammar(f"no text can satisfy this {kind}")
    return None if first is None else grammar


class FsmGrammar:
    """A compiled regular grammar. Shared by any number of matchers in any threads."""

    dropped: tuple[str, ...] = ()  # all of its spec is enforced

    def __init__(
        self,
        vocabulary: Vocabulary,
        pool: MaskPool,
        program: Program,
        fallback: Callable[[], Grammar],
        tokens: TokenTrie,
    ) -> None:
        self.error: StolonError | None = None
        self.vocabulary = vocabulary
        self.pool = pool
        self._program = program
        self._tokens = tokens
        self._compile_other = fallback
        self._other: Grammar | StolonError | None = None  # how compiling it ended
        self._other_lock = threading.Lock()
        self._prepares = False
        self._lock = threading.Lock()
        self._walk = Walk(self, self._automaton(WORK_AT_START))

    @property
    def nbytes(self) -> int:
        """About what the automaton takes now."""
        return int(self._walk.automaton.memory) + 8 * self._program.code.size + (64 << 10)

    def first_mask(self) -> Mask | None:
        """The mask of the beginning; None if it is beyond the limits. Asked once, when compiled."""
        walk = self._walk
        mask = None if walk.start < 0 else walk.mask(walk.start)
        walk.automaton.work = WORK
        return mask

    def start(self, *, wait: bool = True) -> FsmMatcher:
        """A matcher at the beginning of the grammar. See `Grammar`."""
        walk = self._walk
        if walk.automaton.memory > MAX_MEMORY // 2:
            with self._lock:
                walk = self._walk
                if walk.automaton.memory > MAX_MEMORY // 2:
                    # Matchers on the way keep the old one.
                    walk = self._walk = Walk(self, self._automaton(WORK))
        return FsmMatcher(self, walk, wait=wait)

    def other(self) -> Grammar:
        """The same grammar in llguidance, compiled in this thread if it is not yet.

        Raises:
            StolonError: it is refused there, now and whenever it is asked for again.
        """
        with self._other_lock:
            if self._other is None:
                try:
                    self._other = self._compile_other()
                except StolonError as error:
                    self._other = error
                except Exception as error:
                    self._other = InternalError(
                        f"compiling a grammar failed ({type(error).__name__})"
                    )
            if isinstance(self._other, StolonError):
                raise self._other
            return self._other

    def other_at_hand(self) -> Grammar | None:
        """What `other` returns or raises, where that is known; else None, and a thread finds it out."""
        if self._other is None:
            self.expect_other()
            return None
        return self.other()

    def expect_other(self) -> None:
        """Have the same grammar in llguidance compiled in a thread: it may soon be needed."""
        if not self._prepares:
            self._prepares = True
            threading.Thread(target=self._prepare, name="stolon-fallback", daemon=True).start()

    def _prepare(self) -> None:
        # A refusal is raised to whoever needs the grammar.
        with short_turns(), contextlib.suppress(StolonError):
            self.other()

    def _automaton(self, work: int) -> Any:
        program = self._program
        return self._tokens.module.Automaton(
            self._tokens.trie,
            program.start,
            program.code,
            program.targets,
            program.nodes,
            program.edges,
            memory=MAX_MEMORY,
            set_size=MAX_SET,
            work=work,
        )


class Walk:
    """An automaton with what is remembered of its states: masks and forced runs."""

    def __init__(self, grammar: FsmGrammar, automaton: Any) -> None:
        self.automaton = automaton
        self.start: int = automaton.start()
        self.masks: dict[int, Mask] = {}
        self.runs: dict[tuple[object, ...], list[int]] = {}
        self._grammar = grammar
        self._by_coarse: dict[int, Mask] = {}

    def mask(self, state: int) -> Mask | None:
        """The ids allowed in a state; None at a limit."""
        found = self.masks.get(state)
        if found is not None:
            return found
        automaton = self.automaton
        coarse = automaton.coarse(state)
        if coarse < 0:
            return None
        mask = self._by_coarse.get(coarse)
        if mask is None:
            vocabulary = self._grammar.vocabulary
            row = np.zeros(len(vocabulary.ordinary_row), np.int32)
            if not automaton.fill(coarse, row):
                return None
            if automaton.accepting(state):
                row |= vocabulary.eos_row
            mask = self._grammar.pool.intern(row)
            if len(self._by_coarse) >= MAX_MASKS:
                self._by_coarse.clear()
            self._by_coarse[coarse] = mask
            if automaton.memory > LARGE:
                self._grammar.expect_other()
        if len(self.masks) >= 16 * MAX_MASKS:
            self.masks.clear()
        if mask.count:
            self.masks[state] = mask
        return mask
