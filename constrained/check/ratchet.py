"""A file of what each case came to, so that no change makes one worse unnoticed."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from stolon.constrained.check.cases import Outcome
from stolon.errors import InvalidRequest

__all__ = ["Change", "compare", "load", "save"]

_RANK: dict[Outcome, int] = {
    "exact": 3,
    "untested": 3,
    "incomplete": 2,
    "refused": 2,
    "timeout": 1,
    "crash": 1,
    "error": 1,
    "unsound": 0,
}


class Change(msgspec.Struct, frozen=True):
    """A case whose outcome is another one now."""

    name: str
    before: Outcome
    now: Outcome

    @property
    def worse(self) -> bool:
        return _RANK[self.now] < _RANK[self.before]


def load(path: Path) -> dict[str, Outcome]:
    """Read a ratchet file.

    Raises:
        InvalidRequest: it can't be read or is something else.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Outcome])
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"the ratchet file can't be read: {error}", where=str(path)) from None


def save(path: Path, outcomes: dict[str, Outcome]) -> None:
    """Write a ratchet file, one case a line."""
    path.write_text(json.dumps(outcomes, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")


def compare(before: dict[str, Outcome], now: dict[str, Outcome]) -> list[Change]:
    """Cases of both whose outcome changed. Those of one alone are new or gone, not changed."""
    return [
        Change(name, before[name], outcome)
        for name, outcome in now.items()
        if name in before and before[name] != outcome
    ]
