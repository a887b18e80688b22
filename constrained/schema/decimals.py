"""Numbers in decimal notation as regexes: bounds, fractions, and multiples of whole numbers."""

from __future__ import annotations

from fractions import Fraction

__all__ = ["FRACTION", "NOTHING", "PRECISE", "at_least", "at_most", "fraction_of", "multiple_of"]

FRACTION = r"-?(0|[1-9][0-9]*)\.[0-9]*[1-9][0-9]*"
"""Numbers with a fraction that is not 0, without an exponent."""

PRECISE = (
    r"-?(0\.[0-9]{1,16}"
    + "".join(rf"|[1-9][0-9]{{{size - 1}}}\.[0-9]{{1,{15 - size}}}" for size in range(1, 15))
    + ")"
)
"""Decimal notations so short that rounding to a double makes no whole number of a fraction."""

NOTHING = "[^\\s\\S]"
"""Matches no text."""

_WHOLE = "(0|[1-9][0-9]*)"
_TAIL = r"(\.[0-9]+)?"
MAX_REGEX = 20_000


def at_least(bound: Fraction, *, above: bool) -> str | None:
    """Decimal notations of numbers from a bound on (`above`: beyond it).

    None for a bound that has no finite decimal notation.
    """
    digits = _digits(abs(bound))
    if digits is None:
        return None
    if bound >= 0:
        return _from(*digits, above)
    return f"({_WHOLE}{_TAIL}|-{_to(*digits, above)})"


def at_most(bound: Fraction, *, below: bool) -> str | None:
    """Decimal notations of numbers up to a bound (`below`: before it), but for those of zero."""
    digits = _digits(abs(bound))
    if digits is None:
        return None
    if bound < 0:
        return f"-{_from(*digits, below)}"
    if bound == 0 and below:
        return f"-{_from('0', '', True)}"
    return f"(-{_WHOLE}{_TAIL}|{_to(*digits, below)})"


def _digits(value: Fraction) -> tuple[str, str] | None:
    """Digits before and after the point."""
    scale = 0
    while (value * 10**scale).denominator != 1:
        scale += 1
        if scale > 400:
            return None
    text = str(int(value * 10**scale)).rjust(scale + 1, "0")
    return text[: len(text) - scale], text[len(text) - scale :]


def _from(whole: str, part: str, above: bool) -> str:
    size = len(whole)
    options = [f"[1-9][0-9]{{{size},}}{_TAIL}"]
    for i, digit in enumerate(whole):
        if digit < "9":
            options.append(f"{whole[:i]}[{chr(ord(digit) + 1)}-9][0-9]{{{size - i - 1}}}{_TAIL}")
    for i, digit in enumerate(part):
        if digit < "9":
            options.append(f"{whole}\\.{part[:i]}[{chr(ord(digit) + 1)}-9][0-9]*")
    if above:
        options.append(f"{whole}\\.{part}0*[1-9][0-9]*")
    elif part:
        options.append(f"{whole}\\.{part}[0-9]*")
    else:
        options.append(f"{whole}{_TAIL}")
    return f"({'|'.join(options)})"


def _to(whole: str, part: str, below: bool) -> str:
    size = len(whole)
    options = []
    if size > 1:
        options += [f"0{_TAIL}", f"[1-9][0-9]{{0,{size - 2}}}{_TAIL}"]
    for i, digit in enumerate(whole):
        least = "1" if i == 0 and size > 1 else "0"
        if digit > least:
            options.append(
                f"{whole[:i]}[{least}-{chr(ord(digit) - 1)}][0-9]{{{size - i - 1}}}{_TAIL}"
            )
    if part or not below:
        options.append(f"{whole}(\\.0+)?")
    for i, digit in enumerate(part):
        if digit > "0":
            options.append(f"{whole}\\.{part[:i]}[0-{chr(ord(digit) - 1)}][0-9]*")
        if i:
            options.append(f"{whole}\\.{part[:i]}")
    if part and not below:
        options.append(f"{whole}\\.{part}0*")
    return f"({'|'.join(options)})" if options else NOTHING


def multiple_of(divisor: int) -> list[str] | None:
    """Regexes that together (all of them) match the whole numbers that are multiples.

    The part of a divisor that divides a power of ten is seen in the last digits; the other part
    becomes a regex by eliminating the states of remainders. None where that grows too long.
    """
    rest, tens = divisor, 1
    for prime in (2, 5):
        power = 1
        while rest % prime == 0:
            rest //= prime
            power *= prime
        tens *= power
    found: list[str] = []
    if tens > 1:
        size = next(n for n in range(1, 64) if 10**n % tens == 0)
        if 10**size // tens > 2000:
            return None
        ends = [str(n).rjust(size, "0") for n in range(0, 10**size, tens)]
        short = [str(n) for n in range(0, 10 ** (size - 1), tens) if size > 1]
        short.append(f"[0-9]*({'|'.join(ends)})")
        found.append(f"-?({'|'.join(short)})")
    if rest > 1:
        text = _remainders(rest)
        if text is None:
            return None
        found.append(f"-?{text}")
    return found


def fraction_of(denominator: int) -> list[str] | None:
    """A regex of the fractions that are multiples of ``1 / denominator``; None if they never end."""
    ends = []
    for n in range(1, min(denominator, 2000)):
        digits = _digits(Fraction(n, denominator))
        if digits is None:
            return None
        ends.append(digits[1])
    if denominator > 2000:
        return None
    return [f"-?{_WHOLE}\\.({'|'.join(ends)})0*"]


def _remainders(divisor: int) -> str | None:
    """Digit strings whose value leaves no remainder, by state elimination."""
    if 10 * divisor > MAX_REGEX:
        return None
    arcs: dict[tuple[int, int], str] = {}
    for state in range(divisor):
        for digit in range(10):
            key = (state, (state * 10 + digit) % divisor)
            arcs[key] = arcs.get(key, "") + str(digit)
    arcs = {k: f"[{v}]" for k, v in arcs.items()}
    for gone in range(divisor - 1, 0, -1):
        loop = arcs.pop((gone, gone), None)
        middle = f"({loop})*" if loop else ""
        into = [(a, t) for (a, b), t in arcs.items() if b == gone]
        out = [(b, t) for (a, b), t in arcs.items() if a == gone]
        for a, before in into:
            for b, after in out:
                text = f"{before}{middle}{after}"
                known = arcs.get((a, b))
                arcs[a, b] = f"({known}|{text})" if known else text
        arcs = {k: v for k, v in arcs.items() if gone not in k}
        if sum(map(len, arcs.values())) > MAX_REGEX:
            return None
    return f"({arcs[0, 0]})+"
