"""CPU kernels and the program that runs them.

Arrays may be NumPy's or anything with DLPack, in main memory, contiguous and aligned. Every argument is
checked; ValueError and TypeError name the op and the argument. What is kept beyond a call says so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

def instruction_sets() -> list[str]:
    """Those that this processor runs, best first: of ``amx``, ``avx512``, ``avx2``, ``portable``."""

class Team:
    """Threads that compute together; the one that calls is the first of them.

    Several may call at once: they take turns. A forked child has threads of its own from its first call
    on. ValueError for an instruction set that this processor lacks.
    """

    def __init__(self, threads: int, isa: str = "") -> None: ...
    @property
    def threads(self) -> int: ...
    @property
    def isa(self) -> str: ...

class Matrix:
    """A weight ``[columns, inputs]``, packed: column n of a product comes from its row n."""

    @property
    def kind(self) -> str: ...
    @property
    def columns(self) -> int: ...
    @property
    def inputs(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def column(self, n: int) -> Floats:
        """Row n of the weight, float32 ``[inputs]``."""

def pack(team: Team, kind: str, data: NDArray[np.uint8], columns: int, inputs: int) -> Matrix:
    """Pack a weight from the bytes that a GGUF file stores.

    Args:
        kind: F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K Q6_K.
        data: uint8 ``[bytes]``, copied.
    """

def bandwidth(team: Team, bytes: int, repeats: int = 3) -> float:
    """Gigabytes a second that all threads together read from `bytes` of memory; the best of `repeats`."""

def sample(
    team: Team, logits: Floats, rows: list[tuple[Any, ...]], places: Sequence[int] | None = None
) -> list[Any]:
    """Choose a token for every row.

    Args:
        logits: float32 ``[*, vocab]``, rows contiguous. Of a row whose mask is a list (form 4) only the
            logits of the list are read. As before afterwards; where it is writable, denied
            tokens are -inf in it meanwhile.
        rows: ``(temperature, top_k, top_p, min_p, seed, sample, position, report, top, changes)`` each.
        places: row of `logits` of each; default one after the other.

    Returns:
        For each row a token; or, where log-probs were asked for, ``(token, logprob, alternatives)``; or a
        negative fault number; or the text of what is wrong with the row.
    """

def log_totals(team: Team, logits: Floats, places: Sequence[int] | None = None) -> list[float]:
    """The log of the sum of e^logit of every row; NaN for one with a NaN or nothing finite."""

class Step:
    """One step's rows and where their keys and values live, as `RaggedBatch` describes them.

    int64 arrays, kept. They may be larger than a step needs: `resize` says how much of them it uses.
    """

    def __init__(
        self,
        input_ids: Ints,
        positions: Ints,
        write_slots: Ints,
        q_lens: Ints,
        kv_lens: Ints,
        slot_table: Ints,
        table_rows: Ints,
        output_rows: Ints,
        short_lists: Sequence[Ints] = (),
    ) -> None: ...
    def resize(self, rows: int, runs: int, outputs: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def runs(self) -> int: ...
    @property
    def outputs(self) -> int: ...

class Rotary:
    """Cosines and sines of rotary embeddings, computed in float64 as positions come into use.

    Args:
        frequencies: float64 ``[head_dim / 2]``, radians a position.
        positions: most of them; beyond it a step is refused.
    """

    def __init__(self, frequencies: NDArray[np.float64], positions: int) -> None: ...
    @property
    def positions(self) -> int: ...

class Program:
    """The kernel calls of one model step, recorded once and run with the arrays of each step.

    Recording calls take and return numbers of buffers, virtual float32 ``[rows, width]``. Matrices and
    arrays that they are given are kept.
    """

    def __init__(self, team: Team) -> None: ...
    def input(self, width: int) -> int:
        """Filled from `inputs` of `run`, in order."""

    def embed(self, table: Matrix, scale: float) -> int:
        """Rows of the table, by the step's ids, times `scale`."""

    def norm(self, x: int, weight: Floats, eps: float, add: int = -1) -> int:
        """``x / sqrt(mean(x^2) + eps) * weight (+ add)``."""

    def linear(
        self, x: int, weights: list[Matrix], bias: Floats | None = None, residual: int = -1
    ) -> int:
        """Products with all weights side by side ``(+ bias) (+ residual)``."""

    def gated(self, x: int, gate: list[Matrix], up: list[Matrix], activation: str) -> int:
        """``activation(x gate) * (x up)``; the activation is ``silu`` or ``gelu_tanh``."""

    def add(self, x: int, y: int) -> int: ...
    def attend(
        self,
        qkv: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        head_norm: Floats | None = None,
        eps: float = 0.0,
        rotary: Rotary,
        cache_k: NDArray[Any],
        cache_v: NDArray[Any],
    ) -> int:
        """Rotate queries and keys of qkv ``[rows, (heads + 2 kv_heads) * head_dim]``, write keys and
        values to their slots, attend: ``[rows, heads * head_dim]``.

        Args:
            window, softcap: 0 is none.
            head_norm: ``[heads + kv_heads, head_dim]``, factors of a norm of every head before rotation.
            rotary: of head_dim / 2 frequencies; kept.
            cache_k, cache_v: bfloat16 (or its bits as uint16) ``[slots, kv_heads, head_dim]``, written.
        """

    def take_outputs(self, x: int) -> int:
        """The rows of x in the step's `output_rows`."""

    def logits(self, x: int, head: list[Matrix], softcap: float = 0.0) -> int: ...
    def output(self, x: int) -> None:
        """Hand x out: to `outputs` of `run`, in order."""

    def finish(self) -> None:
        """End the recording."""

    def run(
        self, step: Step, inputs: Sequence[Floats] = (), outputs: Sequence[Floats] = ()
    ) -> None:
        """Run one step; `outputs` ``[rows or output rows, width]`` are filled. Other Python threads go on
        meanwhile."""

    def profile(
        self, step: Step, inputs: Sequence[Floats] = (), outputs: Sequence[Floats] = ()
    ) -> list[tuple[str, float]]:
        """`run`, with the seconds of every stage. Threads meet after each, which takes a little longer."""
