"""The OpenVINO GenAI side of the benchmark (see worker_main.py).

It runs in any Python that has openvino_genai and numpy. The GGUF file goes straight into a
ContinuousBatchingPipeline, token ids in, token ids out. Every measure is tried with each setting of
`PRECISIONS` and keeps the fastest; a decode rate is that of the tokens after the first, the
difference of two runs.

Documented settings: latency hint (one stream, all threads), INFERENCE_NUM_THREADS,
INFERENCE_PRECISION_HINT as tried. The KV cache precision (u8) and dynamic quantisation (groups of
32) are left at what the CPU plugin chooses: the documented alternatives are slower.
"""

from __future__ import annotations

import importlib
import time
from typing import Any

import numpy as np

# Only the peer's own environment has these.
ov: Any = importlib.import_module("openvino")
genai: Any = importlib.import_module("openvino_genai")

PRECISIONS = ("bf16", "f32")
BATCH_TOKENS = 2048
MAX_SEQUENCES = 64
CACHE_GB = 2


class Worker:
    """Answers the questions of one benchmark run."""

    def __init__(self) -> None:
        self.path = ""
        self.threads = 1
        self.best: dict[str, str] = {}
        self.pipelines: dict[tuple[str, bool], Any] = {}

    def load(self, path: str, threads: int, **_: Any) -> dict[str, Any]:
        self.path, self.threads = path, threads
        self.pipeline(PRECISIONS[0], False)
        return {
            "engine": "openvino",
            "version": f"openvino-genai {genai.__version__}",
            "settings": {
                "threads": threads,
                "hint": "LATENCY",
                "max_num_batched_tokens": BATCH_TOKENS,
                "cache_size": f"{CACHE_GB} GB",
            },
        }

    def prefill(self, ids: list[int]) -> dict[str, Any]:
        """Seconds from nothing to the first token after `ids`."""

        def measure(precision: str, _: int) -> dict[str, Any]:
            return {"seconds": self._generate(self.pipeline(precision, False), [ids], 1)[0]}

        return self._fastest("prefill", measure, 1)

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Seconds for `new_tokens` greedy tokens each after the first one."""

        def measure(precision: str, tokens: int) -> dict[str, Any]:
            return self._after_first(self.pipeline(precision, False), prompts, tokens)

        return self._fastest(f"decode-{len(prompts)}", measure, new_tokens)

    def shared(
        self, prompts: list[list[int]], shared: int, new_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """As `decode`; the prompts share their first tokens, which the prefix cache keeps."""

        def measure(precision: str, tokens: int) -> dict[str, Any]:
            pipeline = self.pipeline(precision, True)
            self._generate(pipeline, prompts[:1], 1)
            self._generate(pipeline, prompts, 1)
            runs = [self._after_first(pipeline, prompts, tokens) for _ in range(repeats)]
            return min(runs, key=lambda run: float(run["seconds"]))

        tried = {precision: measure(precision, new_tokens) for precision in PRECISIONS}
        best = min(tried, key=lambda precision: float(tried[precision]["seconds"]))
        return {**tried[best], "settings": {"precision": best, "prefix_caching": True}}

    def extract(self, prompts: list[list[int]], schema: str, max_tokens: int) -> dict[str, Any]:
        """Seconds for a JSON text under the schema after each prompt, from an empty cache.

        Prompts that come at once are each computed whole, so the first goes alone and the cache has what
        all share for the rest.
        """
        tried: dict[str, dict[str, Any]] = {}
        for precision in PRECISIONS:
            pipeline = self._make(precision, True)
            config = genai.GenerationConfig()
            config.max_new_tokens = max_tokens
            config.do_sample = False
            config.structured_output_config = genai.StructuredOutputConfig(json_schema=schema)
            tokenizer = pipeline.get_tokenizer()
            config.set_eos_token_id(tokenizer.get_eos_token_id())
            inputs = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
            self._generate(pipeline, [prompts[0][:16]], 1)  # warms up, and caches no whole block
            start = time.perf_counter()
            results = pipeline.generate(inputs[:1], [config])
            results += pipeline.generate(inputs[1:], [config] * (len(inputs) - 1))
            seconds = time.perf_counter() - start
            texts = [tokenizer.decode(list(result.m_generation_ids[0])) for result in results]
            tried[precision] = {"seconds": seconds, "texts": texts}
            del pipeline
        best = min(tried, key=lambda precision: float(tried[precision]["seconds"]))
        return {
            **tried[best],
            "settings": {"precision": best, "prefix_caching": True, "order": "one, then the rest"},
        }

    def _fastest(self, name: str, measure: Any, tokens: int) -> dict[str, Any]:
        """The measure with the precision that was fastest when each was tried."""
        if name not in self.best:
            tried = []
            for precision in PRECISIONS:
                measure(precision, 1)  # warms up the shapes
                tried.append((measure(precision, max(1, tokens // 2))["seconds"], precision))
            self.best[name] = min(tried)[1]
        return {**measure(self.best[name], tokens), "settings": {"precision": self.best[name]}}

    def pipeline(self, precision: str, prefix_caching: bool) -> Any:
        """The pipeline with these settings, made when it is first asked for."""
        key = (precision, prefix_caching)
        if key not in self.pipelines:
            self.pipelines[key] = self._make(precision, prefix_caching)
        return self.pipelines[key]

    def _make(self, precision: str, prefix_caching: bool) -> Any:
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = BATCH_TOKENS
        scheduler.max_num_seqs = MAX_SEQUENCES
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = prefix_caching
        properties = {
            "INFERENCE_NUM_THREADS": self.threads,
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
        }
        return genai.ContinuousBatchingPipeline(self.path, scheduler, "CPU", properties)

    def _after_first(
        self, pipeline: Any, prompts: list[list[int]], new_tokens: int
    ) -> dict[str, Any]:
        # Twice: a slow moment in what is subtracted would make the rest look fast.
        first = min(self._generate(pipeline, prompts, 1)[0] for _ in range(2))
        whole, ids = self._generate(pipeline, prompts, new_tokens + 1)
        return {"seconds": whole - first, "ids": [one[:new_tokens] for one in ids]}

    def _generate(
        self, pipeline: Any, prompts: list[list[int]], tokens: int
    ) -> tuple[float, list[list[int]]]:
        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        inputs = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        start = time.perf_counter()
        results = pipeline.generate(inputs, [config] * len(inputs))
        seconds = time.perf_counter() - start
        ids = [list(result.m_generation_ids[0]) for result in results]
        if any(len(one) != tokens for one in ids):
            raise RuntimeError("a generation was shorter than asked for")
        return seconds, ids
