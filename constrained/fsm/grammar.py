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

from stolon.constrained.fsm.forcing import MAX_BYTES, canonical_run
from stolon.constrained.fsm.program import Program, TooLarge, build_program
from stolon.constrained.fsm.tokens import TokenTrie, token_trie
from stolon.constrained.masks import Mask, MaskPool
from stolon.constrained.matching import Grammar, Matcher
from stolon.constrained.regex_ast import Node
from stolon.constrained.turns import short_turns
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError, InternalError, StolonError, UnsatisfiableGrammar

__all__ = ["DEAD_END", "FsmGrammar", "FsmMatcher", "compile_fsm"]

DEAD_END = "no text in the grammar goes on from here"
MAX_MEMORY = 32 << 20  # bytes of one automaton; then a new one is begun
LARGE = 8 << 20  # bytes from which the fallback is compiled beforehand, beside the engine's loop
MAX_SET = 2048
WORK_AT_START = 400_000  # closure steps for the first mask, about 20 ms
WORK = 100_000  # the same for one call in the engine's loop, about 5 ms
MAX_MASKS = 4096  # remembered by state
MAX_RUNS = 2048
MAX_CLOSING = 1 << 15  # bytes of a shortest completion
REPLAYED = 64  # tokens replayed in one go where nobody may wait, about a millisecond

OVER = -2


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
        self._walk = _Walk(self, self._automaton(WORK_AT_START))

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
                    walk = self._walk = _Walk(self, self._automaton(WORK))
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


class _Walk:
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


