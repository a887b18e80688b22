"""What the servers can do that one runs oneself, newest versions that were looked at."""

from __future__ import annotations

from stolon.lang.backends.dialect import (
    OPENAI,
    SHAPE,
    WIDE,
    Dialect,
    Spelling,
    same,
)
from stolon.srt.protocol import GrammarKind

_GBNF: dict[GrammarKind, Spelling] = {
    "choice": Spelling("grammar", "gbnf"),
    "regex": Spelling("grammar", "gbnf"),
    "ebnf": Spelling("grammar", "text"),
}

SERVERS: dict[str, Dialect] = {
    "vllm": Dialect(
        title="vLLM",
        # guided_* became structured_outputs in 0.12.
        version="0.12 to 0.32",
        sampling=WIDE | same("skip_special_tokens", include_stop="include_stop_str_in_output"),
        always=SHAPE,
        constraints={
            "choice": Spelling("structured_outputs.choice", "list"),
            "regex": Spelling("structured_outputs.regex", "text"),
            "ebnf": Spelling("structured_outputs.grammar", "text"),
            "json_schema": Spelling("structured_outputs.json", "schema"),
            "json_object": Spelling("structured_outputs.json_object", "true"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        prefill={"continue_final_message": True, "add_generation_prompt": False},
        samples=True,
        scoring="prompt_logprobs",
        scored=("chat", "completions"),
        detected_by="owned_by vllm in /v1/models",
    ),
    "sglang": Dialect(
        title="SGLang",
        version="0.5",
        sampling=WIDE | same("stop_regex", "skip_special_tokens", include_stop="no_stop_trim"),
        always=SHAPE,
        top_k_off=-1,
        constraints={
            "choice": Spelling("regex", "regex"),
            "regex": Spelling("regex", "text"),
            "ebnf": Spelling("ebnf", "text"),
            "json_schema": Spelling("response_format", "response_format"),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints={
            "choice": Spelling("regex", "regex"),
            "regex": Spelling("regex", "text"),
            "ebnf": Spelling("ebnf", "text"),
            "json_schema": Spelling("json_schema", "schema_text"),
            "json_object": Spelling("response_format", "json_object"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        prefill={"continue_final_message": True},
        scoring="generate",
        scored=("completions",),
        detected_by="owned_by sglang in /v1/models",
    ),
    "llama-server": Dialect(
        title="llama.cpp's llama-server",
        version="builds of 2025 and 2026",
        sampling=OPENAI | same("top_k", "min_p", "ignore_eos", repetition_penalty="repeat_penalty"),
        always=SHAPE,
        # The window of the penalties is 64 tokens by default.
        fixed={"cache_prompt": True, "repeat_last_n": -1},
        constraints=_GBNF
        | {
            "json_schema": Spelling("json_schema", "schema"),
            "json_object": Spelling("json_schema", "object_schema"),
        },
        unlimited=-1,
        logprobs=("chat", "completions"),
        max_top=20,
        least_top=1,
        # It goes on with a last message of the assistant unless it was started to do otherwise.
        prefill={},
        seed_bits=31,
        detected_by="owned_by llamacpp in /v1/models",
    ),
    "llama-cpp-python": Dialect(
        title="llama-cpp-python's server",
        version="0.3",
        sampling=OPENAI | same("top_k", "min_p", "min_tokens"),
        always=("temperature", "top_p", "top_k", "min_p"),
        # Its window is fixed when the model is loaded, so a penalty can't be what was asked for.
        fixed={"repeat_penalty": 1.0},
        constraints=_GBNF
        | {
            "json_schema": Spelling(
                "response_format.schema", "schema", around={"type": "json_object"}
            ),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints=_GBNF | {"json_schema": Spelling("grammar", "gbnf")},
        unlimited=0,
        logprobs=("chat", "completions"),
        max_top=20,
        seed_bits=31,
        scoring="echo",
        scored=("completions",),
        detected_by="its OpenAPI description",
    ),
    "ollama": Dialect(
        title="Ollama",
        # The native API: its OpenAI-compatible one can't set top_k and the repeat penalty.
        version="0.12 and later",
        sampling=same(
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "stop",
            "seed",
            repetition_penalty="repeat_penalty",
        ),
        always=SHAPE,
        fixed={"repeat_last_n": -1},
        constraints={
            "json_schema": Spelling("format", "schema"),
            "json_object": Spelling("format", "object_schema"),
        },
        max_tokens="num_predict",
        unlimited=-1,
        logprobs=("chat", "completions"),
        max_top=20,
        seed_bits=31,
        detected_by="/api/version",
    ),
    "lmstudio": Dialect(
        title="LM Studio",
        version="0.3",
        sampling=OPENAI | same("top_k", repetition_penalty="repeat_penalty"),
        always=("temperature", "top_p", "top_k", "repetition_penalty"),
        constraints={"json_schema": Spelling("response_format", "response_format")},
        completion_constraints={},
        seed_bits=31,
        detected_by="/api/v0/models",
    ),
    "nim": Dialect(
        title="NVIDIA NIM for LLMs",
        version="1.x",
        sampling=OPENAI,
        always=("temperature", "top_p"),
        constraints={
            "choice": Spelling("nvext.guided_choice", "list"),
            "regex": Spelling("nvext.guided_regex", "text"),
            "ebnf": Spelling("nvext.guided_grammar", "text"),
            "json_schema": Spelling("nvext.guided_json", "schema"),
            "json_object": Spelling("response_format", "json_object"),
        },
        logprobs=("chat", "completions"),
        max_top=20,
        detected_by="/v1/metadata",
    ),
    "tensorrt-llm": Dialect(
        title="TensorRT-LLM's trtllm-serve",
        # Needs guided_decoding_backend among its options.
        version="1.x",
        sampling=WIDE | same("skip_special_tokens", include_stop="include_stop_str_in_output"),
        always=SHAPE,
        constraints={
            "choice": Spelling("response_format.regex", "regex", around={"type": "regex"}),
            "regex": Spelling("response_format.regex", "text", around={"type": "regex"}),
            "ebnf": Spelling("response_format.ebnf", "text", around={"type": "ebnf"}),
            "json_schema": Spelling("response_format.schema", "schema", around={"type": "json"}),
            "json_object": Spelling("response_format", "json_object"),
        },
        unlimited="omit",
        logprobs=("chat", "completions"),
        max_top=1,
        detected_by="owned_by tensorrt_llm in /v1/models",
    ),
    "lmdeploy": Dialect(
        title="LMDeploy",
        # It takes OpenAI's other penalties and logit_bias, and does nothing with them.
        version="0.9 and later",
        sampling=same(
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "repetition_penalty",
            "stop",
            "seed",
            "ignore_eos",
            "skip_special_tokens",
        ),
        always=SHAPE,
        constraints={
            "choice": Spelling(
                "response_format.regex_schema", "regex", around={"type": "regex_schema"}
            ),
            "regex": Spelling(
                "response_format.regex_schema", "text", around={"type": "regex_schema"}
            ),
            "json_schema": Spelling("response_format", "response_format"),
            "json_object": Spelling("response_format", "json_object"),
        },
        completion_constraints={},
        logprobs=("chat", "completions"),
        max_top=20,
        least_top=1,
        detected_by="owned_by lmdeploy in /v1/models",
    ),
}
