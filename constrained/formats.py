"""String formats of JSON Schema, as patterns where llguidance's own are too wide.

Dates follow RFC 3339 and exist (2021-02-29 does not). Left out, since common parsers reject them:
the year 0000, leap seconds, and more than nine digits of a second. Host names follow RFC 1123
without internationalised (``xn--``) labels.
"""

from __future__ import annotations

from typing import Any

__all__ = ["FORMATS", "format_schema"]

_YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9][0-9]|[0-9][1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
# Divisible by 4 and no century; or a century divisible by 400.
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29"
_DATE = f"(?:{_YEAR}-{_DAY}|{_LEAP})"
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
# 1 to 63 letters, digits and inner hyphens, but no hyphens in both the third and the fourth place
# (RFC 5891, 4.2.3.1).
_LABEL = (
    "[A-Za-z0-9](?:[A-Za-z0-9-]?[A-Za-z0-9]|[A-Za-z0-9-]{2}[A-Za-z0-9]"
    "|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9])?"
)

_OWN: dict[str, dict[str, Any]] = {
    "date": {"pattern": f"^{_DATE}$"},
    "time": {"pattern": f"^{_TIME}$"},
    "date-time": {"pattern": f"^{_DATE}[Tt]{_TIME}$"},
    "hostname": {"pattern": rf"^{_LABEL}(?:\.{_LABEL})*$", "maxLength": 253},
}
FORMATS = frozenset([*_OWN, "duration", "email", "ipv4", "ipv6", "uri", "uuid"])


def format_schema(name: str) -> dict[str, Any]:
    """A schema that enforces a format of `FORMATS` on strings and says nothing of other values."""
    return _OWN.get(name, {"format": name})
