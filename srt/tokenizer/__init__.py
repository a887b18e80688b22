"""Text to token ids and back, and chat templates."""

from stolon.srt.tokenizer.base import Tokenizer
from stolon.srt.tokenizer.chat import ChatTemplate, Message, TemplateSource
from stolon.srt.tokenizer.detok import IncrementalDecoder
from stolon.srt.tokenizer.from_gguf import chat_template_from_gguf, tokenizer_from_gguf
from stolon.srt.tokenizer.from_json import chat_template_from_folder, tokenizer_from_folder

__all__ = [
    "ChatTemplate",
    "IncrementalDecoder",
    "Message",
    "TemplateSource",
    "Tokenizer",
    "chat_template_from_folder",
    "chat_template_from_gguf",
    "tokenizer_from_folder",
    "tokenizer_from_gguf",
]
