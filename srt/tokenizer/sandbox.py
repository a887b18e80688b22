"""The Jinja sandbox that chat templates run in.

A template comes with a model file and is not trusted. It sees no Python, no files and no loader;
its output, its loop steps and its time are bounded:

* every `for` charges its steps to a budget, so `range`, nested loops and recursive macros end; so does
  every call, and every filter and method what it goes through;
* the operators that build strings or lists (``+ * ** % ~``) and the output refuse results over a
  cap;
* filters and methods take no number over a thousand, as ``|center(10**9)`` would, and what they
  put together is measured before it is made;
* the clock is looked at in every step of a loop, and whenever something is charged.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import TemplateError as JinjaError
from jinja2 import nodes, pass_context
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_OUTPUT_CHARS = 1 << 20  # beyond the length of the messages
MAX_STEPS = 1_000_000
MAX_SECONDS = 5.0
BUDGET = "_stolon_budget"  # the name under which a rendering passes its Budget
_COUNT = "_stolon_count"
_JOIN = "_stolon_join"
MAX_BITS = 4096  # of whole numbers that are multiplied
MAX_NUMBER = 1000  # that a filter or a method is given: a width, an indent, a number of items
_OWN = frozenset({_COUNT, _JOIN})  # these charge what they do themselves
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{4,}|\*)")
_WIDE_FIELD = re.compile(r"\{[^{}]*(\d{4,}|\{)")


class BudgetExceeded(Exception):
    """The template does more than any chat template needs."""


class RaisedByTemplate(Exception):
    """The template called raise_exception."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self, content_chars: int) -> None:
        self.max_chars = MAX_OUTPUT_CHARS + content_chars
        self._chars = self.max_chars
        self._steps = MAX_STEPS + content_chars
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise BudgetExceeded("it loops too often")
        if time.monotonic() > self._deadline:
            raise BudgetExceeded(f"it runs longer than {MAX_SECONDS:g} s")

    def output(self, chars: int) -> None:
        self._chars -= chars
        if self._chars < 0:
            raise BudgetExceeded(f"its output is longer than {self.max_chars} characters")
        self.step()


