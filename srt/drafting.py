"""Drafts: tokens that probably come next, computed in one step with those that are certain.

A draft changes no output: every token of it is drawn as it would have been without, from the logits of
its own row, and the draft only counts as far as the draws agree with it. Drafts come from two places:
the grammar, where it leaves one way to go on, and the sequence's own past.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from stolon.constrained import Matcher
from stolon.srt.sequence import Generation, Guess, Sequence
from stolon.srt.speculation import LONGEST, NgramIndex, Rates, StepCost, Words

MAX_GUESSED = 15
"""Tokens guessed in one draft. Longer ones are rarely right to their end."""
MAX_FORCED = 64
"""Tokens of a grammar's forced run in one draft; the rest follows in the next."""
MAX_PENDING = 16
"""A sequence with more known tokens to compute than these is prefilling: nothing is guessed for it."""
MAX_OBSERVED = 64
"""Steps of more rows are prefills, which multiply in another way."""
MARGIN, MARGIN_PER_SEQUENCE = 1.2, 0.03
"""By how much a draft must pay. Of a batch that ends with its slowest sequence, not every token that comes
early ends it earlier, and sequences alike are wrong together."""
_FORCED = 0
"""In place of a match's length: what the grammar forces says nothing about guesses."""


class Draft(NamedTuple):
    """Tokens to compute after those of a sequence; the first `certain` of them can't be rejected."""

    tokens: list[int]
    certain: int


class Drafter:
    """Makes drafts where they save more time than their rows cost.

    A further row is worth it while its chance to be accepted, as a share of the tokens that the step
    yields without it, exceeds what it adds to the time of the step.

    Args:
        token_bytes: of every token.
        lookup: whether to guess from a sequence's own past at all.
    """

    def __init__(self, token_bytes: SequenceOf[bytes], *, lookup: bool) -> None:
        self._words = Words(token_bytes)
        self._lookup = lookup
        self._cost = StepCost()
        self._rates = Rates()
        self._asked = False

    def observe(self, rows: int, outputs: int, seconds: float) -> None:
        """A step of so many rows, with all logits of `outputs` of them, took so long.

        Rows without logits, which are cheaper, tell nothing about those of a draft. Nor is anything learned
        while nobody wants drafts.
        """
        if self._asked and self._lookup and rows == outputs <= MAX_OBSERVED:
            self._cost.observe(rows, seconds)

    def propose(self, running: Iterable[Sequence]) -> dict[Sequence, Draft]:
        """Drafts for the sequences that get one in this step."""
        sequences = [seq for seq in running if seq.generation is not None]
        self._asked = any(map(_asks, sequences))
        if not self._asked:
            return {}
        trade = _Trade(self._cost, len(sequences))
        lookup = self._lookup and trade.pays(max(self._rates.values))
        drafts: dict[Sequence, Draft] = {}
        for seq in sequences:
            generation = seq.generation
            if generation is None or not (
                generation.queued or generation.verify or (lookup and _guessable(seq, generation))
            ):
                continue
            room = generation.limit - len(seq.tokens) - 1
            if room < 1:
                continue
            draft = self._draft(seq, generation, room, trade if lookup else None)
            if draft.tokens:
                drafts[seq] = draft
        return drafts

    def _draft(
        self, seq: Sequence, generation: Generation, room: int, trade: _Trade | None
    ) -> Draft:
        path = _Path(generation.matcher)
        guess = Guess(len(seq.tokens), [], [])
        _add(guess, path, generation.queued[: min(room, MAX_FORCED)])
        certain = len(guess.tokens)
        if generation.verify:
            _add(guess, path, path.forced()[: min(room, MAX_FORCED)])
        drafted = len(guess.tokens)
        if trade is not None and _guessable(seq, generation):
            self._score(seq, generation)
            drafted = self._guess(seq, generation, path, room, guess, trade)
        generation.guess = guess
        return Draft(guess.tokens[:drafted], certain)

    def _score(self, seq: Sequence, generation: Generation) -> None:
        """Learn from the last guess, whether it was drafted or only thought of."""
        guess, rates = generation.guess, generation.rates
        if guess is None or rates is None:
            generation.rates = rates or Rates(self._rates)
            return
        generation.guess = None
        after = seq.tokens[guess.start : guess.start + len(guess.tokens)]
        for token, expected, length in zip(after, guess.tokens, guess.lengths, strict=False):
            if length:
                rates.update(length, token == expected)
            if token != expected:
                break

    def _guess(
        self,
        seq: Sequence,
        generation: Generation,
        path: _Path,
        room: int,
        guess: Guess,
        trade: _Trade,
    ) -> int:
        """Append what followed before. Returns how many tokens of the guess are worth a row."""
        if seq.index is None:
            seq.index = NgramIndex(self._words)
        known, tokens = seq.tokens, guess.tokens
        rates = generation.rates or self._rates
        most = min(room, len(tokens) + MAX_GUESSED)
        chance = 1.0
        found = seq.index.find(known, (known[-LONGEST:] + tokens)[-LONGEST:])
        while found is not None and len(tokens) < most:
            at, length = found
            token = known[at] if at < len(known) else tokens[at - len(known)]
            if token in generation.ends or not path.accept(token):
                break
            chance *= rates.values[length]
            tokens.append(token)
            guess.lengths.append(length)
            if not trade.pays(chance):
                # Kept in the guess: whether it would have been right is learned for nothing.
                return len(tokens) - 1
            trade.take(chance)
            found = at + 1, min(length + 1, LONGEST)
            if generation.matcher is not None and (generation.inject or generation.verify):
                forced = path.forced()
                if forced:
                    if not trade.pays(chance, waste=(1 - chance) * len(forced)):
                        break
                    _add(guess, path, forced[: max(0, room - len(tokens))])
                    found = seq.index.find(known, (known[-LONGEST:] + tokens)[-LONGEST:])
        return len(tokens)


