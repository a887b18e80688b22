"""How fast this machine reads memory from one end to the other, and what a token must read.

One token of one sequence reads every weight once, so bandwidth over bytes of weights is a rate that
no engine can pass (the memory roof of arXiv 2402.16363).
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_BYTES = 2 << 30
_REPEATS = 6


def read_bandwidth(threads: int) -> float:
    """Bytes per second of read-only passes over 2 GiB with `threads` threads, on average as a decoding is.

    The passes are torch's sum and its matrix-vector product, each in parallel over the buffer; the faster of
    the two counts, which depends on the machine.
    """
    import torch

    torch.set_num_threads(threads)
    buffer = torch.ones(_BYTES // 4).view(-1, 4096)
    vector = torch.ones(4096)
    buffer.sum(), buffer.mv(vector)  # threads are made
    seconds = [0.0, 0.0]
    for _ in range(_REPEATS):
        for kind in (0, 1):
            start = time.perf_counter()
            buffer.mv(vector) if kind else buffer.sum()
            seconds[kind] += time.perf_counter() - start
    return _BYTES * _REPEATS / min(seconds)


def measured_bandwidth(threads: int) -> float:
    """`read_bandwidth` in a process of its own, so that its buffer and threads are gone after."""
    code = f"from {__name__} import read_bandwidth; print(read_bandwidth({threads}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return float(done.stdout)


def bytes_per_token(model: Path) -> int:
    """Bytes of stored weights that one token reads: everything, but of an embedding table that is
    not also the output head only one row."""
    import torch

    from stolon.srt.loaders import GGUFModel, open_model

    source = open_model(model)
    try:
        total = 0
        for name in source.names:
            if name == "model.embed_tokens.weight" and not source.config.tie_embeddings:
                continue
            if isinstance(source, GGUFModel):
                total += source.quantised(name)[1].nbytes
            else:
                total += source.tensor(name, torch.bfloat16).nbytes
        return total
    finally:
        source.close()
