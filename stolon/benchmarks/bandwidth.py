"""How fast this machine reads memory from one end to the other, and what a token must read.

One token of one sequence reads every weight once, so bandwidth over bytes of weights is a rate that
no engine can pass (the memory roof of arXiv 2402.16363).

    python -m stolon.benchmarks.bandwidth THREADS     prints bytes per second
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

_BYTES = 2 << 30
_REPEATS = 6


def read_bandwidth(threads: int) -> float:
    """Bytes per second of the fastest read-only pass over 2 GiB with `threads` threads.

    The passes are torch's sum and its matrix-vector product, each in parallel over the buffer;
    which of the two is nearer to what memory gives depends on the machine.
    """
    import torch

    torch.set_num_threads(threads)
    buffer = torch.ones(_BYTES // 4).view(-1, 4096)
    vector = torch.ones(4096)
    best = float("inf")
    for _ in range(_REPEATS):
        for passes in ("sum", "product"):
            start = time.perf_counter()
            buffer.sum() if passes == "sum" else buffer.mv(vector)
            best = min(best, time.perf_counter() - start)
    return _BYTES / best


def measured_bandwidth(threads: int) -> float:
    """`read_bandwidth` in a process of its own, so that its buffer and threads are gone after."""
    command = [sys.executable, "-m", "stolon.benchmarks.bandwidth", str(threads)]
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


if __name__ == "__main__":
    print(read_bandwidth(int(sys.argv[1])))
