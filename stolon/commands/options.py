"""Command-line options that several commands share."""

from __future__ import annotations

import argparse

DEFAULT_MODEL = "smollm2-135m"


def add_model(parser: argparse.ArgumentParser, *, default: str | None = DEFAULT_MODEL) -> None:
    parser.add_argument(
        "--model",
        default=default,
        metavar="MODEL",
        help="a name from `stolon models`, a .gguf file, a folder or hf:org/name "
        f"(default: {DEFAULT_MODEL})",
    )


def add_engine(parser: argparse.ArgumentParser) -> None:
    """The options that size an engine; all of them have defaults that fit the machine."""
    parser.add_argument("--dtype", default="auto", choices=("auto", "bfloat16", "float32"))
    parser.add_argument("--threads", type=positive, metavar="N", help="CPU threads")
    parser.add_argument(
        "--context-length", type=positive, metavar="N", help="longest sequence (16 or more)"
    )
    parser.add_argument(
        "--kv-tokens", type=positive, metavar="N", help="tokens the cache holds (16 or more)"
    )
    parser.add_argument("--max-running", type=positive, metavar="N", help="sequences in one step")
    parser.add_argument(
        "--speculation",
        default="auto",
        choices=("auto", "off"),
        help="off: never guess tokens from what a text repeats (the output is the same)",
    )


def positive(text: str) -> int:
    """An integer of at least 1, as an argparse type."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def seed(text: str) -> int:
    """A non-negative integer, as an argparse type."""
    if not (text.isascii() and text.isdigit()) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed: 0 to 2**63 - 1")
    return int(text)
