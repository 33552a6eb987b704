"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model; read only."""
    from tests.tiny import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_policy():
    """A fresh tiny policy without an adapter, float32 on the CPU."""
    from opct.models.policy import Policy
    from tests.tiny import tiny_model, tiny_tokenizer

    tokenizer = tiny_tokenizer()
    return Policy(tiny_model(tokenizer), tokenizer, name="tiny")


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The converted default model; skips where it was not fetched (`opct quickstart` or `make model` fetches it)."""
    from opct.models.gguf import smollm2_path

    folder = smollm2_path()
    if not folder.is_dir():
        pytest.skip("SmolLM2-135M-Instruct is not in the cache: run `make model`")
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """A folder of public data sets beside the repository; skips where it is absent."""
    folder = Path(os.environ.get("OPCT_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"the shared data sets are not at {folder}")
    return folder
