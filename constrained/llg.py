"""llguidance behind Stolon's interface: a compiled grammar and the matchers that walk it.

llguidance (Rust: derivative lexer and Earley parser) computes the masks. This module adds what a
scheduler relies on: end-of-sequence ids are allowed exactly where the grammar may end, specials
never; nothing raises while a request runs; a token that is not allowed changes nothing.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading

import llguidance

from stolon.constrained.masks import Mask, MaskPool
from stolon.constrained.vocabulary import Vocabulary
from stolon.errors import GrammarError, StolonError

__all__ = ["LlgGrammar", "LlgMatcher"]

# A forced run is cut here and goes on once it is accepted: a recursive schema can force for ever.
MAX_FORCED = 1024
MAX_BEGINNING = 32_768
LARGE = 1 << 20
"""Bytes of a grammar that takes a millisecond to be freed."""
DEAD_END = "no text in the grammar goes on from here"
TOO_COMPLEX = "the grammar became too complex"
SIMPLIFY = "simplify the grammar or bound its repetitions"
_WAYS_ON = re.compile(r"row has [0-9]+ items; max is ([0-9]+)")
NO_WAY_OUT = "a recursion without a way out is one cause"


class LlgGrammar:
    """A compiled grammar. Immutable and shared; every request walks its own `LlgMatcher`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        pool: MaskPool,
        prototype: llguidance.LLMatcher,
        *,
        nbytes: int = 0,
        forcing: bool = True,
        dropped: tuple[str, ...] = (),
    ) -> None:
        """`prototype` stands at the start and is only copied. `error` says why it can't be used.

        Args:
            nbytes: about what the compiled grammar takes.
            forcing: whether the prototype computes forced runs at all.
            dropped: pointers to the keywords of a schema that are not enforced.
        """
        self.nbytes = nbytes
        self.dropped = dropped
        self._vocabulary = vocabulary
        self._pool = pool
        self._prototype = prototype
        self._first: Mask | None = None
        self._spare = [prototype.deep_copy()]
        probe = LlgMatcher(vocabulary, pool, self._spare[0], self)
        # The mask comes first: it walks what is forced without the interpreter lock.
        self._first = probe.mask()
        if forcing and probe.error is None and len(probe.forced_bytes()) > MAX_BEGINNING:
            probe.error = GrammarError(
                f"every text of the grammar begins with more than {MAX_BEGINNING:,} fixed bytes",
                hint=NO_WAY_OUT,
            )
        self.error = probe.error

    def start(self, *, wait: bool = True) -> LlgMatcher:
        """A matcher at the beginning of the grammar, which never waits. Takes tens of microseconds."""
        try:
            inner = self._spare.pop()  # as good as a copy, for whoever starts first
        except IndexError:
            inner = self._prototype.deep_copy()
        return LlgMatcher(self._vocabulary, self._pool, inner, self, mask=self._first)

    def __del__(self) -> None:
        """Called when no matcher is left either."""
        # No thread begins once the interpreter ends; it waits for one that has begun.
        if self.nbytes > LARGE and not sys.is_finalizing():
            self._spare.clear()
            with contextlib.suppress(RuntimeError):
                arguments = (self._prototype, self._vocabulary.size)
                threading.Thread(target=_free, args=arguments, name="stolon-free").start()


def _free(matcher: llguidance.LLMatcher, beyond: int) -> None:
    """Free a large grammar without the interpreter lock, which its finalizer would hold for milliseconds.

    A token that no vocabulary has leaves of a matcher its error alone; of two at a time it is taken with the
    lock released.
    """
    pair = [(matcher, beyond), (matcher.deep_copy(), beyond)]
    llguidance.LLExecutor(num_threads=1).consume_token_par(pair)


