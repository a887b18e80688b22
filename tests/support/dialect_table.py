"""The table of dialects as docs/backends.md shows it. Run as a script it prints the table."""

from __future__ import annotations

from stolon.lang.backends.dialect import Dialect
from stolon.lang.backends.dialects import DIALECTS
from stolon.srt.protocol import Sampling

_CONSTRAINTS = ("json_schema", "json_object", "regex", "choice", "ebnf")
_QUIET = {"max_tokens", "jump_forward", "speculation"}


def table() -> str:
    """Two tables: constraints and abilities, then the sampling arguments."""
    lines = [
        "| dialect | server | "
        + " | ".join(_CONSTRAINTS)
        + " | select | prefill | log-probs | n |",
        "|---|---|" + "---|" * (len(_CONSTRAINTS) + 4),
    ]
    for name, row in DIALECTS.items():
        cells = [_constraint(row, kind) for kind in _CONSTRAINTS]
        cells += [
            _where(row, row.scored if row.scoring else ()),
            "no" if row.prefill is None else "yes",
            _where(row, row.logprobs),
            "one call" if row.samples else "n calls",
        ]
        lines.append(
            f"| `{name}` | {row.title} {row.version}".rstrip() + " | " + " | ".join(cells) + " |"
        )
    fields = [name for name in Sampling.__struct_fields__ if name not in _QUIET]
    lines += ["", "| argument | honoured by |", "|---|---|"]
    for field in fields:
        able = [name for name, row in DIALECTS.items() if field in row.sampling]
        told = ", ".join(able) if able else "none of them"
        lines.append(f"| `{field}` | {'all' if len(able) == len(DIALECTS) else told} |")
    return "\n".join(lines)


def _constraint(row: Dialect, kind: str) -> str:
    return _where(row, [e for e in row.endpoints if kind in row.constraints_of(e)])


def _where(row: Dialect, endpoints: object) -> str:
    able = [e for e in row.endpoints if e in endpoints]  # type: ignore[operator]
    if not able:
        return "no"
    if len(able) == len(row.endpoints):
        return "yes"
    return "in messages" if able == ["chat"] else "in text"


if __name__ == "__main__":
    print(table())
