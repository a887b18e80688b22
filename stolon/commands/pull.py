"""`stolon pull`: fetch a model into the cache, or check a path."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "pull"
HELP = "fetch a model into the cache and print its path"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a name from `stolon models`, hf:org/name, or a path")


def run(args: argparse.Namespace) -> int:
    from stolon.srt.loaders import check_folder, list_models, open_model, pull

    name: str = args.model
    named = name.startswith("hf:") or any(entry.name == name for entry in list_models())
    is_path = bool(name) and not named and Path(name).expanduser().exists()
    path = Path(name) if is_path else pull(name)
    # Opening reads and checks the headers: a file that can't be used is reported here, not later.
    check_folder(path)
    open_model(path).close()
    print(path)
    return 0
