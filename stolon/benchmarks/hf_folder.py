"""The weights of a model file as a bfloat16 Hugging Face folder, for engines that read no GGUF.

The numbers are the dequantised ones of the file, rounded to bfloat16: what such an engine computes
with is the same model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stolon.errors import ModelFileError, UnsupportedModel
from stolon.srt.models.config import ModelConfig

_CLASSES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
    "qwen3": ("Qwen3ForCausalLM", "qwen3"),
}


def write_hf_folder(model: Path, folder: Path) -> None:
    """Write config.json, model.safetensors and, of a byte-level vocabulary, tokenizer.json of a GGUF file
    into an existing folder.

    Raises ModelError if the file can't be read, UnsupportedModel for an architecture whose folder
    is not written here.
    """
    import torch
    from safetensors.torch import save_file

    from stolon.srt.load_tokenizer import tokenizer_of
    from stolon.srt.loaders import open_model
    from stolon.srt.tokenizer.bpe import BytePairTokenizer

    source = open_model(model)
    try:
        try:
            tokenizer, template = tokenizer_of(source)
        except ModelFileError:
            tokenizer, template = None, None  # engines that are given token ids get on without one
        config = hf_config(source.config, eos_id=min(tokenizer.eos_ids) if tokenizer else 0)
        tensors = {name: source.tensor(name, torch.bfloat16) for name in sorted(source.names)}
    finally:
        source.close()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
    if isinstance(tokenizer, BytePairTokenizer):
        (folder / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
        if template is not None:
            settings |= {"chat_template": template.source}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def hf_config(config: ModelConfig, *, eos_id: int = 0) -> dict[str, Any]:
    """The config.json that describes a model to transformers and to engines built on it."""
    if config.architecture not in _CLASSES or config.local_layers:
        raise UnsupportedModel(f"no Hugging Face folder is written for {config.architecture}")
    name, kind = _CLASSES[config.architecture]
    data: dict[str, Any] = {
        "architectures": [name],
        "model_type": kind,
        "torch_dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_embeddings,
        "hidden_act": "silu",
        "bos_token_id": 0,  # nothing reads it, but it has to exist
        "eos_token_id": eos_id,
    }
    scaling = config.rope_scaling
    if scaling is not None:
        data["rope_scaling"] = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            data["rope_scaling"] |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
    return data
