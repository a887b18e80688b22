"""Stolon: structured generation, a language and the runtime built with it.

Names are imported when they are first used: ``import stolon`` itself loads neither the language
    nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stolon.errors import StolonError as StolonError
    from stolon.lang import BatchInterrupted as BatchInterrupted
    from stolon.lang import ChatTemplate as ChatTemplate
    from stolon.lang import ChatTemplateStyle as ChatTemplateStyle
    from stolon.lang import ChoiceScores as ChoiceScores
    from stolon.lang import ForkGroup as ForkGroup
    from stolon.lang import Function as Function
    from stolon.lang import MCPServer as MCPServer
    from stolon.lang import Prices as Prices
    from stolon.lang import ProgramState as ProgramState
    from stolon.lang import RestoredState as RestoredState
    from stolon.lang import Tool as Tool
    from stolon.lang import ToolCall as ToolCall
    from stolon.lang import ToolResult as ToolResult
    from stolon.lang import Trace as Trace
    from stolon.lang import assistant as assistant
    from stolon.lang import assistant_begin as assistant_begin
    from stolon.lang import assistant_end as assistant_end
    from stolon.lang import ause_tools as ause_tools
    from stolon.lang import flush_cache as flush_cache
    from stolon.lang import function as function
    from stolon.lang import gen as gen
    from stolon.lang import gen_int as gen_int
    from stolon.lang import gen_string as gen_string
    from stolon.lang import get_chat_template as get_chat_template
    from stolon.lang import get_chat_template_by_model_path as get_chat_template_by_model_path
    from stolon.lang import get_server_info as get_server_info
    from stolon.lang import global_config as global_config
    from stolon.lang import greedy_token_selection as greedy_token_selection
    from stolon.lang import image as image
    from stolon.lang import mcp_tools as mcp_tools
    from stolon.lang import register_chat_template as register_chat_template
    from stolon.lang import (
        register_chat_template_matching_function as register_chat_template_matching_function,
    )
    from stolon.lang import select as select
    from stolon.lang import separate_reasoning as separate_reasoning
    from stolon.lang import set_default_backend as set_default_backend
    from stolon.lang import system as system
    from stolon.lang import system_begin as system_begin
    from stolon.lang import system_end as system_end
    from stolon.lang import token_length_normalized as token_length_normalized
    from stolon.lang import tool as tool
    from stolon.lang import tool_grammar as tool_grammar
    from stolon.lang import tool_prompt as tool_prompt
    from stolon.lang import (
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from stolon.lang import use_tools as use_tools
    from stolon.lang import user as user
    from stolon.lang import user_begin as user_begin
    from stolon.lang import user_end as user_end
    from stolon.lang import video as video
    from stolon.lang.backends import Anthropic as Anthropic
    from stolon.lang.backends import Crusoe as Crusoe
    from stolon.lang.backends import LiteLLM as LiteLLM
    from stolon.lang.backends import OpenAI as OpenAI
    from stolon.lang.backends import Runtime as Runtime
    from stolon.lang.backends import RuntimeEndpoint as RuntimeEndpoint
    from stolon.lang.backends import VertexAI as VertexAI
    from stolon.lang.backends import connect as connect
    from stolon.srt import Engine as Engine

    __version__: str

__all__ = [
    "Anthropic",
    "BatchInterrupted",
    "ChatTemplate",
    "ChatTemplateStyle",
    "ChoiceScores",
    "Crusoe",
    "Engine",
    "ForkGroup",
    "Function",
    "LiteLLM",
    "MCPServer",
    "OpenAI",
    "Prices",
    "ProgramState",
    "RestoredState",
    "Runtime",
    "RuntimeEndpoint",
    "StolonError",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Trace",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ause_tools",
    "connect",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_chat_template",
    "get_chat_template_by_model_path",
    "get_server_info",
    "global_config",
    "greedy_token_selection",
    "image",
    "mcp_tools",
    "register_chat_template",
    "register_chat_template_matching_function",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "tool",
    "tool_grammar",
    "tool_prompt",
    "unconditional_likelihood_normalized",
    "use_tools",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_ELSEWHERE = {
    "Anthropic": "stolon.lang.backends",
    "Crusoe": "stolon.lang.backends",
    "Engine": "stolon.srt",
    "LiteLLM": "stolon.lang.backends",
    "OpenAI": "stolon.lang.backends",
    "Runtime": "stolon.lang.backends",
    "RuntimeEndpoint": "stolon.lang.backends",
    "StolonError": "stolon.errors",
    "VertexAI": "stolon.lang.backends",
    "connect": "stolon.lang.backends",
}


# Names of SGLang that have no counterpart, and what to write.
_INSTEAD = {
    "ServerArgs": "give its fields to Runtime(...) as arguments; Engine(model, ...) has its own"
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        hint = _INSTEAD.get(name)
        more = f": {hint}" if hint else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{more}")
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("stolon")
    else:
        value = getattr(import_module(_ELSEWHERE.get(name, "stolon.lang")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