class LlgMatcher:
    """One position in a grammar. Used by one thread at a time; copies are independent.

    Trouble at run time never raises: `error` is set, `mask` allows nothing, `accept` returns False.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        pool: MaskPool,
        inner: llguidance.LLMatcher,
        grammar: LlgGrammar,
        *,
        mask: Mask | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._pool = pool
        self._inner = inner
        self._grammar = grammar  # frees what they share
        self._mask = mask
        self._ended = False  # an end-of-sequence id was accepted; it is not shown to llguidance
        self._accepted = 0
        self.error: StolonError | None = None

    def mask(self) -> Mask:
        """The ids allowed now. Computed once per position, with the interpreter lock released."""
        if self._mask is None or self.error is not None:
            self._mask = self._compute_mask()
        return self._mask

    def accept(self, token: int) -> bool:
        """Take one token. False, and no change, if it is not allowed here."""
        if self.error is not None or self._ended or not 0 <= token < self._vocabulary.size:
            return False
        if token in self._vocabulary.eos_ids:
            if not self.accepting:
                return False
            self._ended = True
        else:
            word, bit = divmod(token, 32)
            if not int(self._vocabulary.ordinary_row[word]) >> bit & 1:
                return False
            try:
                taken: int = self._inner.try_consume_tokens([token])
            except BaseException as error:
                self._fail(error)
                return False
            if taken != 1:
                self._check()
                if self.error is None and self._mask is not None and self._mask.allows(token):
                    # A limit that was hit while the mask was computed is not always told.
                    self.error = GrammarError(TOO_COMPLEX, hint=SIMPLIFY)
                return False
        self._accepted += 1
        self._mask = None
        return True

    def forced(self) -> list[int]:
        """The tokens that must come next, canonical for the tokenizer, not accepted yet.

        A token is left out while some allowed continuation could merge with it. Lark grammars
        with a terminal that might be forced for ever force nothing.
        """
        if self.error is not None or self._ended:
            return []
        try:
            tokens: list[int] = self._inner.compute_ff_tokens()
        except BaseException as error:
            self._fail(error)
            return []
        return tokens[:MAX_FORCED]

    def forced_bytes(self) -> bytes:
        """The bytes that must come next. Not for a grammar compiled without forcing."""
        try:
            return bytes(self._inner.compute_ff_bytes())
        except BaseException as error:
            self._fail(error)
            return b""

    def catch_up(self) -> bool:
        """True: everything is compiled before a matcher starts."""
        return True

    @property
    def accepting(self) -> bool:
        """Whether the text so far is complete."""
        return self.error is None and (self._ended or bool(self._inner.is_accepting()))

    @property
    def finished(self) -> bool:
        """Whether nothing but the end may follow (or did)."""
        return self.error is None and (
            self._ended or bool(self._inner.is_accepting() and self._inner.is_stopped())
        )

    def fork(self) -> LlgMatcher:
        """An independent copy at the same position."""
        inner = self._inner.deep_copy()
        twin = LlgMatcher(self._vocabulary, self._pool, inner, self._grammar, mask=self._mask)
        twin._ended, twin._accepted, twin.error = self._ended, self._accepted, self.error
        return twin

    def rollback(self, n: int) -> None:
        """Take back the last n accepted tokens. An error stays."""
        if not 0 <= n <= self._accepted:
            raise ValueError(f"cannot take back {n} of {self._accepted} tokens")
        if n == 0 or self.error is not None:
            return
        self._mask = None
        self._accepted -= n
        if self._ended:
            self._ended = False
            n -= 1
        try:
            if n and not self._inner.rollback(n):
                self._check()
        except BaseException as error:
            self._fail(error)

    def _compute_mask(self) -> Mask:
        vocabulary = self._vocabulary
        row, address = vocabulary.scratch_row()
        if self.error is None and not self._ended:
            try:
                self._inner.unsafe_compute_mask_ptr(address, row.nbytes)
                self._check()
            except BaseException as error:
                self._fail(error)
        if self.error is not None or self._ended:
            row[:] = 0
            return self._pool.intern(row)
        row &= vocabulary.ordinary_row
        if self.accepting:
            row |= vocabulary.eos_row
        mask = self._pool.intern(row)
        if not mask.count:
            # llguidance offers an end here, although the text is not in the language.
            self.error = GrammarError(DEAD_END)
        return mask

    def _check(self) -> None:
        """Turn llguidance's error state into ours."""
        if not self._inner.is_error():
            return
        reason = first_line(self._inner.get_error())
        if reason.startswith("NoExtension"):
            self.error = GrammarError(DEAD_END)
        elif ways := _WAYS_ON.search(reason):
            self.error = GrammarError(
                f"{TOO_COMPLEX}: at one place it can go on in more than {int(ways[1]):,} ways",
                hint="write a long list of alternatives as one terminal, as choices or as a regex",
            )
        else:
            # Forced tokens are what it had to follow: without an end, as far as it got.
            hint = NO_WAY_OUT if "ff_tokens" in reason else SIMPLIFY
            self.error = GrammarError(f"{TOO_COMPLEX}: {reason}", hint=hint)

    def _fail(self, error: BaseException) -> None:
        # A Rust panic arrives as PanicException, which is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise error
        self.error = GrammarError(f"the grammar engine failed: {first_line(str(error))}")


def first_line(text: str) -> str:
    """The first line of a message that may carry a dump of the parser's state."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "unknown error")[:300]
