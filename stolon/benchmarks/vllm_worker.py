"""The vLLM side of the benchmark (see worker_main.py).

It runs in any Python that has vllm built for the CPU. vLLM reads no such GGUF file on the CPU, so
it gets the same weights as a bfloat16 Hugging Face folder (hf_folder.py). The engine runs in this
process; a decode rate is that of the tokens after the first, the difference of two runs.

Documented settings: VLLM_CPU_KVCACHE_SPACE, VLLM_CPU_OMP_THREADS_BIND by core ids, prefix caching
on (it is emptied before a prompt is measured), compiled and eager as `load` is asked.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
KVCACHE_SPACE = 2
os.environ["VLLM_CPU_KVCACHE_SPACE"] = str(KVCACHE_SPACE)

# Only the peer's own environment has it; it reads the settings above when it is imported.
vllm: Any = importlib.import_module("vllm")

BATCH_TOKENS = 2048
MAX_SEQUENCES = 64
MAX_LENGTH = 4352


class Worker:
    """Answers the questions of one benchmark run."""

    def __init__(self) -> None:
        self.engine: Any = None

    def load(self, folder: str, cores: list[int], eager: bool, **_: Any) -> dict[str, Any]:
        """Load the folder; `cores` are the ids of the threads' cores, one each."""
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            longest = json.load(file)["max_position_embeddings"]
        binding = ",".join(map(str, cores))
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = binding
        self.engine = vllm.LLM(
            model=folder,
            dtype="bfloat16",
            skip_tokenizer_init=not os.path.exists(os.path.join(folder, "tokenizer.json")),
            structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True},
            enable_prefix_caching=True,
            enforce_eager=eager,
            max_model_len=min(MAX_LENGTH, longest),
            max_num_seqs=MAX_SEQUENCES,
            max_num_batched_tokens=BATCH_TOKENS,
        )
        return {
            "engine": "vllm",
            "version": f"vllm {vllm.__version__}",
            "settings": {
                "threads": len(cores),
                "weights": "bf16",
                "mode": "eager" if eager else "compiled",
                "VLLM_CPU_KVCACHE_SPACE": KVCACHE_SPACE,
                "VLLM_CPU_OMP_THREADS_BIND": binding,
                "max_num_batched_tokens": BATCH_TOKENS,
            },
        }

    def prefill(self, ids: list[int]) -> dict[str, Any]:
        """Seconds from nothing to the first token after `ids`."""
        self.engine.reset_prefix_cache()
        return {"seconds": self._generate([ids], 1)[0]}

    def decode(self, prompts: list[list[int]], new_tokens: int) -> dict[str, Any]:
        """Seconds for `new_tokens` greedy tokens each after the first one."""
        self._generate(prompts, 1)
        # Twice: a slow moment in what is subtracted would make the rest look fast.
        first = min(self._generate(prompts, 1)[0] for _ in range(2))
        whole, ids = self._generate(prompts, new_tokens + 1)
        return {"seconds": whole - first, "ids": [one[:new_tokens] for one in ids]}

    def shared(
        self, prompts: list[list[int]], shared: int, new_tokens: int, repeats: int
    ) -> dict[str, Any]:
        """As `decode`; the prompts share their first tokens, which the prefix cache keeps."""
        self._generate(prompts[:1], 1)
        runs = [self.decode(prompts, new_tokens) for _ in range(repeats)]
        return min(runs, key=lambda run: float(run["seconds"]))

    def extract(self, prompts: list[list[int]], schema: str, max_tokens: int) -> dict[str, Any]:
        """Seconds for a JSON text under the schema after each prompt, from an empty cache.

        Tried with all prompts at once, and with the first alone before the rest; the faster counts.
        """
        sampling = vllm.SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            structured_outputs=vllm.sampling_params.StructuredOutputsParams(json=schema),
        )
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        tried = []
        for order, groups in (
            ("all at once", [inputs]),
            ("one, then the rest", [inputs[:1], inputs[1:]]),
        ):
            self.engine.reset_prefix_cache()
            start = time.perf_counter()
            texts = [
                output.outputs[0].text
                for group in groups
                for output in self.engine.generate(group, sampling, use_tqdm=False)
            ]
            seconds = time.perf_counter() - start
            tried.append({"seconds": seconds, "texts": texts, "settings": {"order": order}})
        return min(tried, key=lambda one: float(one["seconds"]))

    def _generate(self, prompts: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
        sampling = vllm.SamplingParams(
            max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False
        )
        inputs = [{"prompt_token_ids": ids} for ids in prompts]
        start = time.perf_counter()
        outputs = self.engine.generate(inputs, sampling, use_tqdm=False)
        seconds = time.perf_counter() - start
        ids = [list(output.outputs[0].token_ids) for output in outputs]
        if any(len(one) != tokens for one in ids):
            raise RuntimeError("a generation was shorter than asked for")
        return seconds, ids
