"""From a model's name, address and arguments to the judge's identity: what another model is told by, and no key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from opct.errors import EvaluationError
from opct.judges.calibration import calibration_of, calibrations_folder, store
from opct.judges.factory import model_settings, open_judge
from opct.judges.protocol import JudgeRequest

SECRET = "sk-live-0123456789abcdef"


@pytest.fixture(autouse=True)
def no_address(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("OPCT_CALIBRATIONS", str(tmp_path / "kept"))
    for name in ("INSPECT_EVAL_MODEL_BASE_URL", "OPENAI_BASE_URL", "MY_SERVER_BASE_URL", "MOCKLLM_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def weights(folder: Path, content: bytes) -> str:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(content)
    return str(folder)


def mock_judge(cache: Path | None = None, base_url: str | None = None, **model_args):
    """Inspect's model for tests, which takes any argument."""
    judge = open_judge("strongreject", model="mockllm/model", base_url=base_url, model_args=model_args, cache=cache)
    judge.model = get_model("mockllm/model", custom_outputs=a_score)
    return judge


def a_score(input, tools, tool_choice, config):
    output = ModelOutput.from_content("mockllm/model", "refused: 0\nconvincing: 3\nspecific: 4")
    output.usage = ModelUsage(input_tokens=11, output_tokens=7, total_tokens=18)
    return output


def test_two_models_on_this_disk_share_no_judgement_and_no_calibration(tmp_path: Path):
    """`hf/local` with a model_path is the name of both; the same weights in another folder are the same judge."""
    one, other = weights(tmp_path / "one", b"one"), weights(tmp_path / "other", b"other")
    copy = weights(tmp_path / "copy", b"one")
    request, cache = [JudgeRequest("s", "behaviour", "reply")], tmp_path / "cache.jsonl"
    first = mock_judge(cache, model_path=one)
    assert not first.judge(request)[0].kept
    found = {"kappa": {"value": 0.9}, "n": 1, "n_unscored": 0, "unscored_reasons": {}, "data": {"sha256": "f" * 64}}
    store({"opct_calibration": 1, "judge": first.identity.row(), **found}, calibrations_folder())
    second, third = mock_judge(cache, model_path=other), mock_judge(cache, model_path=copy)
    assert not second.judge(request)[0].kept
    assert third.judge(request)[0].kept
    assert first.identity.hash == third.identity.hash != second.identity.hash
    assert calibration_of(second.identity) is None
    assert calibration_of(third.identity)["n"] == 1
    assert str(tmp_path) not in json.dumps(first.identity.row())
    (tmp_path / "one" / "model.safetensors").write_bytes(b"trained on")
    assert mock_judge(cache, model_path=one).identity.hash != first.identity.hash


def test_another_address_or_argument_is_another_judge():
    plain = mock_judge()
    assert "base_url" not in plain.identity.settings
    assert "model_args" not in plain.identity.settings
    others = [
        mock_judge(base_url="http://one/v1"),
        mock_judge(base_url="http://two/v1"),
        mock_judge(revision="abc"),
        mock_judge(revision="abc", device="cuda"),
        mock_judge(quantization={"bits": 4, "groups": [64, None], "scale": 0.5}),
    ]
    assert len({judge.identity.hash for judge in (plain, *others)}) == 6
    assert len({judge.identity.asking_hash for judge in (plain, *others)}) == 6
    assert "base_url http://one/v1" in others[0].identity.describe()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("HTTP://Me:pass@Host:8000/v1/", "http://host:8000/v1"),
        ("https://host/v1?api-key=abc&version=2", "https://host/v1?version=2"),
        (f"https://host/{SECRET}/v1", "https://host/[secret]/v1"),
        ("https://key-server.example/v1", "https://key-server.example/v1"),
        ("me:pass@host/v1", "//host/v1"),
    ],
)
def test_an_address_is_told_without_secrets(url, told):
    assert model_settings("openai/m", url, secrets={SECRET}) == {"base_url": told}


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/m", "OPENAI_BASE_URL"),
        ("openai-api/my-server/m", "MY_SERVER_BASE_URL"),
        ("openai/m", "INSPECT_EVAL_MODEL_BASE_URL"),
    ],
)
def test_an_address_from_the_environment_counts_too(monkeypatch, model, variable):
    assert model_settings(model) == {}
    monkeypatch.setenv(variable, "http://host/v1")
    assert model_settings(model) == {"base_url": "http://host/v1"}
    assert model_settings(model, "http://given/v1") == {"base_url": "http://given/v1"}


def test_a_value_that_looks_like_a_secret_is_told_apart_and_not_shown():
    one, other = (model_settings("openai/m", model_args={"extra": f"{SECRET}{i}"})["model_args"] for i in range(2))
    assert one != other
    assert SECRET not in f"{one} {other}"


@pytest.mark.parametrize(
    "arguments",
    [
        {"api_key": SECRET},
        {"default_headers": {"Authorization": SECRET}},
        {"options": {"inner": {"hub_token": SECRET}}},
        {"credentials": SECRET},
    ],
)
def test_arguments_that_are_secrets_are_refused(arguments):
    with pytest.raises(EvaluationError, match="put it into the environment") as caught:
        mock_judge(**arguments)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("value", [object(), float("nan"), {"inner": object()}])
def test_an_argument_that_names_nothing_is_refused(value):
    with pytest.raises(EvaluationError, match=r"argument extra(\.inner)? is a (object|float), which does not tell"):
        mock_judge(extra=value)
