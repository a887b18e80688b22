"""The llama.cpp side of the benchmark: a process that answers JSON lines (see process.py).

It runs in any Python that has llama_cpp and numpy; it needs nothing of Stolon. It drives llama.cpp
through its C API: one llama_decode per step for all sequences, as llama.cpp's own batched benchmark
does. Before a measurement every combination of settings in `VARIANTS` is tried once and the fastest
is kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np

# (flash attention, one KV buffer for all sequences)
VARIANTS = ((0, True), (1, True), (0, False), (1, False))
N_BATCH = 2048
N_UBATCH = 512


class Context:
    """A context for `sequences` sequences of at most `length` tokens, and its batch buffer."""

    def __init__(
        self, model: Any, sequences: int, length: int, threads: int, variant: tuple[int, bool]
    ) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = sequences * length
        params.n_batch = N_BATCH
        params.n_ubatch = N_UBATCH
        params.n_seq_max = sequences
        params.n_threads = threads
        params.n_threads_batch = threads
        params.flash_attn_type, params.kv_unified = variant
        self.handle = llama_cpp.llama_init_from_model(model, params)
        if not self.handle:
            raise RuntimeError(f"llama.cpp made no context for {variant}")
        self.memory = llama_cpp.llama_get_memory(self.handle)
        self.vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self.token = np.ctypeslib.as_array(self.batch.token, (N_BATCH,))
        self.pos = np.ctypeslib.as_array(self.batch.pos, (N_BATCH,))
        self.wanted = np.ctypeslib.as_array(self.batch.logits, (N_BATCH,))
        np.ctypeslib.as_array(self.batch.n_seq_id, (N_BATCH,))[:] = 1

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self.memory, False)

    def put(self, rows: list[tuple[int, int, int, bool]]) -> None:
        """Compute rows of (token, position, sequence, logits wanted)."""
        for start in range(0, len(rows), N_BATCH):
            part = rows[start : start + N_BATCH]
            for i, (token, pos, sequence, wanted) in enumerate(part):
                self.token[i], self.pos[i], self.wanted[i] = token, pos, wanted
                self.batch.seq_id[i][0] = sequence
            self.batch.n_tokens = len(part)
            code = llama_cpp.llama_decode(self.handle, self.batch)
            if code:
                raise RuntimeError(f"llama_decode returned {code}")

    def step(self, tokens: np.ndarray, position: np.ndarray) -> None:
        """One row for each of the first len(tokens) sequences; their seq_id stand already."""
        count = len(tokens)
        self.token[:count] = tokens
        self.pos[:count] = position
        self.wanted[:count] = 1
        self.batch.n_tokens = count
        code = llama_cpp.llama_decode(self.handle, self.batch)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")

    def argmax(self, rows: int) -> np.ndarray:
        """The likeliest token of each of the last step's `rows` outputs."""
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.handle), (rows, self.vocab))
        return np.asarray(logits.argmax(axis=1))

    def free(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.handle)


class Worker:
    """Answers the messages of one benchmark run."""

    def __init__(self) -> None:
        llama_cpp.llama_backend_init()
        self.model: Any = None
        self.threads = 1
        self.best: dict[str, tuple[int, bool]] = {}

    def load(self, path: str, threads: int, **_: Any) -> dict[str, Any]:
        self.threads = threads
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp can't load {path}")
        return {
            "engine": "llama.cpp",
            "version": f"llama-cpp-python {llama_cpp.__version__}",
            "parameters": llama_cpp.llama_model_n_params(self.model),
            "settings": {"threads": threads, "n_batch": N_BATCH, "n_ubatch": N_UBATCH},
            "build": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def tokenize(self, text: str) -> dict[str, Any]:
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, len(ids), False, False)
        if count < 0:
            raise RuntimeError("llama_tokenize failed")
        return {"ids": list(ids[:count])}

    def prefill(self, ids: list[int]) -> dict[str, Any]:
        """Seconds from nothing to the first token after `ids`."""
        return self._best_variant("prefill", lambda variant: self._prefill(ids, variant))

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Seconds for `new_tokens` greedy tokens each, all prompt tokens but the last computed."""
        name = f"decode-{len(prompts)}"
        return self._best_variant(name, lambda v: self._decode(prompts, new_tokens, v))

    def memory(self) -> dict[str, Any]:
        with open("/proc/self/statm", encoding="ascii") as file:
            return {"rss": int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")}

    def _best_variant(self, name: str, measure: Any) -> dict[str, Any]:
        if name not in self.best:
            tried = [(measure(variant)["seconds"], variant) for variant in VARIANTS]
            self.best[name] = min(tried)[1]
        flash, unified = self.best[name]
        return {
            **measure((flash, unified)),
            "settings": {"flash_attn": bool(flash), "kv_unified": unified},
        }

    def _prefill(self, ids: list[int], variant: tuple[int, bool]) -> dict[str, Any]:
        context = Context(self.model, 1, len(ids) + 64, self.threads, variant)
        rows = [(token, i, 0, i == len(ids) - 1) for i, token in enumerate(ids)]
        for _ in range(2):  # the first run warms the new context up
            context.clear()
            start = time.perf_counter()
            context.put(rows)
            context.argmax(1)
            seconds = time.perf_counter() - start
        context.free()
        return {"seconds": seconds}

    def _decode(
        self, prompts: list[list[int]], new_tokens: int, variant: tuple[int, bool]
    ) -> dict[str, Any]:
        count = len(prompts)
        longest = max(map(len, prompts))
        # A context that isn't shared rounds each sequence's part up to 256 tokens.
        length = -(-(longest + new_tokens) // 256) * 256
        context = Context(self.model, count, length, self.threads, variant)
        context.put(
            [
                (token, i, sequence, False)
                for sequence, ids in enumerate(prompts)
                for i, token in enumerate(ids[:-1])
            ]
        )
        for sequence in range(count):
            context.batch.seq_id[sequence][0] = sequence
        tokens = np.array([ids[-1] for ids in prompts])
        position = np.array([len(ids) - 1 for ids in prompts])
        out: list[np.ndarray] = []
        forward = 0.0
        start = time.perf_counter()
        for _ in range(new_tokens):
            before = time.perf_counter()
            context.step(tokens, position)
            llama_cpp.llama_synchronize(context.handle)
            forward += time.perf_counter() - before
            tokens = context.argmax(count)
            out.append(tokens)
            position += 1
        seconds = time.perf_counter() - start
        context.free()
        return {"seconds": seconds, "forward_seconds": forward, "ids": np.array(out).T.tolist()}


def main() -> None:
    # llama.cpp writes to the standard streams; the answers get a stream of their own.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    worker = Worker()
    handlers: dict[str, Callable[..., dict[str, Any]]] = {
        "load": worker.load,
        "tokenize": worker.tokenize,
        "prefill": worker.prefill,
        "decode": worker.decode,
        "memory": worker.memory,
    }
    for line in sys.stdin:
        message = json.loads(line)
        try:
            answer = handlers[message.pop("do")](**message)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
