"""Judges whose answers and calibrations are kept in a folder of the test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_folders(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INSPECT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "calibrations"))
