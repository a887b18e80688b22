"""The default model for tests that need real weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from stolon.srt.loaders import DEFAULT_MODEL, list_models


def default_model_path() -> Path:
    """Path of the default model; skips the test where it has not been fetched (`stolon pull`)."""
    for entry in list_models():
        if entry.name == DEFAULT_MODEL and entry.path is not None:
            return entry.path
    pytest.skip(f"{DEFAULT_MODEL} is not here: run `stolon pull {DEFAULT_MODEL}` (make test does)")
