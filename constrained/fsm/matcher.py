"""One position in a regular grammar, followed by its automaton, and by llguidance where that has no room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from stolon.constrained.fsm.forcing import MAX_BYTES, canonical_run
from stolon.constrained.masks import Mask
from stolon.constrained.matching import Matcher
from stolon.errors import GrammarError, StolonError

if TYPE_CHECKING:
    from stolon.constrained.fsm.grammar import FsmGrammar, Walk

__all__ = ["DEAD_END", "FsmMatcher"]

DEAD_END = "no text in the grammar goes on from here"
MAX_RUNS = 2048
MAX_CLOSING = 1 << 15  # bytes of a shortest completion
REPLAYED = 64  # tokens replayed in one go where nobody may wait, about a millisecond

OVER = -2


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

    def __init__(self, grammar: FsmGrammar, walk: Walk, *, wait: bool) -> None:
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
        if self._over and not self._ended:
            other = self._followed()
            return other is not None and other.finished
        return self.accepting and (self._ended or bool(self._walk.automaton.closed(self._state)))

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