class _GenerationTag(Extension):
    """``{% generation %}`` marks text for training; here it only passes its body through."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """An immutable sandbox with the settings and helpers that chat templates expect."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            loader=None,
            cache_size=0,
        )
        self.filters["tojson"] = _tojson
        self.filters[_COUNT] = _count
        self.filters[_JOIN] = _join
        for name, function in self.filters.items():
            self.filters[name] = _bounded(name, function)
        del self.globals["lipsum"]  # makes text of any length; no chat needs it
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = _strftime_now

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = _through(_COUNT, loop.iter)
        for concat in list(tree.find_all(nodes.Concat)):
            concat.nodes = [_through(_JOIN, nodes.List(concat.nodes, lineno=concat.lineno))]
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        budget.step()
        receiver = getattr(obj, "__self__", None)
        if isinstance(receiver, str | list | dict):
            _check_call(budget, obj.__name__, receiver, (*args, *kwargs.values()))
            _charge(budget, receiver)
        return super().call(context, obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and _WIDE_FIELD.search(value.__self__):
            raise BudgetExceeded("it formats to a width over 999")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        if operator == "*":
            for sized, times in ((left, right), (right, left)):
                if isinstance(sized, str | list | tuple) and isinstance(times, int):
                    _check_size(budget, len(sized) * times)
            if (
                isinstance(left, int)
                and isinstance(right, int)
                and max(left.bit_length(), right.bit_length()) > MAX_BITS
            ):
                raise BudgetExceeded("it computes too large a number")
        elif operator == "**":
            if not (abs(left) <= 10**6 and abs(right) <= 64):
                raise BudgetExceeded("it computes too large a power")
        elif operator == "%" and isinstance(left, str) and _WIDE_FORMAT.search(left):
            raise BudgetExceeded("it formats to a width over 999")
        elif isinstance(left, str | list | tuple):
            _check_size(budget, len(left) + len(right))
        return super().call_binop(context, operator, left, right)


def _check_size(budget: Budget, size: int) -> None:
    if size > budget.max_chars:
        raise BudgetExceeded(f"it builds a value longer than {budget.max_chars}")


def _check_call(budget: Budget, name: str, receiver: Any, arguments: tuple[Any, ...]) -> None:
    """Refuse a filter or method that pads, or whose result would be too long."""
    if any(isinstance(a, int) and abs(a) > MAX_NUMBER for a in arguments):
        raise BudgetExceeded(f"it gives {name} a number over {MAX_NUMBER}")
    texts = [a for a in arguments if isinstance(a, str)]
    if isinstance(receiver, str):
        if name == "replace" and len(texts) == 2:
            _check_size(budget, len(receiver) + receiver.count(texts[0]) * len(texts[1]))
        elif name in ("indent", "wordwrap", "expandtabs", "urlize"):
            longest = max((len(text) for text in texts), default=0)
            _check_size(budget, len(receiver) * (1 + longest // 4) + longest)
        elif name == "format" and _WIDE_FORMAT.search(receiver):
            raise BudgetExceeded("it formats to a width over 999")
        elif name == "join" and arguments and isinstance(arguments[0], list | tuple):
            _check_joined(budget, arguments[0], receiver)
    elif name == "join" and isinstance(receiver, list | tuple):
        _check_joined(budget, receiver, texts[0] if texts else "")


def _charge(budget: Budget, value: Any) -> Any:
    """Pay for going through a value once. Returns it; what has no length pays as it goes."""
    if isinstance(value, Sized):
        budget.step(1 + (len(value) // 64 if isinstance(value, str | bytes) else len(value)))
        return value
    return _counted(budget, value) if isinstance(value, Iterator) else value


def _check_joined(budget: Budget, parts: Sized, between: str) -> None:
    _check_size(budget, len(parts) * len(between))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is checked before it is called. It is given the context whatever it takes itself."""
    wants = getattr(function, "jinja_pass_arg", None)

    @pass_context
    @wraps(function)
    def checked(context: Context, value: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget: Budget = context.parent[BUDGET]
        _check_call(budget, name, value, (*args, *kwargs.values()))
        if name not in _OWN:
            value = _charge(budget, value)
        first = {
            "context": (context,),
            "eval_context": (context.eval_ctx,),
            "environment": (context.environment,),
        }.get(wants.name if wants is not None else "", ())
        return function(*first, value, *args, **kwargs)

    return checked


def _through(filter_name: str, value: nodes.Node) -> nodes.Filter:
    return nodes.Filter(value, filter_name, [], [], None, None, lineno=value.lineno)


@pass_context
def _count(context: Context, items: Iterable[Any]) -> Iterable[Any]:
    budget: Budget = context.parent[BUDGET]
    if isinstance(items, Sized):
        budget.step(1 + len(items))
        return _Watched(budget, items)
    return _counted(budget, items)


class _Watched:
    """What a loop goes through, paid for beforehand; its body may take long without any other step."""

    def __init__(self, budget: Budget, items: Any) -> None:
        self._budget, self._items = budget, items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step(0)
            yield item


def _counted(budget: Budget, items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        budget.step()
        yield item


@pass_context
def _join(context: Context, values: list[Any]) -> str:
    texts = [str(value) for value in values]
    _check_size(context.parent[BUDGET], sum(map(len, texts)))
    return "".join(texts)


def _raise(message: str = "") -> NoReturn:
    raise RaisedByTemplate(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models are trained on it: unlike Jinja's own filter it does not escape HTML."""
    if isinstance(indent, int) and indent > 16:
        raise BudgetExceeded("it indents JSON by more than 16")
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


__all__ = ["BUDGET", "Budget", "BudgetExceeded", "JinjaError", "RaisedByTemplate", "Sandbox"]
