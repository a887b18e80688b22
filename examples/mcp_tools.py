"""Tools of an MCP server, beside one of our own. Needs `pip install 'stolon[mcp]'`.

    python examples/mcp_tools.py "How many words has this sentence?"
    python examples/mcp_tools.py --server http://127.0.0.1:9000/mcp "..."

Without --server it starts one of its own: this very file with --serve.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys

from _frame import frame

import stolon as sl


def shout(text: str) -> str:
    """Write a text in capital letters."""
    return text.upper()


def serve() -> None:
    """An MCP server with one tool, on standard input and output."""
    from mcp.server import MCPServer

    server = MCPServer("words")

    @server.tool()
    def count_words(text: str) -> int:
        """Count the words of a text."""
        return len(text.split())

    server.run("stdio")


@sl.function
def agent(s: sl.ProgramState, question: str, tools: list[sl.Tool]) -> None:
    s["results"] = sl.use_tools(
        s, tools, question, rounds=1, required=True, parallel=False, max_tokens=64, temperature=0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="How many words are in 'so far so good'?")
    parser.add_argument("--server", help="URL of an MCP server (streamable HTTP)")
    parser.add_argument("--serve", action="store_true", help="be the server")
    args = parser.parse_args()
    if importlib.util.find_spec("mcp") is None:
        print("mcp_tools: skipped: the package mcp is not there (pip install 'stolon[mcp]')")
    elif args.serve:
        serve()
    else:
        with sl.mcp_tools(args.server or [sys.executable, __file__, "--serve"]) as theirs:
            tools = [*theirs, sl.tool(shout)]
            print(f"tools   {', '.join(tool.name for tool in tools)}")
            state = agent.run(args.question, tools)
        for result in state["results"]:
            print(f"called  {result.call.name} {result.call.arguments} -> {result.text}")
        print(f"answer  {state['answer']}")


if __name__ == "__main__":
    with frame():
        main()
