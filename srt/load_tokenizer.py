"""The tokenizer and chat template that come with a model file."""

from __future__ import annotations

from pathlib import Path

from stolon.errors import ModelNotFound
from stolon.srt.loaders.gguf import GGUFFile
from stolon.srt.tokenizer import (
    ChatTemplate,
    Tokenizer,
    chat_template_from_folder,
    chat_template_from_gguf,
    tokenizer_from_folder,
    tokenizer_from_gguf,
)


def load_tokenizer(path: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and template of a .gguf file or a Hugging Face folder. Raises ModelError."""
    if path.is_dir():
        return tokenizer_from_folder(path), chat_template_from_folder(path)
    if not path.exists():
        raise ModelNotFound(f"there is no model at {path}")
    file = GGUFFile.open(path)
    try:
        return tokenizer_from_gguf(file), chat_template_from_gguf(file)
    finally:
        file.close()
