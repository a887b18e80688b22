"""The commands of the command line. Each module has NAME, HELP, add_arguments and run.

The modules import only the standard library's light parts at the top; a command loads what it needs
when it runs.
"""

from __future__ import annotations

import argparse
from typing import Protocol

from stolon.commands import bench, chat, check, demo, models, pull, run, serve


class Command(Protocol):
    """What a command module provides."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it and return the exit code. Errors are raised as StolonError."""
        ...


COMMANDS: tuple[Command, ...] = (demo, run, chat, serve, pull, models, bench, check)

__all__ = ["COMMANDS", "Command"]
