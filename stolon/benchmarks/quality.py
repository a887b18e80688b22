"""How far an engine's next-token distributions are from the exact ones of the same file.

The measure is the mean of KL(p || q) over the positions of a text, p from the dequantised weights
in float32, q the engine's; in nats (Kullback and Leibler, 1951). It is zero for exact arithmetic
and says nothing of the model itself. An engine's prompt path and its decode path may compute
differently, so both are measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stolon.benchmarks.process import Worker, reason
from stolon.errors import InternalError

CONTEXTS = 4
CONTEXT = 512
_TEXT_BYTES = 60_000
_BLOCK = 64


def real_text() -> str:
    """Prose that every Python carries: its language reference, from the first topic on."""
    from pydoc_data.topics import topics

    return "".join(topics[name] for name in sorted(topics))[:_TEXT_BYTES]


def measure_quality(
    reference: Worker,
    workers: list[Worker],
    tokenize: Callable[[str], list[int]],
    folder: Path,
    *,
    contexts: int = CONTEXTS,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """For each worker the divergence of its prompt path over all contexts and of its decode path
    over the first one; ``{"error": reason}`` where one but the first fails.

    Logits pass through files in `folder`; they are deleted as soon as they are compared.
    """
    ids = tokenize(real_text())[: contexts * CONTEXT]
    divergences: dict[str, dict[str, list[NDArray[np.float64]]]] = {
        worker.name: {"prompt": [], "decode": []} for worker in workers
    }
    failed: dict[str, dict[str, Any]] = {}
    exact, other = folder / "exact.npy", folder / "other.npy"
    for number in range(contexts):
        part = ids[number * CONTEXT : (number + 1) * CONTEXT]
        say(f"quality: reference {number + 1}/{contexts}")
        reference.ask("logits", ids=part, out=str(exact), chunk=CONTEXT)
        for worker in workers:
            for path, chunk in (("prompt", CONTEXT), ("decode", 1)):
                if path == "decode" and number:
                    continue
                if worker.name in failed:
                    continue
                say(f"quality: {worker.name}, {path} {number + 1}/{contexts}")
                try:
                    worker.ask("logits", ids=part, out=str(other), chunk=chunk)
                except InternalError as error:
                    if worker is workers[0]:
                        raise
                    failed[worker.name] = {"error": reason(error)}
                    continue
                found = divergence(_opened(exact), _opened(other))
                divergences[worker.name][path].append(found)
        for file in (exact, other):
            with contextlib.suppress(FileNotFoundError):
                file.unlink()
    return {
        name: {path: _summary(np.concatenate(parts)) for path, parts in paths.items()}
        for name, paths in divergences.items()
        if name not in failed
    } | failed


def divergence(exact: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float64]:
    """KL(softmax(exact) || softmax(other)) of each row of two ``[rows, vocab]``, in float64.

    Raises ValueError if the shapes differ. A vocabulary that one side pads is cut to the other's.
    """
    vocab = min(exact.shape[1], other.shape[1])
    if len(exact) != len(other):
        raise ValueError(f"{len(exact)} rows of logits against {len(other)}")
    parts = []
    for start in range(0, len(exact), _BLOCK):
        p = _log_softmax(exact[start : start + _BLOCK, :vocab])
        q = _log_softmax(other[start : start + _BLOCK, :vocab])
        parts.append((np.exp(p) * (p - q)).sum(axis=1))
    return np.concatenate(parts)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _opened(path: Path) -> NDArray[np.float32]:
    rows: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    return rows


def _summary(found: NDArray[np.float64]) -> dict[str, Any]:
    return {
        "positions": len(found),
        "mean": float(found.mean()),
        "standard_error": float(found.std() / len(found) ** 0.5),
        "max": float(found.max()),
    }
