"""What a Hugging Face folder must hold to be a model, told in one message."""

from __future__ import annotations

from pathlib import Path

from stolon.errors import ModelFileError

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_HINT = f"a model folder holds {CONFIG}, {TOKENIZER}, and {WEIGHTS} or {INDEX} with its files"


def check_folder(path: Path, *, needs: tuple[str, ...] = (CONFIG, TOKENIZER, WEIGHTS)) -> None:
    """Raise ModelFileError if a folder lacks what is needed of it; it lists all that a model's folder lacks.

    An index of several files is as good as the one file of weights. A path that is no folder is let pass.
    """
    if not path.is_dir():
        return
    present = {CONFIG: CONFIG, TOKENIZER: TOKENIZER, WEIGHTS: WEIGHTS}
    if not (path / WEIGHTS).is_file():
        present[WEIGHTS] = INDEX
    missing = [name for name, file in present.items() if not (path / file).is_file()]
    if not set(needs) & set(missing):
        return
    files = sorted(file.name for file in path.glob("*.gguf"))
    raise ModelFileError(
        f"the folder has no {' and no '.join(missing)}",
        where=str(path),
        hint=f"give {files[0]} itself, which is a whole model" if files else _HINT,
    )
