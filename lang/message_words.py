"""The words for messages: a role around what is said, and its two halves. Images and videos are refused."""

from __future__ import annotations

from typing import Any, NoReturn

from stolon.errors import InvalidRequest
from stolon.lang.arguments import word
from stolon.lang.ir import Expr, Role, RoleBegin, RoleEnd, as_expr


@word
def system(expr: Any = None) -> Expr:
    """A complete system message."""
    return _message("system", expr)


@word
def user(expr: Any = None) -> Expr:
    """A complete user message."""
    return _message("user", expr)


@word
def assistant(expr: Any = None) -> Expr:
    """A complete assistant message, usually with a generation inside."""
    return _message("assistant", expr)


@word
def system_begin() -> Expr:
    """Open a system message."""
    return RoleBegin("system")


@word
def system_end() -> Expr:
    """Close a system message."""
    return RoleEnd("system")


@word
def user_begin() -> Expr:
    """Open a user message."""
    return RoleBegin("user")


@word
def user_end() -> Expr:
    """Close a user message."""
    return RoleEnd("user")


@word
def assistant_begin() -> Expr:
    """Open an assistant message."""
    return RoleBegin("assistant")


@word
def assistant_end() -> Expr:
    """Close an assistant message."""
    return RoleEnd("assistant")


@word
def image(path: str) -> NoReturn:
    """Refused: no model with image input is implemented."""
    raise InvalidRequest(f"image({path!r}): images are not supported; text models only")


@word
def video(path: str, num_frames: int) -> NoReturn:
    """Refused: no model with video input is implemented."""
    raise InvalidRequest(f"video({path!r}): videos are not supported; text models only")


def _message(role: Role, expr: Any) -> Expr:
    inside = [] if expr is None else [expr]
    return as_expr([RoleBegin(role), *inside, RoleEnd(role)])
