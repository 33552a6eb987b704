"""What a path stands for, with the loader itself replaced."""

import json

import pytest

from opct.errors import ConfigError, ModelError
from opct.models.from_run import load_policy


@pytest.fixture
def loaded(monkeypatch):
    """What `Policy.load` was asked for."""
    from opct.models.policy import Policy

    calls = []
    monkeypatch.setattr(Policy, "load", classmethod(lambda cls, config, **settings: calls.append(config)))
    return calls


def test_model_name(loaded):
    load_policy("some/model", dtype="float32")
    assert (loaded[0].name_or_path, loaded[0].adapter, loaded[0].dtype) == ("some/model", None, "float32")


def test_adapter_folder(loaded, tmp_path):
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "some/base"}), encoding="utf-8"
    )
    load_policy(str(tmp_path))
    assert (loaded[0].name_or_path, loaded[0].adapter) == ("some/base", str(tmp_path))


def test_run_directory_without_a_checkpoint(loaded, tmp_path):
    (tmp_path / "manifest.json").write_text(json.dumps({"opct_run": 1}), encoding="utf-8")
    (tmp_path / "config.yaml").write_text("seed: 0\n", encoding="utf-8")
    with pytest.raises(ModelError, match="has no checkpoint to evaluate"):
        load_policy(str(tmp_path))


def test_unknown_setting(loaded):
    with pytest.raises(ConfigError, match=r"dtpye: unknown setting .*did you mean dtype"):
        load_policy("some/model", dtpye="float32")
