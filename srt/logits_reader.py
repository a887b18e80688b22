"""What a step's logits mean: tokens drawn, drafts kept as far as they agree, choices and prompts scored."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from stolon.errors import StolonError
from stolon.srt.client import EngineStats
from stolon.srt.drafting import Draft
from stolon.srt.generating import Generator
from stolon.srt.kv_space import KVSpace
from stolon.srt.plan import Plan, Run, TrieRows
from stolon.srt.prompt_scoring import score_prompt
from stolon.srt.protocol import Finish
from stolon.srt.sampling import Floats, Sampled, SamplerRow, sample
from stolon.srt.scheduler import Scheduler
from stolon.srt.sequence import Generation, Sequence
from stolon.srt.walker import Walker


class LogitsReader:
    """Reads the logits of each step, and lets the walker go on where that ends something.

    Args:
        team: that samples (see `sampling.sample`); None for numpy.
        columns: of the logits that stand for tokens, where the model's output is padded beyond them.
    """

    def __init__(
        self,
        walker: Walker,
        generator: Generator,
        scheduler: Scheduler,
        space: KVSpace,
        stats: EngineStats,
        *,
        team: Any = None,
        columns: int | None = None,
    ) -> None:
        self._walker = walker
        self._generator = generator
        self._scheduler = scheduler
        self._space = space
        self._stats = stats
        self._team = team
        self._columns = columns

    def read(self, plan: Plan, logits: Floats) -> float:
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
                self._walker.guard(run.seq, partial(self._score_prompt, run, logits))
        if others or plan.tries:
            self._select(others, plan.tries, logits)
        sample_time = self._sample(plan, logits)
        for run in plan.runs:
            seq = run.seq
            if seq.generation is None and seq.step is None and not seq.pending and seq.row >= 0:
                self._walker.finish_sample(seq)
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
            self._walker.emit(run.seq, done)

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
                self._walker.guard(seq, partial(self._walker.finish_select, seq))

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
                self._walker.end_generation(seq, generation, Finish(kind="length"))
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
                    self._walker.fail_at(run.seq, row)
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
            self._walker.fail_at(seq, token)
            return False
        try:
            finish = self._generator.take(seq, generation, token.token, token.logprob)
            if run.draft is not None:
                self._agree(run, run.draft)
            if finish is not None:
                self._walker.end_generation(seq, generation, finish)
                return False
            if seq.job.request.stream:
                self._walker.stream(seq, generation)
        except StolonError as error:
            self._walker.fail_at(seq, error)
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
