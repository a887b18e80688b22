"""Extract records from a folder of text files into a JSONL file. Run again to go on.

    python examples/extract.py examples/data/notes people.jsonl

Every line of the output is valid under the schema. A document that can't be used is reported on
stderr and skipped. Lines are written as they come, so Ctrl-C loses only what is being worked on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from tqdm import tqdm

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="extract", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with .txt files")
    parser.add_argument("out", type=Path, help="JSONL file; documents in it already are left out")
    parser.add_argument("--limit", type=positive, help="at most this many documents")
    parser.add_argument(
        "--at-once", type=positive, default=8, help="documents in the engine at a time"
    )
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    if not args.folder.is_dir():
        raise InvalidRequest(f"{args.folder} is not a folder")
    if not args.out.parent.is_dir():
        raise InvalidRequest(f"{args.out.parent} is not a folder", hint="create it first")

    every = sorted(args.folder.glob("*.txt"))
    if not every:
        raise InvalidRequest(f"{args.folder} holds no .txt files")
    done = documents_in(args.out)
    paths = [path for path in every if path.name not in done][: args.limit]
    texts = list(readable(paths))
    if not texts:
        print(f"0 written, {len(paths)} skipped, {len(done)} done before")
        return 0
    written = 0
    with args.out.open("a", encoding="utf-8") as out, sl.Engine(args.model) as engine:
        # States come in order while later documents are being computed.
        states = extract.run_batch(
            ({"text": text} for _, text in texts),
            backend=engine,
            seed=1,
            num_threads=args.at_once,
            generator_style=True,
            return_exceptions=True,
        )
        try:
            for (name, _), state in zip(texts, tqdm(states, total=len(texts)), strict=True):
                try:
                    if isinstance(state, Exception):
                        raise state
                    record = {"document": name, "person": state.value("person").model_dump()}
                except sl.StolonError as error:
                    report(name, str(error))
                    continue
                out.write(json.dumps(record, ensure_ascii=False) + "\n")
                out.flush()
                written += 1
        except KeyboardInterrupt:
            print("interrupted; run the same command to go on", file=sys.stderr)
            return 130
    print(f"{written} written, {len(paths) - written} skipped, {len(done)} done before")
    return 0


def documents_in(out: Path) -> set[str]:
    """Names of the documents that are in the output. A last line cut by a crash is removed."""
    if not out.exists():
        return set()
    content = out.read_bytes()  # a crash may have cut in the middle of a character
    size = content.rfind(b"\n") + 1
    names: set[str] = set()
    number = 0
    for number, line in enumerate(content[:size].split(b"\n")[:-1], start=1):
        try:
            names.add(str(json.loads(line)["document"]))
        except (ValueError, LookupError, TypeError):
            raise foreign(out, number) from None
    if size < len(content):
        begin, cut = b'{"document":', content[size:]
        if not (cut.startswith(begin) or begin.startswith(cut)):
            raise foreign(out, number + 1)
        os.truncate(out, size)
    return names


def foreign(out: Path, line: int) -> InvalidRequest:
    """What is not ours is never cut or appended to."""
    return InvalidRequest(
        f"the line is no record of a document: {out} was not written by this program",
        where=f"line {line}",
        hint="choose another output file",
    )


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def readable(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """(name, text) of the documents that can be used; the others are reported."""
    for path in paths:
        try:
            path.name.encode()  # names need not be UTF-8 either, and a record holds the name
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeError) as error:
            report(path.name, str(error))
            continue
        if not text:
            report(path.name, "the file is empty")
        elif len(text) > MAX_CHARACTERS:
            report(path.name, f"{len(text)} characters; at most {MAX_CHARACTERS} are taken")
        else:
            yield path.name, text


def report(name: str, reason: str) -> None:
    tqdm.write(f"skipped {name}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (sl.StolonError, OSError) as error:
        print(f"extract: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
