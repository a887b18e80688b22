"""What a step's logits mean: sequences advance through their blocks, segments end, events go out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stolon.errors import ContextLengthExceeded, InternalError, StolonError
from stolon.srt.admission import CONTEXT_HINT, Job
from stolon.srt.client import EngineStats
from stolon.srt.drafting import Draft
from stolon.srt.generating import Generator
from stolon.srt.kv_space import KVSpace
from stolon.srt.plan import Plan, Run, TrieRows
from stolon.srt.prompt_scoring import score_prompt
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
from stolon.srt.sampling import Floats, Sampled, SamplerRow, draw_key, sample
from stolon.srt.scheduler import Scheduler
from stolon.srt.sequence import Account, Generation, Sequence


class Walker:
    """Advances sequences through their blocks.

    A fault in one sequence fails its request and nothing else (promise P3): what is done for one
    sequence runs behind `_guard`.

    Args:
        team: that samples (see `sampling.sample`); None for numpy.
        columns: of the logits that stand for tokens, where the model's output is padded beyond them.
    """

    def __init__(
        self,
        generator: Generator,
        scheduler: Scheduler,
        space: KVSpace,
        stats: EngineStats,
        *,
        context_length: int,
        team: Any = None,
        columns: int | None = None,
    ) -> None:
        self._team = team
        self._columns = columns
        self._generator = generator
        self._scheduler = scheduler
        self._space = space
        self._stats = stats
        self._context_length = context_length

    # Beginning and ending

    def start(self, seq: Sequence) -> None:
        """A queued sequence reaches its first step, before anything is computed."""
        if not seq.job.over:
            self._guard(seq, lambda: self._enter(seq))

    def resume(self, seq: Sequence) -> None:
        """The grammar that a sequence may have waited for is there."""
        if not seq.job.over and seq.generation is None and seq.at_gen and not seq.held_back:
            seq.key = None  # what is forced changes its tokens, also while it is queued
            seq.cached_at = -1
            self._guard(seq, lambda: self._begin(seq))

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
        gen = seq.at_gen
        if gen is not None and seq.generation is not None:
            self._report(seq, seq.generation, Finish(kind="abort"))
        elif gen is not None and seq.held_back:
            usage = seq.account.usage(forced=0, sampled=0, retractions=seq.retractions)
            nothing = GenResult(text="", token_ids=[], finish=Finish(kind="abort"), usage=usage)
            self._segment_done(seq, gen.segment, nothing)
        self._stats.aborted += 1
        self._finish_sample(seq)

    def _guard(self, seq: Sequence, action: Callable[[], None]) -> None:
        try:
            action()
        except StolonError as error:
            self._fail_at(seq, error)

    def _fail_at(self, seq: Sequence, error: StolonError) -> None:
        step = seq.at_gen or seq.at_select
        if step is not None and error.segment is None:
            error.segment = step.segment
        self.fail(seq.job, error)

    # One step

    def apply(self, plan: Plan, logits: Floats) -> float:
        """Take the logits ``[outputs, vocab]`` of a computed plan.

        Returns the seconds that sampling took.
        """
        if self._columns is not None:
            logits = logits[:, : self._columns]
        for run in plan.runs:
            self._space.keep(run.seq, run.stop)
            if run.draft is not None:
                drafted = len(run.draft.tokens) - min(run.draft.certain, len(run.draft.tokens))
                run.seq.account.drafted += drafted
                self._stats.drafted_tokens += drafted
            if run.start < run.seq.known:
                self._computed(run)
        for trie in plan.tries:
            self._space.pool.free(trie.slots)
        others = plan.runs[plan.decoding :]
        for run in others:
            if run.outputs and run.seq.job.request.prompt_logprobs is not None:
                self._guard(run.seq, lambda run=run: self._score_prompt(run, logits))  # type: ignore[misc]
        if others or plan.tries:
            self._select(others, plan.tries, logits)
        sample_time = self._sample(plan, logits)
        for run in plan.runs:
            seq = run.seq
            if seq.generation is None and seq.step is None and not seq.pending and seq.row >= 0:
                self._finish_sample(seq)
        return sample_time

    def _computed(self, run: Run) -> None:
        """Known tokens were computed: count them, and let siblings that share them go on from here."""
        seq = run.seq
        settled = min(run.stop, seq.literals)
        fresh = max(0, settled - max(run.start, seq.counted))
        seq.counted = max(seq.counted, settled)
        seq.account.computed += fresh
        self._stats.computed_tokens += fresh
        self._space.share(seq)
        self._scheduler.wake()

    def _score_prompt(self, run: Run, logits: Floats) -> None:
        done = score_prompt(run, logits, team=self._team)
        if done is not None:
            self._scheduler.wake()
            self._emit(run.seq, done)

    def _select(self, runs: list[Run], tries: list[TrieRows], logits: Floats) -> None:
        touched: dict[Sequence, None] = {}
        for run in runs:
            selection = run.seq.selection
            if run.outputs and selection is not None and run.stop == len(run.seq.tokens):
                selection.take_root(logits[run.last_output], team=self._team)
                touched[run.seq] = None
        for trie in tries:
            if trie.seq.selection is not None:
                last = trie.first_output + trie.group.trie.rows
                trie.seq.selection.record(
                    trie.group, logits[trie.first_output : last], team=self._team
                )
                touched[trie.seq] = None
        for seq in touched:
            if seq.selection is not None and seq.selection.done:
                self._guard(seq, lambda seq=seq: self._finish_select(seq))  # type: ignore[misc]

    def _sample(self, plan: Plan, logits: Floats) -> float:
        """Draw the next token of every generation, and, while the draws agree with a draft, the one
        after it: a draft is drawn token by token, in rounds, as steps of their own would."""
        turns: list[tuple[Run, Generation]] = []
        for run in plan.runs:
            seq = run.seq
            generation = seq.generation
            if generation is None or seq.row < 0 or run.stop != len(seq.tokens):
                continue
            if run.stop >= generation.limit:
                # It was to generate nothing, but wanted its prompt computed.
                self._end_generation(seq, generation, Finish(kind="length"))
                continue
            if run.decided is None:
                turns.append((run, generation))
            else:
                self._advance(run, generation, run.decided)
        sample_time = 0.0
        while turns:
            chosen: list[tuple[Run, Generation]] = []
            outputs: list[int] = []
            rows: list[SamplerRow] = []
            for run, generation in turns:
                row = run.row or self._generator.sampler_row(run.seq, generation)
                if row is None:
                    continue
                if isinstance(row, StolonError):
                    self._fail_at(run.seq, row)
                    continue
                chosen.append((run, generation))
                rows.append(row)
                outputs.append(run.last_output)
            if not chosen:
                break
            begun = time.perf_counter()
            drawn = sample(logits, rows, team=self._team, places=outputs, whole=plan.whole)
            sample_time += time.perf_counter() - begun
            turns = [
                (run, generation)
                for (run, generation), token in zip(chosen, drawn, strict=True)
                if self._advance(run, generation, token)
            ]
        return sample_time

    def _advance(self, run: Run, generation: Generation, token: Sampled | StolonError) -> bool:
        """Take what was drawn for a run. Returns whether the run has logits for the token after it too."""
        seq = run.seq
        if seq.job.over:
            return False
        if isinstance(token, StolonError):
            self._fail_at(seq, token)
            return False
        try:
            finish = self._generator.take(seq, generation, token.token, token.logprob)
            if run.draft is not None:
                self._agree(run, run.draft)
            if finish is not None:
                self._end_generation(seq, generation, finish)
                return False
            if seq.job.request.stream:
                self._stream(seq, generation)
        except StolonError as error:
            self._fail_at(seq, error)
            return False
        return run.draft is not None and run.stop + run.agreed == len(seq.tokens)

    def _agree(self, run: Run, draft: Draft) -> None:
        """Keep the keys and values of a draft as far as the sequence went the same way."""
        seq, tokens, before = run.seq, draft.tokens, run.agreed
        after = seq.tokens[run.stop + before :]
        for token, expected in zip(after, tokens[before:], strict=False):
            if token != expected:
                break
            run.agreed += 1
        self._space.keep(seq, run.stop + run.agreed)
        accepted = max(0, run.agreed - max(before, draft.certain))
        seq.account.accepted += accepted
        self._stats.accepted_tokens += accepted

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
            self._finish_sample(seq)

    def _begin(self, seq: Sequence) -> None:
        gen = seq.at_gen
        finish = None if gen is None else self._generator.begin(seq, gen)
        if finish is not None and seq.generation is not None:
            self._end_generation(seq, seq.generation, finish)

    def _end_generation(self, seq: Sequence, generation: Generation, finish: Finish) -> None:
        self._report(seq, generation, finish)
        self._next(seq)

    def _report(self, seq: Sequence, generation: Generation, finish: Finish) -> None:
        """A generation's tokens are final: settle them in the sequence and tell the caller."""
        output = generation.output
        finish = output.finish(finish)
        self._settle(seq, generation.start, output.token_ids)
        if seq.job.request.stream:
            self._stream(seq, generation)
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

    def _stream(self, seq: Sequence, generation: Generation) -> None:
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
            self._emit(seq, delta)

    def _finish_select(self, seq: Sequence) -> None:
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

    def _finish_sample(self, seq: Sequence) -> None:
        self._scheduler.remove(seq)
        self._stats.prompt_tokens += seq.prompt_len
        self._stats.cached_tokens += seq.prompt_cached
        done = SampleDone(
            rid=seq.job.request.rid,
            sample=seq.sample,
            token_ids=list(seq.tokens),
            prompt_tokens=seq.prompt_len,
            cached_tokens=seq.prompt_cached,
        )
        self._emit(seq, done)

    def _segment_done(self, seq: Sequence, segment: int, result: GenResult | SelectResult) -> None:
        done = SegmentDone(
            rid=seq.job.request.rid, sample=seq.sample, segment=segment, result=result
        )
        self._emit(seq, done)

    @staticmethod
    def _emit(seq: Sequence, event: Event) -> None:
        seq.job.on_event(event)
