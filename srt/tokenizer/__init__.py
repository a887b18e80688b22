"""Text to token ids and back, and chat templates."""

from stolon.srt.tokenizer.base import Tokenizer
from stolon.srt.tokenizer.chat import ChatTemplate, Message

__all__ = ["ChatTemplate", "Message", "Tokenizer"]
