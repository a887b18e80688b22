"""HTTP servers over an engine process: OpenAI-compatible and native routes."""

from stolon.srt.server.app import create_app
from stolon.srt.server.launch import serve
from stolon.srt.server.limits import ServerLimits

__all__ = ["ServerLimits", "create_app", "serve"]
