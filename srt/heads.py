"""How much of the output head a step needs: of most rows all of it, of others a few tokens or nothing.

A mask is known before the step whose logits it restricts. Where it leaves a few tokens, only their logits
are computed; where it leaves one, that is the next token.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stolon.srt.client import EngineStats
from stolon.srt.generating import Generator
from stolon.srt.plan import Plan, Run
from stolon.srt.protocol import TokenLogprob
from stolon.srt.sampling import Sampled, SamplerRow

SHORT_LIST = 128
"""Most tokens that are computed alone. They lie anywhere in the head: 16 columns are computed for one."""
FEW_ROWS = 8
"""With so few output rows the head takes as long as reading it: if one of them needs it all, it is no
cheaper for the others to do without."""

Ids = NDArray[np.int64]


class Heads:
    """Decides which logits of a plan are computed.

    Args:
        short_list: most tokens of a list that is computed alone; 0 computes every row in full.
    """

    def __init__(
        self, generator: Generator, stats: EngineStats, *, short_list: int = SHORT_LIST
    ) -> None:
        self._generator = generator
        self._stats = stats
        self.short_list = short_list

    def cut(self, plan: Plan, outputs: int) -> tuple[list[int], list[Ids]] | None:
        """Look ahead at what the restricted runs of a plan with so many output rows may draw.

        Returns:
            The output rows that are left, in their new order, which the plan knows of, and a short list
            for each of the last ones; None if every row is needed in full.
        """
        short: list[tuple[Run, Ids]] = []
        less: set[int] = set()
        for run in plan.restricted:
            if run.first_output in plan.shared:
                continue
            row = self._row(run)
            mask = None if row is None else row.mask
            allowed = None if mask is None else mask.allow
            if row is None or allowed is None or not 0 < len(allowed) <= self.short_list:
                continue
            if len(allowed) == 1:
                run.decided = _only(int(allowed[0]), row)
                run.outputs = 0
                less.add(run.first_output)
            else:
                short.append((run, allowed))
        left = outputs - len(less)
        if left <= FEW_ROWS and len(short) < left:
            short = []
        less.update(run.first_output for run, _ in short)
        if not less:
            return None
        self._stats.short_heads += len(short)
        self._stats.skipped_heads += len(less) - len(short)
        order = [at for at in range(outputs) if at not in less]
        order += [run.first_output for run, _ in short]
        places = {old: new for new, old in enumerate(order)}
        for run in plan.runs:
            run.first_output = places.get(run.first_output, 0)
        for trie in plan.tries:
            trie.first_output = places.get(trie.first_output, 0)
        return order, [allowed for _, allowed in short]

    def _row(self, run: Run) -> SamplerRow | None:
        """How a run's next token is drawn, if that can be told and nothing else is asked of its logits."""
        seq, generation = run.seq, run.seq.generation
        if generation is None or run.stop >= generation.limit:
            return None
        spec = generation.step.gen.logprobs
        if spec is not None and spec.mode != "processed":
            return None
        row = self._generator.sampler_row(seq, generation)
        run.row = row if isinstance(row, SamplerRow) else None
        return run.row


def _only(token: int, row: SamplerRow) -> Sampled:
    """What drawing from one token gives."""
    if row.logprobs is None:
        return Sampled(token)
    return Sampled(token, TokenLogprob(token, 0.0, [(token, 0.0)] if row.logprobs.top else []))
