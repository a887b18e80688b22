"""A function that a model may call: its name, what it is for, and the schema of its arguments."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from stolon.errors import InvalidRequest
from stolon.lang.program import Function
from stolon.lang.tools.docstring import described

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")

Validate = Callable[[str], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Tool:
    """Something to call by name with JSON arguments. Made by `tool` or `mcp_tools`.

    Attributes:
        name: what the model writes.
        description: what it is for, shown to the model.
        parameters: JSON Schema of the arguments, an object.
        function: what is called with the arguments as keywords; a coroutine function is awaited. A
            program is called with a fork of the conversation as its first argument.
        validate: JSON text of the arguments to keyword arguments; raises ValueError.
        exact: whether every keyword of `parameters` has to be enforced while the arguments are written;
            otherwise those that can't be are left to `function` to check.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]
    validate: Validate
    exact: bool = True

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidRequest(
                f"{self.name[:80]!r} is no name for a tool",
                param="name",
                hint="1 to 64 letters, digits or any of _ . - and no digit first",
            )

    @property
    def is_async(self) -> bool:
        """Whether it must be awaited."""
        if isinstance(self.function, Function):
            return self.function.is_async
        return asyncio.iscoroutinefunction(self.function) or asyncio.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004
        )

    def describe(self) -> dict[str, Any]:
        """OpenAI's description of a function tool."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }


Tools = Iterable[Any] | Callable[..., Any] | Tool
"""Functions, programs and tools, or a single one."""


def tool(
    function: Callable[..., Any] | Tool,
    *,
    name: str | None = None,
    description: str | None = None,
) -> Tool:
    """A tool from a Python function or a program: its signature becomes the schema of the arguments.

    What `Function.bind` or `functools.partial` has fixed is no argument of the tool.

    Parameters are described by the docstring (Google's or Sphinx's style) or by
    ``Annotated[type, pydantic.Field(...)]``. Without an annotation a parameter takes any JSON value. Works
    as a decorator too.

    Raises InvalidRequest for a function whose arguments JSON can't name (``*args``, positional-only) or
    whose types pydantic can't describe.
    """
    if isinstance(function, Tool):
        return function
    given: Any = function
    if not callable(given):
        raise InvalidRequest(f"{given!r} can't be called", param="function")
    body: Any = function.body if isinstance(function, Function) else function
    bound = ("s", *function.bound) if isinstance(function, Function) else ()
    own = body  # what has the name and the description
    while isinstance(own, functools.partial):
        bound, own = (*bound, *own.keywords), own.func
    title: str = name or getattr(own, "__name__", None) or type(own).__name__
    about, notes = described(own)
    model = _arguments(body, title, notes, bound)
    schema = model.model_json_schema()
    for part in (schema, *schema.get("properties", {}).values()):
        part.pop("title", None)  # it only repeats the name

    def validate(text: str) -> dict[str, Any]:
        found = model.model_validate_json(text)
        # Not model_dump: a parameter may be a model itself, and is to stay one.
        return {field: getattr(found, field) for field in type(found).model_fields}

    return Tool(
        name=title,
        description=about if description is None else description,
        parameters=schema,
        function=function,
        validate=validate,
    )


def as_tools(given: Tools) -> dict[str, Tool]:
    """Tools by name, functions made into tools; a single one needs no list.

    Raises InvalidRequest for two of one name, for none, and for what is no list.
    """
    tools: dict[str, Tool] = {}
    several: Any = (given,) if isinstance(given, Tool) or callable(given) else given
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise InvalidRequest(
            f"tools must be a list of functions, programs or tools, not {given!r}", param="tools"
        )
    for item in several:
        made = item if isinstance(item, Tool) else tool(item)
        if made.name in tools:
            raise InvalidRequest(
                f"two tools are named {made.name!r}",
                param="tools",
                hint="tool(function, name=...) gives another name",
            )
        tools[made.name] = made
    if not tools:
        raise InvalidRequest("there are no tools", param="tools")
    return tools


def _arguments(
    body: Callable[..., Any], title: str, notes: dict[str, str], bound: Collection[str]
) -> Any:
    """A pydantic model of the parameters but for those that are `bound`."""
    # pydantic takes longer to import than the rest of the language; see `typed`.
    from pydantic import ConfigDict, Field, PydanticUserError, create_model

    fields: dict[str, Any] = {}
    try:
        parameters = list(inspect.signature(body, eval_str=True).parameters.values())
    except (NameError, TypeError, ValueError) as error:
        raise InvalidRequest(f"the signature of {title} can't be read: {error}") from None
    for parameter in parameters:
        if parameter.name in bound:
            continue
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
            raise InvalidRequest(
                f"tool {title!r}: parameter {parameter.name!r} has no name in a call",
                hint="tools are called with keyword arguments",
            )
        if parameter.kind is parameter.VAR_KEYWORD:
            raise InvalidRequest(f"tool {title!r} takes any keyword: what should be generated?")
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        default = ... if parameter.default is parameter.empty else parameter.default
        note = notes.get(parameter.name)
        fields[parameter.name] = (kind, Field(default, description=note) if note else default)
    try:
        return create_model(title, __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticUserError, NameError, TypeError) as error:
        message = getattr(error, "message", str(error))
        raise InvalidRequest(f"the parameters of {title} can't be described: {message}") from None


def text_of(value: Any) -> str:
    """What a tool returned, as the model reads it: text as it is, other values as JSON if they can be."""
    if isinstance(value, str):
        return value
    from pydantic import TypeAdapter
    from pydantic_core import PydanticSerializationError

    try:
        return json.dumps(TypeAdapter(Any).dump_python(value, mode="json"), ensure_ascii=False)
    except (PydanticSerializationError, ValueError, TypeError):
        return str(value)
