"""Fixtures shared by all tests."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

gc.disable()  # the imports make a million objects and next to no garbage

# A background job of a script starts with SIGINT ignored, and every process that it starts inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# shapes and types of tensors, checked at every call in the tests alone
install_import_hook(["opct.losses", "opct.models.scoring"], "beartype.beartype")

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = Path(os.environ.get("OPCT_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
"""What the package does not bring (`judge_labels/` of GPTFuzz, `over_refusal/` of XSTest, `nltk_punkt_tab/`); tests
skip by name without it."""


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the server of processes, if a test may need one; leave what was imported out of garbage collections.

    Inspect draws a table of an evaluation's results even where it shows none, which takes a quarter of a short one.
    """
    if display := sys.modules.get("inspect_ai._display.rich.display"):
        display.tasks_results = lambda tasks: "a table of results"  # which a test would see on the terminal
    if "tests.processes" in sys.modules and not session.config.option.collectonly:
        sys.modules["tests.processes"].start_server()
    gc.freeze()
    gc.enable()


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
def pair_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Ten sycophancy-like pairs and six identity pairs as JSONL; read only."""
    from opct.data.pairs import write_pairs
    from tests.tiny import tiny_anchors, tiny_pairs

    folder = tmp_path_factory.mktemp("pairs")
    write_pairs(folder / "pairs.jsonl", tiny_pairs(10))
    write_pairs(folder / "anchors.jsonl", tiny_anchors(6))
    return folder / "pairs.jsonl", folder / "anchors.jsonl"


@pytest.fixture
def make_config(tmp_path: Path, tiny_folder: Path, pair_files: tuple[Path, Path]):
    """Makes a float32 CPU config of a few tiny steps; keyword arguments replace sections' settings."""
    from opct.config.schema import TrainConfig
    from tests.tiny import merged, tiny_settings

    settings = tiny_settings(tmp_path / "run", tiny_folder, *pair_files)

    def make(**overrides) -> TrainConfig:
        return TrainConfig.model_validate(merged(settings, overrides))

    return make


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The Q4_1 weights of the default model, converted; skips where `make model` has not fetched them."""
    from opct.models.gguf import smollm2_q4_path

    folder = smollm2_q4_path()
    if not folder.is_dir():
        pytest.skip("SmolLM2-135M-Instruct is not in the cache: run `make model`")
    return folder
