"""Runs that several tests read: each is trained once."""

import shutil
from pathlib import Path

import pytest

from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.trainer import train

NO_VALIDATION = {"validation_size": 0}


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture
def trained(make_config, trained_runs: Path):
    """Gives the config of a finished run; it is trained once a session, and each test has a copy of its folder."""

    def copy_of(**settings):
        kept = trained_runs / str(sorted(settings.items())).replace("/", "_")
        if not kept.exists():
            train(make_config(**settings, output_dir=str(kept)))
        config = make_config(**settings)
        shutil.copytree(kept, config.output_dir)
        return config

    return copy_of


def metrics(config) -> list[dict]:
    return read_jsonl(RunDir(config.output_dir).metrics_path)


def untimed(config) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.startswith(("time/", "memory/"))} for row in metrics(config)]


def weights(config) -> bytes:
    return (RunDir(config.output_dir).latest_checkpoint() / "adapter" / "adapter_model.safetensors").read_bytes()
