"""String formats of JSON Schema as patterns, in the dialect of `stolon.constrained.regex_parser`.

Formats of the drafts are enforced or refused; any other name is an annotation, as the drafts have
it. Dates follow RFC 3339 and exist (2021-02-29 does not). Left out, since common parsers reject
them: the year 0000, leap seconds, and more than nine digits of a second. Host names follow RFC 1123
without internationalised (``xn--``) labels; e-mail addresses RFC 5321; URIs and IRIs RFC 3986 and
3987; templates RFC 6570; pointers RFC 6901; durations the grammar in appendix A of RFC 3339.
"""

from __future__ import annotations

from typing import Any

from stolon.constrained.regex_ast import Node
from stolon.constrained.regex_parser import parse_regex
from stolon.constrained.regex_print import to_rust

__all__ = ["ENFORCED_FORMATS", "STANDARD_FORMATS", "format_pattern", "format_rust", "format_tree"]

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
_MINUTES = "(?:[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_CLOCK = f"T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|{_MINUTES})"
_MONTHS = "(?:[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_DURATION = f"P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|{_MONTHS})(?:{_CLOCK})?|{_CLOCK})"

# 1 to 63 letters, digits and inner hyphens, but no hyphens in both the third and the fourth place
# (RFC 5891, 4.2.3.1).
_LABEL = (
    "[A-Za-z0-9](?:[A-Za-z0-9-]?[A-Za-z0-9]|[A-Za-z0-9-]{2}[A-Za-z0-9]"
    "|[A-Za-z0-9-](?:[A-Za-z0-9][A-Za-z0-9-]|-[A-Za-z0-9])[A-Za-z0-9-]{0,58}[A-Za-z0-9])?"
)
_HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [f"(?:{_H16}:){{6}}{_LS32}", f"::(?:{_H16}:){{5}}{_LS32}"]
        + [f"(?:(?:{_H16}:){{0,{n}}}{_H16})?::(?:{_H16}:){{{4 - n}}}{_LS32}" for n in range(5)]
        + [f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}", f"(?:(?:{_H16}:){{0,6}}{_H16})?::"]
    )
    + ")"
)
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL = rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@(?:{_HOST}|\[(?:{_IPV4}|IPv6:{_IPV6})\])"

_PERCENT = "%[0-9A-Fa-f]{2}"
_UCS = (
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_PRIVATE = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _resource(*, extra: str, private: str, relative: bool) -> str:
    """The grammar of RFC 3986; with `extra` characters that of RFC 3987."""
    unreserved = f"A-Za-z0-9._~{extra}"
    sub = "!$&'()*+,;="
    pchar = f"(?:[{unreserved}{sub}:@-]|{_PERCENT})"
    user = f"(?:[{unreserved}{sub}:-]|{_PERCENT})*"
    name = f"(?:[{unreserved}{sub}-]|{_PERCENT})*"
    literal = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[A-Za-z0-9._~{sub}:-]+)\]"
    authority = f"//(?:{user}@)?(?:{literal}|{name})(?::[0-9]*)?(?:/{pchar}*)*"
    absolute = f"/(?:{pchar}+(?:/{pchar}*)*)?"
    rootless = f"{pchar}+(?:/{pchar}*)*"
    tail = rf"(?:\?(?:{pchar}|[/?{private}])*)?(?:#(?:{pchar}|[/?])*)?"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|{rootless}|){tail}"
    if not relative:
        return whole
    segment = f"(?:[{unreserved}{sub}@-]|{_PERCENT})+"
    return f"(?:{whole}|(?:{authority}|{absolute}|{segment}(?:/{pchar}*)*|){tail})"


_VARIABLE = rf"(?:[A-Za-z0-9_]|{_PERCENT})(?:\.?(?:[A-Za-z0-9_]|{_PERCENT}))*"
_SPEC = rf"{_VARIABLE}(?::[1-9][0-9]{{0,3}}|\*)?"
_TEMPLATE = (
    rf"(?:[!#$&-;=?-\[\]_a-z~{_UCS}{_PRIVATE}]|{_PERCENT}"
    rf"|\{{[+#./;?&=,!@|]?{_SPEC}(?:,{_SPEC})*\}})*"
)
_POINTER = "(?:/(?:[^/~]|~[01])*)*"

_PATTERNS: dict[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "email": _EMAIL,
    "uuid": "[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
    "uri": _resource(extra="", private="", relative=False),
    "uri-reference": _resource(extra="", private="", relative=True),
    "iri": _resource(extra=_UCS, private=_PRIVATE, relative=False),
    "iri-reference": _resource(extra=_UCS, private=_PRIVATE, relative=True),
    "uri-template": _TEMPLATE,
    "json-pointer": f"(?s){_POINTER}",
    "relative-json-pointer": f"(?s)(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
}
_LENGTHS = {"hostname": 253}
ENFORCED_FORMATS = frozenset(_PATTERNS)
STANDARD_FORMATS = ENFORCED_FORMATS | {"idn-email", "idn-hostname", "regex"}
_trees: dict[str, Node] = {}
_rust: dict[str, str] = {}


def format_pattern(name: str) -> tuple[str, int | None]:
    """The pattern of a format of `ENFORCED_FORMATS`, and the most characters it may have."""
    return _PATTERNS[name], _LENGTHS.get(name)


def format_tree(name: str) -> Node:
    """The pattern's tree, parsed once."""
    if name not in _trees:
        _trees[name] = parse_regex(_PATTERNS[name])
    return _trees[name]


def format_rust(name: str) -> dict[str, Any]:
    """A schema that enforces a format on strings, its pattern in the syntax of Rust's regex crate."""
    if name not in _rust:
        _rust[name] = f"^(?:{to_rust(format_tree(name))})$"
    longest = _LENGTHS.get(name)
    return {"pattern": _rust[name]} | ({} if longest is None else {"maxLength": longest})
