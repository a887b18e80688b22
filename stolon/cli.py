"""The command line: `stolon COMMAND`. Commands live in stolon.commands, one module each."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from stolon.commands import COMMANDS, run
from stolon.errors import Aborted, DownloadError, ModelError, Overloaded, StolonError

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    0 is success, 2 a mistake of the caller (an option, or a file, folder or model that was named and can't be
    used), 130 an interruption, 141 a reader that went away, and 1 everything else. Errors and interruptions
    are one line on stderr, with ``--debug`` a traceback.
    """
    given, rest = _split(list(sys.argv[1:] if argv is None else argv))
    args = build_parser().parse_args(given)
    if rest:
        args.rest = [*args.rest, *rest]
    try:
        code: int = args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt as error:
        if args.debug:
            raise
        # A terminal has shown ^C on the line.
        line_end = "\n" if sys.stderr.isatty() else ""
        print(f"{line_end}stolon: {str(error) or 'interrupted'}", file=sys.stderr)
        if argv is None:
            # The process ends now: one more Ctrl-C ends it at once, without a traceback.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # What is still buffered would raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except StolonError as error:
        if args.debug:
            raise
        print(f"stolon: error: {error}", file=sys.stderr)
        return EXIT_USAGE if _is_callers(error) else EXIT_FAILURE
    except OSError as error:
        if args.debug:
            raise
        print(f"stolon: error: {error}", file=sys.stderr)
        return EXIT_FAILURE
    return code


def _is_callers(error: StolonError) -> bool:
    """Whether another command line would do, and only another one."""
    if isinstance(error, ModelError):
        return not isinstance(error, DownloadError)
    return error.status < 500 and not isinstance(error, Aborted | Overloaded)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line. Imports nothing heavy: `--help` must be quick."""
    parser = _Parser(
        prog="stolon", description="Structured generation: programs that call a language model."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        sub = subparsers.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        sub.add_argument("--debug", action="store_true", help="show the traceback of an error")
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def _split(given: list[str]) -> tuple[list[str], list[str]]:
    """Arguments of `stolon run`, and those of its file: argparse takes the latter only next to FILE."""
    if given[:1] != [run.NAME] or "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as every other error is told."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"stolon: error: {message} (see `{self.prog} --help`)\n")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: list[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        print(f"stolon {version('stolon')}")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
