"""Extract records from a folder of text files into a JSONL file. Run again to go on.

    python examples/extract.py examples/data/notes people.jsonl

Every line of the output is valid under the schema. A document that can't be used is reported on
stderr and skipped. Lines are written as they come, so Ctrl-C loses only what is being worked on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field
from tqdm import tqdm

import stolon as sl

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with .txt files")
    parser.add_argument("out", type=Path, help="JSONL file; documents in it already are left out")
    parser.add_argument("--limit", type=int, help="at most this many documents")
    parser.add_argument("--at-once", type=int, default=8, help="documents in the engine at a time")
    parser.add_argument("--model", default="smollm2-135m")
    args = parser.parse_args()
    if not args.folder.is_dir():
        parser.error(f"{args.folder} is not a folder")

    done = documents_in(args.out)
    paths = [path for path in sorted(args.folder.glob("*.txt")) if path.name not in done]
    paths = paths[: args.limit]
    texts = list(readable(paths))
    written = 0
    with sl.Engine(args.model) as engine, args.out.open("a", encoding="utf-8") as out:
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
    lines = out.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        out.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
    return {json.loads(line)["document"] for line in lines}


def readable(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """(name, text) of the documents that can be used; the others are reported."""
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
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
    sys.exit(main())
