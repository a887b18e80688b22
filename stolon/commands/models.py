"""`stolon models`: what can be named, and what is on this machine."""

from __future__ import annotations

import argparse

NAME = "models"
HELP = "list the models that have a name"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    import json

    from stolon.srt.loaders import list_models

    entries = list_models()
    if args.json:
        for entry in entries:
            path = None if entry.path is None else str(entry.path)
            fields = {"name": entry.name, "cached": entry.cached, "size": entry.size, "path": path}
            print(json.dumps(fields))
        return 0
    rows = [("NAME", "CACHED", "SIZE", "PATH", "WHAT")]
    for entry in entries:
        cached = "yes" if entry.cached else "no"
        size = f"{entry.size / 1e6:.0f} MB"
        rows.append((entry.name, cached, size, str(entry.path or "-"), entry.description))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return 0
