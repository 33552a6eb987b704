"""`opct train` as a person uses it: every arm trains, and its run directory is whole."""

import math
from types import SimpleNamespace

import pytest

from opct.config.loader import load_config
from opct.runs.checkpoints import fault
from tests.e2e.cli import done, here, jsonl, workplace

ARMS = {
    "opct": {
        "loss": {"estimator": "sampled", "kl_discount_factor": 0.9, "kl_coef": 0.5},
        "teacher": {"kind": "ema", "ema_decay": 0.9},
    },
    "sft": {"method": "sft"},
    "offpolicy": {"method": "offpolicy"},
    "dpo": {"method": "dpo", "loss": {"dpo_beta": 0.3}, "lora": None, "optim": {"learning_rate": 1e-4}},
    "act": {"method": "act"},
}
KL_NAMES = {"opct": {"kl"}, "sft": {"excess_loss"}, "offpolicy": {"kl"}, "dpo": set(), "act": set()}


@pytest.mark.parametrize("method", ARMS)
def test_every_arm_trains_and_leaves_a_whole_run_directory(tmp_path, tiny_folder, method):
    place = workplace(tmp_path, tiny_folder, max_steps=2, save_steps=1, **ARMS[method])
    assert f"opct eval {place.run.path}" in done(*place.command("optim.prompts_per_step=8")).out
    _check_metrics(place.run, method)
    _check_rollouts(place.run, method)
    assert [step for step, _ in place.run.checkpoints()][-2:] == [1, 2]
    for _, folder in place.run.checkpoints():
        assert fault(folder) is None
        weights = "model/model.safetensors" if method == "dpo" else "adapter/adapter_model.safetensors"
        assert (folder / weights).is_file()
    assert load_config(place.run.config_path) == load_config(place.config, ["optim.prompts_per_step=8"])
    assert not [path for path in place.run.path.rglob(".*") if path.name != ".lock"]


def _check_metrics(run, method: str) -> None:
    rows = jsonl(run.metrics_path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert [row["step"] for row in rows if "validation/kl" in row] == [0, 2]
    for row in rows[1:]:
        assert {name for name in ("kl", "excess_loss") if f"train/{name}" in row} == KL_NAMES[method]
        assert row["train/grad_norm"] > 0


def _check_rollouts(run, method: str) -> None:
    """Six pairs and two anchors a step, two completions each: 16 rows. 12 places see each of at most 10 pairs.

    `act` has one row a pair, of tokens that were given.
    """
    rows = [row for step in (1, 2) for row in jsonl(run.rollouts_path(step))]
    assert len(rows) == (16 if method == "act" else 32)
    assert all((row["kl"] is None) == (method in ("dpo", "act")) for row in rows)
    assert all((row["stop_reason"] == "given") == (method == "act") for row in rows)
    open_turns = [row["prompt"][1] for row in rows if row["family"] == "are_you_sure"]
    assert open_turns
    assert all(turn["content"] for turn in open_turns)  # answered by the policy, and on record
    assert run.offline_path.exists() == (method != "opct")
    if method != "opct":  # trained on the offline answers, not on others
        answers = {(row["pair_id"], row["sample"]): row["token_ids"] for row in jsonl(run.offline_path)}
        assert all(answers[row["pair_id"], row["sample"]] == row["token_ids"] for row in rows)


def test_an_interrupted_quickstart_measures_nothing(tmp_path, tiny_folder, monkeypatch):
    from opct.experiments import runner

    trained = []

    def train(config, **_):
        trained.append(config.method)
        return SimpleNamespace(status="interrupted", step=3)

    monkeypatch.setattr(runner, "train", train)
    monkeypatch.setattr(runner, "evaluate", lambda *_, **__: pytest.fail("it measured what is not trained"))
    ended = here("quickstart", f"model.name_or_path={tiny_folder}", "--out", tmp_path / "quick")
    assert ended.code == 130, ended.err
    assert len(trained) == 1
