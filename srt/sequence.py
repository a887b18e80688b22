"""One sample of a request on its way through the block: its tokens, its KV, and the step it is at."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stolon.constrained import Closer, Matcher
from stolon.radix import Node
from stolon.srt.job import GenStep, Job, Known, SelectStep, Step
from stolon.srt.output import GenOutput
from stolon.srt.protocol import TokenLogprob, Usage
from stolon.srt.sampling import SamplerRow
from stolon.srt.selecting import Selection
from stolon.srt.speculation import NgramIndex, Rates


@dataclass(slots=True)
class Account:
    """Where the tokens and the time of the current segment went so far."""

    started: float
    prompt_tokens: int = 0
    cached: int = 0
    computed: int = 0
    queue_time: float = 0.0
    first_token: float | None = None
    drafted: int = 0
    accepted: int = 0

    def usage(self, *, forced: int, sampled: int, retractions: int) -> Usage:
        now = time.perf_counter()
        first = self.first_token if self.first_token is not None else now
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached,
            computed_tokens=self.computed,
            forced_tokens=forced,
            sampled_tokens=sampled,
            queue_time=self.queue_time,
            prefill_time=max(0.0, first - self.started - self.queue_time),
            decode_time=max(0.0, now - first),
            retractions=retractions,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
        )


@dataclass(slots=True)
class Guess:
    """What was thought to come next, from position `start` on, and the length of the match each token
    was guessed from (0 where it was no guess)."""

    start: int
    tokens: list[int]
    lengths: list[int]


@dataclass(slots=True)
class Generation:
    """A GenStep under way.

    Attributes:
        start: position of its first token in the sequence.
        limit: length at which the sequence has no room for another token.
        ends: tokens that may end it instead of belonging to it.
        row: how to draw its next token; only what changes is set anew for each.
        restricted: whether something may ever forbid a token: a grammar, a healed prefix, min_tokens.
        seen: tokens of prompt and output, for the repetition penalty; None when that is off.
        counts: of the output's tokens, for the other penalties; None when those are off.
        forced: how many of its tokens were forced.
        queued: forced tokens that are not accepted yet: their log-probs were asked for, so each needs the
            logits of the row before it.
        speculate: whether guesses may be drafted.
        closer: ends the text within the budget, where that was asked for.
        guess: the last one.
        rates: how often its guesses were right.
        waiting: its grammar was not there to draw from the logits of its last token. Once it is, the token
            is computed again.
    """

    step: GenStep
    output: GenOutput
    matcher: Matcher | None
    start: int
    limit: int
    ends: frozenset[int]
    row: SamplerRow
    restricted: bool
    seen: set[int] | None
    counts: dict[int, int] | None
    forced: int = 0
    queued: list[int] = field(default_factory=list)
    speculate: bool = False
    closer: Closer | None = None
    guess: Guess | None = None
    rates: Rates | None = None
    waiting: bool = False

    @property
    def inject(self) -> bool:
        """What the grammar forces is appended as it is."""
        return self.step.gen.sampling.jump_forward == "inject"

    @property
    def verify(self) -> bool:
        """What the grammar forces is drafted, then drawn like any other token."""
        return self.matcher is not None and self.step.gen.sampling.jump_forward == "verify"


@dataclass(eq=False, slots=True)
class Sequence:
    """A branch on its way through the engine.

    Invariants: the keys and values of ``tokens[:computed]`` are in the slots that the table row names;
    the first `tree_len` of those slots belong to the prefix tree and are leased through `node`, the others
    to this sequence. It also owns the slots of the positions up to `held`: the step being built or under
    way writes those up to `claimed`, the rest is a reserve for later tokens.
    ``tree_len <= computed <= claimed <= held`` and ``computed <= len(tokens)``. While a step is under way,
    `tree_len` may be what will be computed after it.

    Attributes:
        key: `tokens` as the tree wants them, while the sequence waits and they can't change.
        cached_at, cached_length: how much of it the tree has, as of that version of the tree.
        literals: length up to the end of the last literals appended; what usage counts as prompt.
        known: the same with the tokens that a grammar forces right after them. These are prefilled in
            chunks, and their KV is given to the tree.
        index: of its tokens, once something was guessed from them.
    """

    job: Job
    sample: int
    tokens: list[int]
    cursor: int = 0
    computed: int = 0
    tree_len: int = 0
    claimed: int = 0
    held: int = 0
    node: Node | None = None
    row: int = -1
    literals: int = 0
    known: int = 0
    waited: int = 0
    key: NDArray[np.int32] | None = None
    cached_at: int = -1
    cached_length: int = 0
    retractions: int = 0
    prompt_len: int = 0
    prompt_cached: int = 0
    counted: int = 0
    account: Account = field(default_factory=lambda: Account(time.perf_counter()))
    generation: Generation | None = None
    selection: Selection | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    index: NgramIndex | None = None

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def held_back(self) -> bool:
        """The grammar of what is generated here is still being compiled.

        Before a generation, its last known token is not computed meanwhile, as what is forced after it
        comes in the same step.
        """
        generation = self.generation
        if generation is not None:
            matcher = generation.matcher
            return generation.waiting and matcher is not None and not matcher.catch_up()
        return self.at_gen is not None and self.at_gen.compiling is not None

    @property
    def prefilling(self) -> bool:
        """Known tokens are still being computed, so siblings may be waiting for them."""
        return self.computed < self.known

    @property
    def step(self) -> Step | None:
        """The step the sequence is at; None at the end of the block."""
        return self.job.steps[self.cursor] if self.cursor < len(self.job.steps) else None

    def enter_known(self) -> None:
        """Append the literals at the cursor, so that a Gen, a Select or the end comes next."""
        while isinstance(step := self.step, Known):
            self.tokens.extend(step.ids)
            self.cursor += 1
        self.known = self.literals = len(self.tokens)

    def count_cached(self, start: int, stop: int) -> None:
        """Usage: the tokens from `start` to `stop` were found in the cache."""
        start = max(start, self.counted)
        self.account.cached += max(0, min(stop, self.literals) - start)
        self.prompt_cached += max(0, min(stop, self.prompt_len) - start)
        self.counted = max(self.counted, stop)

    @property
    def at_gen(self) -> GenStep | None:
        return step if isinstance(step := self.step, GenStep) else None

    @property
    def at_select(self) -> SelectStep | None:
        return step if isinstance(step := self.step, SelectStep) else None
