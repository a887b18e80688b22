"""Extract records from a folder of text files into a JSONL file.

    python examples/extract.py examples/data/notes people.jsonl

Every record is valid under the schema. A document that can't be used is reported and skipped. What is
finished is in the checkpoint at once: after a crash or Ctrl-C the same command goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Literal

from _frame import frame
from pydantic import BaseModel, Field

import stolon as sl
from stolon.errors import InvalidRequest

MAX_CHARACTERS = 4000


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int | None = Field(ge=0, le=120)
    city: str = Field(max_length=30)
    works: Literal["yes", "no", "unknown"]


@sl.function
def extract(s: sl.ProgramState, text: str) -> None:
    s += sl.user(
        f"{text}\n\nWho is this note about? Answer in JSON: the person's name, age in years, "
        "the city, and whether the person works."
    )
    s += sl.assistant(sl.gen("person", schema=Person, max_tokens=120, temperature=0))


def read(path: Path) -> str | None:
    """The text of a document; None, and a line on stderr, for one that can't be used."""
    try:
        text = path.read_text(encoding="utf-8").strip()
        problem = None if text else "the file is empty"
    except (OSError, UnicodeError) as error:
        text, problem = "", str(error)
    if len(text) > MAX_CHARACTERS:
        problem = f"{len(text)} characters; at most {MAX_CHARACTERS} are taken"
    if problem:
        print(f"skipped {path.name}: {problem}", file=sys.stderr)
    return None if problem else text


def main() -> None:
    parser = argparse.ArgumentParser(prog="extract", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with .txt files")
    parser.add_argument("out", type=Path, help="JSONL file, written when all is done")
    parser.add_argument("--checkpoint", type=Path, help="default: OUT with .checkpoint at its end")
    parser.add_argument("--at-once", type=int, default=16, help="documents in the engine at a time")
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    if not args.out.parent.is_dir():
        raise InvalidRequest(f"{args.out.parent} is not a folder", hint="create it first")
    documents = {path.name: read(path) for path in sorted(args.folder.glob("*.txt"))}
    if not documents:
        raise InvalidRequest(f"{args.folder} is not a folder with .txt files")
    usable = {name: text for name, text in documents.items() if text is not None}
    with sl.Engine(args.model) as engine:
        states = extract.run_batch(
            [{"text": text} for text in usable.values()],
            backend=engine,
            checkpoint=args.checkpoint or args.out.with_name(args.out.name + ".checkpoint"),
            num_threads=args.at_once,
            progress="auto",
        )
    with args.out.open("w", encoding="utf-8") as out:
        for name, state in zip(usable, states, strict=True):
            record = {"document": name, "person": json.loads(state["person"])}
            out.write(json.dumps(record, ensure_ascii=False) + "\n")
    restored = sum(state.restored for state in states)
    skipped = len(documents) - len(usable)
    print(f"{len(usable)} written, {restored} of them done before, {skipped} skipped")


if __name__ == "__main__":
    with frame():
        main()
