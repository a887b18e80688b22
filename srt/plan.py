"""One step as it is planned: which rows extend which sequences, and which of them have logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stolon.kernels import RaggedBatch
from stolon.radix import Node
from stolon.srt.drafting import Draft
from stolon.srt.sampling import Sampled, SamplerRow
from stolon.srt.selecting import Group
from stolon.srt.sequence import Sequence


@dataclass(slots=True)
class Run:
    """Rows that extend one sequence by the tokens at positions `start` to `stop`.

    `first_output` is the first of its output rows; `outputs` their number (0, 1, or all rows of a prompt
    whose log-probs are wanted). A run of no rows takes the output row of one that ends with the same
    tokens. The rows of a draft follow, each with an output row; the draws agree with the first `agreed` of
    them.

    `row` is how the next token is drawn, where that was worked out ahead of the step; `decided` is that
    token, where there is no other: then nothing is computed to draw it from.
    """

    seq: Sequence
    start: int
    stop: int
    first_output: int = 0
    outputs: int = 0
    draft: Draft | None = None
    agreed: int = 0
    row: SamplerRow | None = None
    decided: Sampled | None = None

    @property
    def last_output(self) -> int:
        """The output row of the last token that the sequence has."""
        return self.first_output + self.outputs - 1 + self.agreed


@dataclass(slots=True)
class TrieRows:
    """A selection's group in this step: its output rows and the slots to give back after it."""

    seq: Sequence
    group: Group
    first_output: int
    slots: NDArray[np.int64]
    rows: list[int]


@dataclass(slots=True)
class Plan:
    """One step. Its batch is valid until the next is planned."""

    runs: list[Run] = field(default_factory=list)
    decoding: int = 0
    """How many of the runs, the first ones, are a row of a sequence that samples a token each step."""
    tries: list[TrieRows] = field(default_factory=list)
    restricted: list[Run] = field(default_factory=list)
    """Those of the runs with one output row whose next token a grammar or a ban may restrict."""
    stuck: list[Sequence] = field(default_factory=list)
    """Sequences that can't grow although they are alone: the pool is too small for them."""
    held_back: list[Sequence] = field(default_factory=list)
    """Sequences that wait for a grammar, with nothing to compute meanwhile."""
    ends: dict[Node, int] = field(default_factory=dict)
    """Where prompts of this step end in the tree, and the output row of their last token."""
    shared: set[int] = field(default_factory=set)
    """Output rows that several runs take."""
    batch: RaggedBatch | None = None

    @property
    def whole(self) -> int:
        """How many of the output rows have all their logits; the others have those of a short list."""
        batch = self.batch
        return 0 if batch is None else len(batch.output_rows) - len(batch.short_lists)
