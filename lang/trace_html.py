"""A trace as a piece of HTML, for notebooks: one table, no scripts, nothing fetched.

Names come from programs, and what they run; every text is escaped. Colours are mixed with those of
the page around it, so that it reads on light and on dark.
"""

from __future__ import annotations

from html import escape
from itertools import islice
from typing import TYPE_CHECKING

from stolon.lang.trace_text import Row, duration, printable, rows, summary

if TYPE_CHECKING:
    from stolon.lang.call_trace import CallTrace
    from stolon.lang.trace import Trace

# A page with more would be slow to draw and nothing to read.
MAX_ROWS = 500

_PHASES = (("queue", "#9a9a9a"), ("prefill", "#4f8fd8"), ("decode", "#3fa66b"))
_OTHER = "#b58a3c"
_CELL = "padding:1px 8px;text-align:right;border:0;background:none;color:inherit;white-space:nowrap"
_HEAD = f"{_CELL};opacity:.65;font-weight:normal"
# A long name is cut, so that the columns stay in sight; the row's title has all of it.
_LEFT = "text-align:left;white-space:pre;max-width:48ch;overflow:hidden;text-overflow:ellipsis"
_COUNTS = ("cached", "computed", "forced", "generated", "drafted", "accepted")


def page(trace: Trace) -> str:
    """The table: a row for each call and each branch, with a bar for the time."""
    heads = ("", *_COUNTS, "finish", "time", "")
    parts = [
        '<div style="overflow-x:auto;color:inherit">',
        f"<div>{escape(summary(trace))}</div>",
        '<table style="border-collapse:collapse;font-family:monospace;font-size:90%;color:inherit">',
        "<thead><tr>",
        *(f'<th style="{_HEAD}">{head}</th>' for head in heads),
        "</tr></thead><tbody>",
    ]
    lines = rows(trace)
    whole = trace.seconds or 1.0
    parts += [_row(row, whole) for row in islice(lines, MAX_ROWS)]
    more = sum(1 for _ in lines)
    if more:
        parts.append(f'<tr><td style="{_CELL};{_LEFT}">… {more} more lines</td></tr>')
    total = trace.totals
    cells = _cells("total", total.cached, total.computed, total.forced, total.sampled)
    cells += _cells_right(str(total.drafted), str(total.accepted), "", duration(trace.seconds))
    parts.append(f'<tr style="border-top:1px solid #8888">{cells}</tr></tbody></table>')
    parts.append(f'<div style="{_HEAD};text-align:left;padding:2px 8px">{_legend()}</div></div>')
    return "".join(parts)


def _row(row: Row, whole: float) -> str:
    call = row.call
    if call is None:
        return f'<tr><td style="{_CELL};{_LEFT}">{escape(row.guide + row.label)}</td></tr>'
    tokens = call.tokens
    cells = _cells(
        row.guide + row.label, tokens.cached, tokens.computed, tokens.forced, tokens.sampled
    )
    finish = call.finish if call.error is None else f"error: {call.error}"
    cells += _cells_right(str(tokens.drafted), str(tokens.accepted), finish, duration(call.seconds))
    note = f"{row.label} at {call.where}"
    if call.message is not None:
        note += f": {call.message}"
    return f'<tr title="{escape(printable(note))}">{cells}{_bar(call, whole)}</tr>'


def _cells(label: str, *counts: int) -> str:
    return f'<td style="{_CELL};{_LEFT}">{escape(label)}</td>' + _cells_right(*map(str, counts))


def _cells_right(*texts: str) -> str:
    return "".join(f'<td style="{_CELL}">{escape(printable(text))}</td>' for text in texts)


def _bar(call: CallTrace, whole: float) -> str:
    """The call's time on a line as long as the run, in its phases."""
    if call.started is None or call.seconds is None:
        return ""
    phases = [(getattr(call, f"{name}_time"), colour) for name, colour in _PHASES]
    known = sum(seconds for seconds, _ in phases)
    phases.append((max(call.seconds - known, 0.0), _OTHER))
    scale = call.seconds / max(known, call.seconds, 1e-9) / whole * 100
    pieces = "".join(
        f'<div style="width:{seconds * scale:.3f}%;background:{colour}"></div>'
        for seconds, colour in phases
        if seconds > 0
    )
    line = f"display:flex;width:160px;height:9px;padding-left:{call.started / whole * 160:.1f}px"
    return f'<td style="{_CELL}"><div style="{line};box-sizing:border-box">{pieces}</div></td>'


def _legend() -> str:
    return " ".join(
        f'<span style="color:{colour}">■</span> {name}'
        for name, colour in (*_PHASES, ("other", _OTHER))
    )