class _Trade:
    """The step so far: its rows, and the tokens that it is expected to yield."""

    __slots__ = ("_cost", "_margin", "_rows", "_tokens")

    def __init__(self, cost: StepCost, rows: int) -> None:
        self._cost = cost
        self._margin = MARGIN + MARGIN_PER_SEQUENCE * rows
        self._rows = rows
        self._tokens = float(rows)

    def pays(self, chance: float, *, waste: float = 0.0) -> bool:
        """Whether a row accepted with this chance raises the step's tokens per second by enough.

        Args:
            waste: rows that are probably computed in vain beside it.
        """
        cost = (1 + waste) * self._cost.growth(self._rows)
        return chance > self._margin * self._tokens * cost

    def take(self, chance: float) -> None:
        """Count such a row in."""
        self._rows += 1
        self._tokens += chance


class _Path:
    """A way through the grammar, if there is one, beyond what is accepted; forked when it is first gone."""

    __slots__ = ("_forked", "_matcher")

    def __init__(self, matcher: Matcher | None) -> None:
        self._matcher = matcher
        self._forked = False

    def _fork(self) -> Matcher | None:
        if self._matcher is not None and not self._forked:
            self._matcher = self._matcher.fork()
            self._forked = True
        return self._matcher

    def accept(self, token: int) -> bool:
        matcher = self._fork()
        return matcher is None or matcher.accept(token)

    def forced(self) -> list[int]:
        matcher = self._fork()
        return [] if matcher is None else matcher.forced()


def _asks(seq: Sequence) -> bool:
    generation = seq.generation
    return generation is not None and bool(
        generation.speculate or generation.queued or generation.verify
    )


def _guessable(seq: Sequence, generation: Generation) -> bool:
    return generation.speculate and len(seq.tokens) - seq.computed <= MAX_PENDING


def _add(guess: Guess, path: _Path, forced: list[int]) -> None:
    """Append a run that the grammar forces."""
    for token in forced:
        if not path.accept(token):
            return
        guess.tokens.append(token)
        guess.lengths.append(_FORCED)
