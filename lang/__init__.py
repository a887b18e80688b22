"""The language: programs that call a language model many times.

Records lazily, sends the longest straight runs as single requests, and never tokenises anything
twice. Knows the runtime only through its messages and its `EngineClient`.
"""

from stolon.lang.backend import default_backend, flush_cache, get_server_info, set_default_backend
from stolon.lang.batch import BatchInterrupted
from stolon.lang.call_trace import CallTrace, Prices, TokenCounts
from stolon.lang.chat_template import (
    ChatTemplate,
    ChatTemplateStyle,
    get_chat_template,
    get_chat_template_by_model_path,
    register_chat_template,
    register_chat_template_matching_function,
)
from stolon.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from stolon.lang.compiled import CachedPrefix, CompiledFunction
from stolon.lang.config import GlobalConfig, global_config
from stolon.lang.group import ForkGroup
from stolon.lang.message_words import (
    assistant,
    assistant_begin,
    assistant_end,
    image,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from stolon.lang.meta import ChoiceScores
from stolon.lang.plan import Plan
from stolon.lang.primitives import (
    gen,
    gen_int,
    gen_string,
    select,
    separate_reasoning,
)
from stolon.lang.program import Function, function
from stolon.lang.restored import RestoredState
from stolon.lang.state import ProgramState
from stolon.lang.tools import (
    MCPServer,
    Tool,
    ToolCall,
    ToolResult,
    ause_tools,
    mcp_tools,
    tool,
    tool_grammar,
    tool_prompt,
    use_tools,
)
from stolon.lang.trace import Trace

__all__ = [
    "BatchInterrupted",
    "CachedPrefix",
    "CallTrace",
    "ChatTemplate",
    "ChatTemplateStyle",
    "ChoiceScores",
    "CompiledFunction",
    "ForkGroup",
    "Function",
    "GlobalConfig",
    "MCPServer",
    "Plan",
    "Prices",
    "ProgramState",
    "RestoredState",
    "TokenCounts",
    "Tool",
    "ToolCall",
    "ToolResult",
    "Trace",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "ause_tools",
    "default_backend",
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
