"""A sequence's way through its blocks: literals are appended, segments begin and end, events go out."""

from __future__ import annotations

import time
from collections.abc import Callable

from stolon.errors import ContextLengthExceeded, InternalError, StolonError
from stolon.srt.admission import CONTEXT_HINT
from stolon.srt.client import EngineStats
from stolon.srt.generating import Generator
from stolon.srt.job import Job
from stolon.srt.kv_space import KVSpace
from stolon.srt.protocol import (
    Delta,
    Event,
    Failed,
    Finish,
    GenResult,
    SampleDone,
    SegmentDone,
    SelectResult,
)
from stolon.srt.sampling import BrokenLogits, draw_key
from stolon.srt.scheduler import Scheduler
from stolon.srt.sequence import Account, Generation, Sequence


class Walker:
    """Advances sequences through their blocks.

    A fault in one sequence fails its request and nothing else (promise P3): what is done for one
    sequence runs behind `guard`.

    Args:
        model: file or name of the model, for errors that are about its weights.
    """

    def __init__(
        self,
        generator: Generator,
        scheduler: Scheduler,
        space: KVSpace,
        stats: EngineStats,
        *,
        context_length: int,
        model: str,
    ) -> None:
        self._generator = generator
        self._scheduler = scheduler
        self._space = space
        self._stats = stats
        self._context_length = context_length
        self._model = model

    # Beginning and ending

    def start(self, seq: Sequence) -> None:
        """A queued sequence reaches its first step, before anything is computed."""
        if not seq.job.over:
            self.guard(seq, lambda: self._enter(seq))

    def resume(self, seq: Sequence) -> None:
        """The grammar that a sequence may have waited for is there."""
        if not seq.job.over and seq.generation is None and seq.at_gen and not seq.held_back:
            seq.key = None  # what is forced changes its tokens, also while it is queued
            seq.cached_at = -1
            self.guard(seq, lambda: self._begin(seq))

    def fail(self, job: Job, error: StolonError) -> None:
        """End a whole request with an error."""
        for seq in self._scheduler.of_job(job):
            self._scheduler.remove(seq)
        if not job.over:
            job.over = True
            self._stats.failed += 1
            job.on_event(Failed.of(job.request.rid, error))

    def abort(self, seq: Sequence) -> None:
        """End one sample with what it has."""
        seq.job.aborted = True
        gen = seq.at_gen
        if gen is not None and seq.generation is not None:
            self._report(seq, seq.generation, Finish(kind="abort"))
        elif gen is not None and seq.held_back:
            usage = seq.account.usage(forced=0, sampled=0, retractions=seq.retractions)
            nothing = GenResult(text="", token_ids=[], finish=Finish(kind="abort"), usage=usage)
            self._segment_done(seq, gen.segment, nothing)
        self.finish_sample(seq)

    def guard(self, seq: Sequence, action: Callable[[], None]) -> None:
        """Do something for a sequence; an error of it fails the request."""
        try:
            action()
        except StolonError as error:
            self.fail_at(seq, error)

    def fail_at(self, seq: Sequence, error: StolonError) -> None:
        """End the request of a sequence with an error of its current segment."""
        if isinstance(error, BrokenLogits):
            error.where = self._model
        step = seq.at_gen or seq.at_select
        if step is not None and error.segment is None:
            error.segment = step.segment
        self.fail(seq.job, error)

    # Segments

    def _enter(self, seq: Sequence) -> None:
        """Append the literals at the cursor and begin what follows them."""
        seq.enter_known()
        room = self._context_length - len(seq.tokens)
        select = seq.at_select
        longest = max(map(len, select.choices)) if select is not None else 0
        if longest > room or room < 0:
            raise ContextLengthExceeded(
                f"the sequence needs {len(seq.tokens) + longest} tokens; this engine's context is "
                f"{self._context_length}",
                param="prompt",
                hint=CONTEXT_HINT,
            )
        if seq.at_gen is not None:
            seq.account.prompt_tokens = len(seq.tokens)
            if not seq.held_back:
                self._begin(seq)
        elif select is not None:
            seq.account.prompt_tokens = len(seq.tokens)
        elif len(seq.job.steps) > 1:
            # Trailing literals are computed when something follows them.
            self.finish_sample(seq)

    def _begin(self, seq: Sequence) -> None:
        gen = seq.at_gen
        finish = None if gen is None else self._generator.begin(seq, gen)
        if finish is not None and seq.generation is not None:
            self.end_generation(seq, seq.generation, finish)

    def end_generation(self, seq: Sequence, generation: Generation, finish: Finish) -> None:
        """The current segment is generated: report it and go to what follows it."""
        self._report(seq, generation, finish)
        self._next(seq)

    def _report(self, seq: Sequence, generation: Generation, finish: Finish) -> None:
        """A generation's tokens are final: settle them in the sequence and tell the caller."""
        output = generation.output
        finish = output.finish(finish)
        self._settle(seq, generation.start, output.token_ids)
        if seq.job.request.stream:
            self.stream(seq, generation)
        forced = min(generation.forced, len(output.token_ids))
        result = GenResult(
            text=output.text,
            token_ids=list(output.token_ids),
            finish=finish,
            usage=seq.account.usage(
                forced=forced,
                sampled=len(output.token_ids) - forced,
                retractions=seq.retractions,
            ),
            logprobs=output.logprobs,
        )
        self._segment_done(seq, generation.step.segment, result)

    def _settle(self, seq: Sequence, start: int, tokens: list[int]) -> None:
        """Put the final tokens from `start` on; forget the KV of those that a stop cut off."""
        old = seq.tokens[start:]
        if old == tokens:
            return
        agree = 0
        while agree < min(len(old), len(tokens)) and old[agree] == tokens[agree]:
            agree += 1
        if seq.row >= 0:
            self._space.rewind(seq, start + agree)
        seq.tokens[start:] = tokens

    def stream(self, seq: Sequence, generation: Generation) -> None:
        """Send what is new and final in a generation's text."""
        piece = generation.output.take()
        if piece is not None:
            delta = Delta(
                rid=seq.job.request.rid,
                sample=seq.sample,
                segment=generation.step.segment,
                text=piece.text,
                token_ids=piece.token_ids,
                logprobs=piece.logprobs,
            )
            self.emit(seq, delta)

    def finish_select(self, seq: Sequence) -> None:
        """All choices are scored: append the winner, report it and go to what follows it."""
        step = seq.at_select
        if step is None or seq.selection is None:
            raise InternalError("a selection ended outside a select")
        index, scores = seq.selection.result(
            step.select.choices,
            temperature=step.select.temperature,
            key=draw_key(step.seed, seq.sample, len(seq.tokens)),
        )
        tokens = step.choices[index]
        seq.account.first_token = time.perf_counter()
        seq.tokens.extend(tokens)
        self._stats.forced_tokens += len(tokens)
        result = SelectResult(
            text=step.select.choices[index],
            index=index,
            token_ids=tokens,
            scores=scores,
            usage=seq.account.usage(forced=len(tokens), sampled=0, retractions=seq.retractions),
        )
        self._segment_done(seq, step.segment, result)
        self._next(seq)

    def _next(self, seq: Sequence) -> None:
        """The current segment is done: go to what follows it."""
        seq.generation = None
        seq.selection = None
        seq.cursor += 1
        seq.account = Account(time.perf_counter())
        seq.counted = len(seq.tokens)
        self._enter(seq)

    # Events

    def finish_sample(self, seq: Sequence) -> None:
        """A sequence is at its end, or is to go no further: let go of it and say so."""
        self._scheduler.remove(seq)
        self._stats.prompt_tokens += seq.prompt_len
        self._stats.cached_tokens += seq.prompt_cached
        job = seq.job
        job.unfinished -= 1
        if not job.unfinished:
            job.over = True
            self._stats.aborted += job.aborted
            self._stats.finished += not job.aborted
        done = SampleDone(
            rid=seq.job.request.rid,
            sample=seq.sample,
            token_ids=list(seq.tokens),
            prompt_tokens=seq.prompt_len,
            cached_tokens=seq.prompt_cached,
        )
        self.emit(seq, done)

    def _segment_done(self, seq: Sequence, segment: int, result: GenResult | SelectResult) -> None:
        done = SegmentDone(
            rid=seq.job.request.rid, sample=seq.sample, segment=segment, result=result
        )
        self.emit(seq, done)

    @staticmethod
    def emit(seq: Sequence, event: Event) -> None:
        seq.job.on_event(event)