class FsmMatcher:
    """One position in a regular grammar. Used by one thread at a time; copies are independent.

    Trouble at run time never raises: `error` is set, `mask` allows nothing, `accept` returns False.

    Invariant: once the automaton has been left (`_over`), `_other` has accepted the first `_replayed`
    tokens, and nothing is known of the position until those are all.
    """

    __slots__ = (
        "_ended",
        "_grammar",
        "_masks",
        "_other",
        "_over",
        "_replayed",
        "_state",
        "_states",
        "_tokens",
        "_wait",
        "_walk",
        "error",
    )

    def __init__(self, grammar: FsmGrammar, walk: _Walk, *, wait: bool) -> None:
        self.error: StolonError | None = None
        self._grammar = grammar
        self._walk = walk
        self._wait = wait
        self._masks = walk.masks
        self._state = walk.start
        self._states: list[int] = []  # before each token
        self._tokens: list[int] = []
        self._ended = False  # the last token was an end-of-sequence id
        self._over = walk.start < 0
        self._other: Matcher | None = None
        self._replayed = 0

    def mask(self) -> Mask:
        """The ids allowed now."""
        mask = self._masks.get(self._state)
        return mask if mask is not None else self._slow_mask()

    def _slow_mask(self) -> Mask:
        if not self._over and self.error is None and not self._ended:
            mask = self._walk.mask(self._state)
            if mask is not None:
                if not mask.count:
                    self._fail(GrammarError(DEAD_END))
                return mask
            self._leave()
        other = self._followed()
        if other is not None:
            mask = other.mask()
            self.error = other.error
            return mask
        return self._nothing()

    def _nothing(self) -> Mask:
        return self._grammar.pool.intern(np.zeros(len(self._grammar.vocabulary.eos_row), np.int32))

    def accept(self, token: int) -> bool:
        """Take one token. False, and no change, if it is not allowed here."""
        vocabulary = self._grammar.vocabulary
        if self.error is not None or self._ended or not 0 <= token < vocabulary.size:
            return False
        if not self._over:
            if token in vocabulary.eos_ids:
                if not self._walk.automaton.accepting(self._state):
                    return False
                self._push(token, -1)
                self._ended = True
                return True
            state = self._walk.automaton.advance(self._state, token)
            if state >= 0:
                self._push(token, state)
                return True
            if state != OVER:
                return False
            known = self._masks.get(self._state)
            if known is not None and not known.allows(token):
                return False
            self._leave()
            if not self._wait:
                # Where the mask is not known, replaying the token tells whether it is allowed.
                self._push(token, -1)
                return True
        other = self._followed()
        if other is None or not other.accept(token):
            return False
        self._push(token, -1)
        self._replayed += 1
        return True

    def catch_up(self) -> bool:
        """Whether the other calls answer for the whole text. See `Matcher`."""
        return not self._over or self.error is not None or self._followed() is not None

    def _push(self, token: int, state: int) -> None:
        self._states.append(self._state)
        self._tokens.append(token)
        self._state = state

    def forced(self) -> list[int]:
        """The tokens that must come next, canonical for the tokenizer, not accepted yet.

        A token is left out while some allowed continuation could merge with it.
        """
        if self.error is not None or self._ended:
            return []
        if self._over:
            other = self._followed()
            return [] if other is None else other.forced()
        walk = self._walk
        if walk.automaton.accepting(self._state):
            return []
        text, after = walk.automaton.forced(self._state, MAX_BYTES)
        if not text:
            return []
        context = self._tokens[-8:]
        key = (self._state, *context)
        run = walk.runs.get(key)
        if run is None:
            run = (
                canonical_run(self._grammar.vocabulary, walk.automaton, context, text, after)
                if after >= 0
                else []
            )
            if len(walk.runs) >= MAX_RUNS:
                walk.runs.clear()
            walk.runs[key] = run
        return list(run)

    def shortest(self) -> list[int] | None:
        """Tokens that complete the text from here in the fewest bytes, without the end itself.

        None if that is not known: after an error, in llguidance, or beyond 32 KB.
        """
        if self.error is not None or self._over:
            return None
        if self._ended:
            return []
        tokens: list[int] | None = self._walk.automaton.shortest(self._state, MAX_CLOSING)
        return tokens

    @property
    def accepting(self) -> bool:
        """Whether the text so far is complete."""
        if self.error is not None:
            return False
        if self._ended:
            return True
        if self._over:
            other = self._followed()
            return other is not None and other.accepting
        return bool(self._walk.automaton.accepting(self._state))

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow (or did)."""
        if self.error is not None:
            return False
        if self._ended:
            return True
        if self._over:
            other = self._followed()
            return other is not None and other.finished
        automaton = self._walk.automaton
        return bool(automaton.accepting(self._state) and automaton.closed(self._state))

    def fork(self) -> FsmMatcher:
        """An independent copy at the same position."""
        twin = FsmMatcher(self._grammar, self._walk, wait=self._wait)
        twin.error = self.error
        twin._state = self._state
        twin._states = self._states.copy()
        twin._tokens = self._tokens.copy()
        twin._ended = self._ended
        twin._masks = self._masks
        twin._over = self._over
        twin._other = None if self._other is None else self._other.fork()
        twin._replayed = self._replayed
        return twin

    def rollback(self, n: int) -> None:
        """Take back the last n accepted tokens. An error stays."""
        if not 0 <= n <= len(self._tokens):
            raise ValueError(f"cannot take back {n} of {len(self._tokens)} tokens")
        if n == 0 or self.error is not None:
            return
        self._state = self._states[-n]
        del self._states[-n:], self._tokens[-n:]
        self._ended = False
        if self._other is not None:
            taken_back = max(0, self._replayed - len(self._tokens))
            self._other.rollback(taken_back)
            self._replayed -= taken_back
            self.error = self._other.error

    def _leave(self) -> None:
        """The automaton has no room for what comes here: llguidance is to go on."""
        self._over = True
        self._state = -1
        self._states = [-1] * len(self._states)
        self._masks = {}

    def _followed(self) -> Matcher | None:
        """llguidance at this position, after the automaton was left; None if it is not there.

        It may be on the way, if this matcher doesn't wait, and is brought a part of it nearer.
        """
        if not self._over or self.error is not None:
            return None
        if self._other is None:
            grammar = self._grammar
            try:
                found = grammar.other() if self._wait else grammar.other_at_hand()
            except StolonError as error:
                # A new one: whoever reports it says where it happened.
                self._fail(type(error)(error.message, where=error.where, hint=error.hint))
                return None
            if found is None:
                return None
            self._other = found.start()
        end = None if self._wait else self._replayed + REPLAYED
        for token in self._tokens[self._replayed : end]:
            if not self._other.accept(token):
                self._fail(self._other.error or GrammarError("the grammar became too complex"))
                return None
            self._replayed += 1
        return self._other if self._replayed == len(self._tokens) else None

    def _fail(self, error: StolonError) -> None:
        self.error = error
        self._masks = {}
