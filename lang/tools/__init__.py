"""Tools: Python functions, programs and MCP servers that a model may call."""

from stolon.lang.tools.call import ToolCall, ToolResult, parse_calls
from stolon.lang.tools.loop import ause_tools, use_tools
from stolon.lang.tools.mcp import MCPServer, mcp_tools
from stolon.lang.tools.prompt import tool_grammar, tool_prompt
from stolon.lang.tools.tool import Tool, tool

__all__ = [
    "MCPServer",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ause_tools",
    "mcp_tools",
    "parse_calls",
    "tool",
    "tool_grammar",
    "tool_prompt",
    "use_tools",
]
