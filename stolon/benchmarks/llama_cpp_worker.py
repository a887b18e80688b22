"""The llama.cpp side of the benchmark (see worker_main.py).

It runs in any Python that has llama_cpp and numpy; it needs nothing of Stolon. It drives llama.cpp
through its C API: one llama_decode per step for all sequences, as llama.cpp's own batched benchmark
does. Before a measurement every combination of settings in `VARIANTS` is tried once, on fewer
tokens, and the fastest is kept.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

# (flash attention, one KV buffer for all sequences)
VARIANTS = ((0, True), (1, True), (0, False), (1, False))
DEFAULT_VARIANT = (-1, False)
PATIENCE = 90.0
"""Seconds after which shared contexts, whose prompts take long, are not computed a second time."""
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
        return np.asarray(self.logits(rows).argmax(axis=1))

    def logits(self, rows: int) -> np.ndarray:
        """float32 ``[rows, vocab]`` of the last step, valid until the next one."""
        pointer = llama_cpp.llama_get_logits(self.handle)
        return np.ctypeslib.as_array(pointer, (rows, self.vocab))

    def free(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.handle)


class Worker:
    """Answers the questions of one benchmark run."""

    def __init__(self) -> None:
        llama_cpp.llama_backend_init()
        self.model: Any = None
        self.path = ""
        self.threads = 1
        self.best: dict[str, tuple[int, bool]] = {}

    def load(self, path: str, threads: int, **_: Any) -> dict[str, Any]:
        self.path, self.threads = path, threads
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

    def end_tokens(self) -> list[int]:
        """The tokens that end a text."""
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        size = llama_cpp.llama_vocab_n_tokens(vocab)
        return [token for token in range(size) if llama_cpp.llama_vocab_is_eog(vocab, token)]

    def prefill(self, ids: list[int]) -> dict[str, Any]:
        """Seconds from nothing to the first token after `ids`."""
        return self._best_variant("prefill", lambda variant, _: self._prefill(ids, variant), 1)

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Seconds for `new_tokens` greedy tokens each, all prompt tokens but the last computed."""

        def measure(variant: tuple[int, bool], tokens: int) -> dict[str, Any]:
            return self._decode(prompts, tokens, variant)

        return self._best_variant(f"decode-{len(prompts)}", measure, new_tokens)

    def shared(
        self, prompts: list[list[int]], shared: int, new_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """As `decode`; the first `shared` tokens are computed once and are in one place."""
        tried: dict[tuple[int, bool], dict[str, Any]] = {}
        start = time.perf_counter()
        # Sequences can share tokens in a unified buffer only.
        for variant in ((1, True), (0, True)):
            if time.perf_counter() - start < PATIENCE:
                tried[variant] = self._shared(prompts, shared, new_tokens, repeats, variant)
        best = min(tried, key=lambda variant: float(tried[variant]["seconds"]))
        return {**tried[best], "settings": {**_named(best), "tried": len(tried)}}

    def extract(self, prompts: list[list[int]], schema: str, max_tokens: int) -> dict[str, Any]:
        """See llama_cpp_extract.py; with and without flash attention, the faster counts."""
        beside = _beside("llama_cpp_extract")
        count, length = beside.SLOTS + 1, max(map(len, prompts)) + max_tokens
        tried: dict[tuple[int, bool], dict[str, Any]] = {}
        for variant in ((1, True), (0, True)):
            cells = length + count * (max_tokens + 128)
            context = Context(
                self.model, count, -(-cells // (256 * count)) * 256, self.threads, variant
            )
            tried[variant] = beside.extract(self.model, context, prompts, schema, max_tokens)
            context.free()
        best = min(tried, key=lambda variant: float(tried[variant]["seconds"]))
        return {**tried[best], "settings": _named(best)}

    def logits(self, ids: list[int], out: str, chunk: int) -> dict[str, Any]:
        """Write the logits after every token, float32 ``[tokens, vocab]``, as a .npy file.

        The context has llama.cpp's own defaults. `chunk` tokens are computed at a time.
        """
        context = Context(self.model, 1, len(ids), self.threads, DEFAULT_VARIANT)
        rows = np.lib.format.open_memmap(out, "w+", np.float32, (len(ids), context.vocab))
        for start in range(0, len(ids), chunk):
            part = ids[start : start + chunk]
            context.put([(token, start + i, 0, True) for i, token in enumerate(part)])
            rows[start : start + len(part)] = context.logits(len(part))
        rows.flush()
        context.free()
        return {"settings": {"flash_attn": "auto", "kv": "f16"}}

    def _best_variant(self, name: str, measure: Any, tokens: int) -> dict[str, Any]:
        if name not in self.best:
            few = max(1, tokens // 4)
            tried = [(measure(variant, few)["seconds"], variant) for variant in VARIANTS]
            self.best[name] = min(tried)[1]
        variant = self.best[name]
        return {**measure(variant, tokens), "settings": _named(variant)}

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
        answer = self._steps(context, prompts, new_tokens)
        context.free()
        return answer

    def _shared(
        self,
        prompts: list[list[int]],
        shared: int,
        new_tokens: int,
        repeats: int,
        variant: tuple[int, bool],
    ) -> dict[str, Any]:
        count, longest = len(prompts), max(map(len, prompts))
        cells = shared + count * (longest - shared + new_tokens)
        context = Context(
            self.model, count, -(-cells // (256 * count)) * 256, self.threads, variant
        )
        context.put([(token, i, 0, False) for i, token in enumerate(prompts[0][:shared])])
        for sequence, ids in enumerate(prompts):
            if sequence:
                llama_cpp.llama_memory_seq_cp(context.memory, 0, sequence, 0, shared)
            own = ids[shared:-1]
            context.put([(token, shared + i, sequence, False) for i, token in enumerate(own)])
        runs = []
        for _ in range(repeats):
            runs.append(self._steps(context, prompts, new_tokens))
            for sequence, ids in enumerate(prompts):
                llama_cpp.llama_memory_seq_rm(context.memory, sequence, len(ids) - 1, -1)
        context.free()
        return min(runs, key=lambda run: float(run["seconds"]))

    def _steps(self, context: Context, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Time `new_tokens` greedy steps of all sequences, of which all but the last is computed."""
        count = len(prompts)
        for sequence in range(count):
            context.batch.seq_id[sequence][0] = sequence
        tokens = np.array([ids[-1] for ids in prompts])
        position = np.array([len(ids) - 1 for ids in prompts])
        out: list[np.ndarray] = []
        start = time.perf_counter()
        for _ in range(new_tokens):
            context.step(tokens, position)
            tokens = context.argmax(count)
            out.append(tokens)
            position += 1
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "ids": np.array(out).T.tolist()}


def _named(variant: tuple[int, bool]) -> dict[str, Any]:
    return {"flash_attn": bool(variant[0]), "kv_unified": variant[1]}


def _beside(name: str) -> Any:
    """A module of this folder, which is not on the path of modules."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"there is no {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
