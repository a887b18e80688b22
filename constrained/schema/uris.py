"""Relative references between addresses (RFC 3986)."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

__all__ = ["join"]


def join(base: str, reference: str) -> str:
    """Resolve a URI reference without a fragment against an absolute URI (RFC 3986, 5.2).

    Raises:
        ValueError: no URI.
    """
    own, outer = urlsplit(reference), urlsplit(base)
    if own.scheme:
        return urlunsplit((own.scheme, own.netloc, _without_dots(own.path), own.query, ""))
    netloc, path, query = own.netloc, own.path, own.query
    if not netloc:
        netloc = outer.netloc
        if not path:
            path, query = outer.path, query or outer.query
        elif not path.startswith("/"):
            slash = outer.path.rfind("/")
            path = (outer.path[: slash + 1] if slash >= 0 or not netloc else "/") + path
    return urlunsplit((outer.scheme, netloc, _without_dots(path), query, ""))


def _without_dots(path: str) -> str:
    """Remove ``.`` and ``..`` segments (RFC 3986, 5.2.4)."""
    if "." not in path:
        return path
    kept: list[str] = []
    parts = path.split("/")
    for i, part in enumerate(parts):
        last = i == len(parts) - 1
        if part == "..":
            if len(kept) > 1:
                kept.pop()
            if last:
                kept.append("")
        elif part == ".":
            if last:
                kept.append("")
        else:
            kept.append(part)
    return "/".join(kept)
