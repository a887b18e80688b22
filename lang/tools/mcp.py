"""Tools of a Model Context Protocol server, through the official package: ``pip install stolon[mcp]``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from stolon.errors import BackendUnavailable, InvalidRequest
from stolon.lang.runtime_loop import runtime_loop, wait_for
from stolon.lang.tools.tool import Tool

MAX_TOOLS = 256
MAX_SCHEMA_BYTES = 64 << 10


def mcp_tools(
    server: str | Sequence[str] | Any,
    *,
    env: dict[str, str] | None = None,
    timeout: float = 30.0,
    prefix: str = "",
) -> MCPServer:
    """Connect to an MCP server within a ``with`` or ``async with``, which gives the list of its tools.

    Args:
        server: the URL of a server (streamable HTTP), the command line of one as a list (it is started,
            and talked to over its standard input and output), or what ``mcp.Client`` takes.
        env: environment variables of a started server, besides a few harmless ones.
        timeout: seconds for connecting, and for every call.
        prefix: put in front of the tools' names, to keep servers apart.
    """
    return MCPServer(server, env=env, timeout=timeout, prefix=prefix)


class MCPServer:
    """A connection to an MCP server; see `mcp_tools`. It lives on the language's own event loop.

    The server is not trusted: what it says is text for the model and nothing else, and schemas are bounded.
    A keyword of a schema that can't be enforced is left to the server to check.
    """

    def __init__(
        self, server: Any, *, env: dict[str, str] | None, timeout: float, prefix: str
    ) -> None:
        self._server = server
        self._env = env
        self._timeout = timeout
        self._prefix = prefix
        self._client: Any = None
        self._stop: asyncio.Event | None = None
        self._ended: Future[None] | None = None

    def __enter__(self) -> list[Tool]:
        return self._begin().result()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end().result()

    async def __aenter__(self) -> list[Tool]:
        return await wait_for(self._begin())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await wait_for(self._end())

    def _begin(self) -> Future[list[Tool]]:
        if self._ended is not None:
            raise InvalidRequest("the MCP connection is open already")
        ready: Future[list[Tool]] = Future()
        # One task opens and closes the connection, as its cancel scopes want it.
        self._ended = runtime_loop().submit(self._live(_client(self._server, self._env), ready))
        return ready

    def _end(self) -> Future[None]:
        ended, self._ended = self._ended, None
        if ended is None:
            ended = Future()
            ended.set_result(None)
        elif self._stop is not None:
            runtime_loop().call(self._stop.set)
        return ended

    async def _live(self, client: Any, ready: Future[list[Tool]]) -> None:
        self._stop = asyncio.Event()
        try:
            async with asyncio.timeout(self._timeout) as limit, client:
                self._client = client
                tools = await self._list(client)
                limit.reschedule(None)
                ready.set_result(tools)
                await self._stop.wait()
        except Exception as error:
            if ready.done():
                return
            while isinstance(error, BaseExceptionGroup) and error.exceptions:
                error = error.exceptions[0]  # type: ignore[assignment]
            ready.set_exception(
                error
                if isinstance(error, InvalidRequest)
                else BackendUnavailable(
                    f"the MCP server can't be reached: {type(error).__name__}: {str(error)[:300]}"
                )
            )
        finally:
            self._client = None

    async def _list(self, client: Any) -> list[Tool]:
        tools: list[Tool] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            tools += [self._tool(found) for found in page.tools]
            cursor = page.next_cursor
            if len(tools) > MAX_TOOLS:
                raise InvalidRequest(f"the MCP server offers more than {MAX_TOOLS} tools")
            if not cursor or not page.tools:
                return tools

    def _tool(self, found: Any) -> Tool:
        schema = found.input_schema or {"type": "object"}
        if len(json.dumps(schema)) > MAX_SCHEMA_BYTES:
            raise InvalidRequest(f"the schema of the MCP tool {found.name[:80]!r} is too large")
        name = found.name

        async def call(**arguments: Any) -> str:
            return await wait_for(runtime_loop().submit(self._call(name, arguments)))

        return Tool(
            name=self._prefix + name,
            description=(found.description or "").strip(),
            parameters=schema,
            function=call,
            validate=_object,
            exact=False,
        )

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        if self._client is None:
            raise BackendUnavailable("the connection to the MCP server is closed")
        result = await self._client.call_tool(name, arguments, read_timeout_seconds=self._timeout)
        parts = [
            part.text if part.type == "text" else f"[{part.type} left out]"
            for part in result.content
        ]
        text = "\n".join(parts)
        if result.is_error:
            raise ValueError(text or "the tool failed")
        return text


def _client(server: Any, env: dict[str, str] | None) -> Any:
    try:
        from mcp import Client, StdioServerParameters
    except ImportError:
        raise InvalidRequest(
            "MCP servers need the package mcp", hint="pip install 'stolon[mcp]'"
        ) from None
    if isinstance(server, list | tuple):
        if not server or not all(isinstance(word, str) for word in server):
            raise InvalidRequest("a command line is a list of strings", param="server")
        server = StdioServerParameters(command=server[0], args=list(server[1:]), env=env)
    elif env is not None:
        raise InvalidRequest("env is for a server that is started by its command", param="env")
    elif isinstance(server, str) and not server.startswith(("http://", "https://")):
        raise InvalidRequest(
            f"{server!r} is no URL", param="server", hint="a command is given as a list of words"
        )
    return Client(server)


def _object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("the arguments are no object")
    return found
