"""Token by token through one generation: what may be sampled, what a grammar forces, when it ends."""

from __future__ import annotations

import time

import numpy as np

from stolon.constrained import Closer
from stolon.errors import GrammarError, InternalError, StolonError
from stolon.srt.boundary import AllowList
from stolon.srt.client import EngineStats
from stolon.srt.job import GenStep
from stolon.srt.output import GenOutput
from stolon.srt.protocol import Finish, TokenLogprob
from stolon.srt.sampling import SamplerRow, TokenMask
from stolon.srt.sequence import Generation, Sequence
from stolon.srt.tokenizer import Tokenizer


class Generator:
    """Advances generations. Knows tokens and grammars, not slots or events.

    Args:
        context_length: the longest sequence, in tokens; a generation that reaches it ends with `length`.
    """

    def __init__(self, tokenizer: Tokenizer, stats: EngineStats, *, context_length: int) -> None:
        self._tokenizer = tokenizer
        self._stats = stats
        self._context_length = context_length

    def begin(self, seq: Sequence, step: GenStep) -> Finish | None:
        """Start a generation and append what its grammar forces at once: a part of the prompt."""
        sampling = step.gen.sampling
        output = GenOutput(
            self._tokenizer,
            sampling,
            step.stop_regexes,
            prefix=step.prefix,
            logprobs=step.gen.logprobs is not None,
            streamed=seq.job.request.stream,
        )
        start = len(seq.tokens)
        limit = self._context_length
        if sampling.max_tokens is not None:
            limit = min(limit, start + sampling.max_tokens)
        ends = frozenset(sampling.stop_token_ids)
        if step.grammar is not None or not sampling.ignore_eos:
            ends |= self._tokenizer.eos_ids
        counted = sampling.presence_penalty or sampling.frequency_penalty
        counts: dict[int, int] | None = {} if counted else None
        seen = set(seq.tokens) if sampling.repetition_penalty != 1.0 else None
        row = SamplerRow(
            sampling=sampling,
            seed=step.seed,
            sample=seq.sample,
            logprobs=step.gen.logprobs,
            output_counts={} if counts is None else counts,
            seen=seen,
        )
        seq.generation = generation = Generation(
            step,
            output,
            step.grammar.start(wait=False) if step.grammar is not None else None,
            start,
            limit,
            ends,
            row,
            restricted=(
                step.grammar is not None or step.first_mask is not None or sampling.min_tokens > 0
            ),
            seen=seen,
            counts=counts,
            speculate=sampling.speculation == "auto",
        )
        if step.closing is not None:
            generation.closer = Closer(step.closing, inject=generation.inject)
        if sampling.max_tokens == 0:
            return None
        if len(seq.tokens) >= self._context_length:
            return Finish(kind="length")
        finish = self._force(seq, generation)
        seq.known = len(seq.tokens)
        return finish

    def sampler_row(self, seq: Sequence, generation: Generation) -> SamplerRow | StolonError | None:
        """How to draw the next token; an error if the grammar is at a dead end or broken.

        None if that can't be told yet: the generation is `waiting`.
        """
        row = generation.row
        row.position = len(seq.tokens)
        if generation.restricted:
            refusal = self._restrict(generation, row)
            if refusal is not None:
                return refusal
            if generation.waiting:
                return None
        return row

    def _restrict(self, generation: Generation, row: SamplerRow) -> StolonError | None:
        """Set what may come next."""
        step = generation.step
        sampling = step.gen.sampling
        count = len(generation.output.token_ids)
        mask: TokenMask | None = None
        if generation.queued:
            mask = AllowList(np.array(generation.queued[:1], np.int64))
        elif generation.matcher is not None:
            matcher = generation.matcher
            mask = matcher.mask()
            if mask.count == 0 and matcher.error is None:
                generation.waiting = not matcher.catch_up()
                if generation.waiting:
                    return None
                mask = matcher.mask()
            generation.waiting = False
            if matcher.error is not None:
                return matcher.error
            if mask.count == 0:
                return GrammarError("the grammar allows no further token", param="grammar")
        elif step.first_mask is not None and count == 0:
            mask = step.first_mask
        banned: tuple[int, ...] = ()
        if count < sampling.min_tokens:
            banned = (*self._tokenizer.eos_ids, *sampling.stop_token_ids)
        row.mask, row.banned = mask, banned
        return None

    def take(
        self, seq: Sequence, generation: Generation, token: int, logprob: TokenLogprob | None
    ) -> Finish | None:
        """Accept a sampled token, and what is forced after it. Returns the end, if it is one."""
        if seq.account.first_token is None:
            seq.account.first_token = time.perf_counter()
        closer, matcher = generation.closer, generation.matcher
        if closer is not None and matcher is not None and not generation.queued:
            chosen = closer.choose(matcher, token, generation.limit - len(seq.tokens))
            if chosen != token:
                token, logprob = chosen, logprob and TokenLogprob(chosen, None)
        if token in generation.ends:
            finish = self._ends_at(generation, token)
            if finish is not None:
                return finish
        if generation.queued:
            generation.queued.pop(0)
            self._count_forced(generation)
        else:
            self._stats.sampled_tokens += 1
        finish = self._append(seq, generation, token, logprob)
        if finish is None and generation.matcher is not None and not generation.queued:
            finish = self._force(seq, generation)
        return finish

    def _count_forced(self, generation: Generation) -> None:
        generation.forced += 1
        self._stats.forced_tokens += 1

    def _ends_at(self, generation: Generation, token: int) -> Finish | None:
        """Whether a token ends the generation instead of belonging to it."""
        sampling = generation.step.gen.sampling
        if token in self._tokenizer.eos_ids and (
            generation.matcher is not None or not sampling.ignore_eos
        ):
            return Finish(kind="stop", matched=token)
        if token in sampling.stop_token_ids and (
            len(generation.output.token_ids) >= sampling.min_tokens
        ):
            return Finish(kind="stop", matched=token)
        return None

    def _force(self, seq: Sequence, generation: Generation) -> Finish | None:
        """Append the tokens that the grammar forces now; they are computed with the sampled one.

        When log-probs are asked for, they are computed first and accepted after, so that each has the
        logits of the row before it.
        """
        matcher = generation.matcher
        if matcher is None:
            return None
        if matcher.finished:
            return Finish(kind="stop")
        if not generation.inject:
            return None
        forced = matcher.forced()
        if generation.step.gen.logprobs is not None:
            generation.queued = forced
            return None
        for token in forced:
            finish = self._ends_at(generation, token)
            if finish is None:
                self._count_forced(generation)
                finish = self._append(seq, generation, token, None)
            if finish is not None:
                return finish
        return None

    def _append(
        self,
        seq: Sequence,
        generation: Generation,
        token: int,
        logprob: TokenLogprob | None,
    ) -> Finish | None:
        matcher = generation.matcher
        if matcher is not None and not matcher.accept(token):
            raise matcher.error or InternalError("the grammar refused a token it had allowed")
        if generation.closer is not None:
            generation.closer.took(token)
        seq.tokens.append(token)
        if generation.counts is not None:
            generation.counts[token] = generation.counts.get(token, 0) + 1
        if generation.seen is not None:
            generation.seen.add(token)
        finish = generation.output.push(token, logprob)
        if finish is not None:
            return finish
        if matcher is not None and matcher.finished:
            return Finish(kind="stop")
        if len(seq.tokens) < generation.limit:
            return None
        whole = generation.closer is not None and matcher is not None and matcher.accepting
        return Finish(kind="stop" if whole else "length")
