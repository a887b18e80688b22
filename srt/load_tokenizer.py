"""The tokenizer and chat template that come with a model file."""

from __future__ import annotations

from pathlib import Path

from stolon.srt.loaders import GGUFModel, SafetensorsModel, check_folder
from stolon.srt.loaders.folder import TOKENIZER
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
        return _from_folder(path)
    file = GGUFFile.open(path)
    try:
        return _from_gguf(file)
    finally:
        file.close()


def tokenizer_of(model: GGUFModel | SafetensorsModel) -> tuple[Tokenizer, ChatTemplate | None]:
    """Tokenizer and template of an opened model. Raises ModelError."""
    if isinstance(model, SafetensorsModel):
        return _from_folder(model.folder)
    return _from_gguf(model.file)


def _from_folder(folder: Path) -> tuple[Tokenizer, ChatTemplate | None]:
    check_folder(folder, needs=(TOKENIZER,))
    return tokenizer_from_folder(folder), chat_template_from_folder(folder)


def _from_gguf(file: GGUFFile) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = tokenizer_from_gguf(file)
    return tokenizer, chat_template_from_gguf(file, tokenizer=tokenizer)
