"""Whole runs whose samples come from an engine: the same as in this process, resumed, checked, closed."""

import dataclasses

import pytest

import opct.models.vllm.local
from opct.config.schema import TrainConfig
from opct.errors import EngineError, MismatchError
from opct.methods import dpo, rollouts
from opct.methods.opct import OPCT
from opct.methods.rollouts import step_weights
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.setup import build_setup, describe
from opct.training.trainer import train
from tests import oracles
from tests.engines import PolicyBackend
from tests.refusals import refused
from tests.tiny import move
from tests.unit.training.conftest import NO_VALIDATION, metrics, untimed, weights

ENGINE = {"engine": "vllm", "num_generations": 2, "max_completion_tokens": 6}
SAMPLED = {"estimator": "sampled"}


@pytest.fixture
def backends(monkeypatch) -> list[PolicyBackend]:
    """Every engine that runs start, in their order."""
    made: list[PolicyBackend] = []

    def start(policy, config: TrainConfig, *, max_model_len: int) -> PolicyBackend:
        made.append(PolicyBackend(config.model))
        made[-1].max_model_len = max_model_len
        return made[-1]

    monkeypatch.setattr(opct.models.vllm.local, "VllmEngine", start)
    monkeypatch.setattr(opct.models.vllm.local, "require_vllm", lambda: None)
    return made


@pytest.fixture
def counted_up(monkeypatch) -> None:
    """In this process too, the seeds of a pair's samples are counted up from the first, as an engine has them."""
    hashed = rollouts.seeds_of
    for module in (rollouts, dpo):
        monkeypatch.setattr(
            module, "seeds_of", lambda *asked: [[own[0] + i for i in range(len(own))] for own in hashed(*asked)]
        )


def samples(config) -> dict[str, list]:
    folder = RunDir(config.output_dir).rollouts_dir
    return {
        path.name: [
            (row["pair_id"], row["token_ids"], row["seed"], row.get("rejected", {}).get("token_ids"))
            for row in read_jsonl(path)
        ]
        for path in sorted(folder.iterdir())
    }


@pytest.mark.parametrize(("method", "of_the_base"), [("opct", 0), ("dpo", 2)])
def test_a_run_is_the_same_with_and_without_an_engine(make_config, backends, counted_up, tmp_path, method, of_the_base):
    """The same tokens in every step and validation, metrics to rounding. After the probe, all that is drawn before the
    first step is of the model without the adapter: for dpo the rejected answers as well."""
    settings = {"method": method, "max_steps": 2, "data": {"validation_size": 2}}
    here = make_config(output_dir=str(tmp_path / "here"), **settings)
    there = make_config(output_dir=str(tmp_path / "there"), **settings, rollout=ENGINE)
    for config in (here, there):
        train(config)
    assert samples(here) == samples(there)
    for expected, found in zip(untimed(here), untimed(there), strict=True):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    measured = [row["rollout/mismatch_kl"] for row in metrics(there) if "rollout/mismatch_kl" in row]
    assert measured == pytest.approx([0.0] * (2 if method == "opct" else 0), abs=1e-5)
    [backend] = backends
    probed, *loaded = [name for name, _ in backend.asked("load")]
    base, adapted, *drawn = [name for name, _ in backend.asked("draw")]
    assert (base, adapted) == (None, probed)
    # of a baseline the validations alone are sampled
    assert [name[-6:] for name in loaded] == ["000000", *(["000001"] if method == "opct" else []), "000002"]
    assert drawn[:of_the_base] == [None] * of_the_base
    assert set(drawn[of_the_base:]) <= set(loaded)
    assert backend.asked("close") == [()]
    assert [RunDir(c.output_dir).read_manifest()["engine"] for c in (here, there)] == [None, PolicyBackend.name]


def test_an_engine_with_an_old_adapter_stops_the_run_before_the_update(make_config, backends, monkeypatch):
    """Fast steps: by the second, the adapter of step 0 samples from another policy."""
    config = make_config(rollout=ENGINE, optim={"learning_rate": 0.5}, max_steps=2, save_steps=1, data=NO_VALIDATION)
    monkeypatch.setattr(PolicyBackend, "stale", True)
    with refused(MismatchError, "Step 2"):
        train(config)
    assert [row["step"] for row in metrics(config)] == [1]
    assert backends[0].asked("close") == [()]


def test_the_engine_has_room_for_the_longest_pair_and_no_more(make_config, backends):
    setup = build_setup(make_config(rollout=ENGINE))
    sides = [
        len(side)
        for r in [*setup.data.pairs, *setup.data.anchors, *setup.data.validation]
        for side in (r.prompt_ids, r.teacher_ids)
    ]
    assert backends[0].max_model_len == max(sides) + 6 + 1
    assert any(PolicyBackend.name in line for line in describe(setup))
    setup.close()
    assert backends[0].asked("close") == [()]


def test_an_engine_that_dies_in_a_step_leaves_a_run_that_can_be_resumed(make_config, backends, monkeypatch, tmp_path):
    """The steps before are saved, whatever `save_steps` is. The engine of the second part may be set up otherwise; it
    gets the checkpoint's adapter, named by its step."""
    settings = {"rollout": ENGINE, "max_steps": 2, "save_steps": 10, "data": NO_VALIDATION}
    whole, config = make_config(output_dir=str(tmp_path / "whole"), **settings), make_config(**settings)
    train(whole)
    sample = PolicyBackend.sample

    def dies(self, prompts, seeds, sampling, adapter, on_done):
        if adapter is not None and adapter.endswith("000001"):
            raise EngineError("the engine is gone")
        return sample(self, prompts, seeds, sampling, adapter, on_done)

    monkeypatch.setattr(PolicyBackend, "sample", dies)
    with pytest.raises(EngineError):
        train(config)
    assert [step for step, _ in RunDir(config.output_dir).checkpoints()] == [1]
    monkeypatch.setattr(PolicyBackend, "sample", sample)
    moved = {"enforce_eager": True, "gpu_memory_utilization": 0.9}
    train(make_config(**settings, vllm=moved), resume=True)
    assert samples(config) == samples(whole)
    assert weights(config) == weights(whole)
    assert [name[-6:] for name, _ in backends[2].asked("load")][1:] == ["000001"]  # nothing is sampled after the last


def test_loss_and_gradient_do_not_depend_on_what_scores_the_teacher(make_config, backends):
    """From the engine's log-probs, and from the model's own."""
    config = make_config(rollout=ENGINE, loss={**SAMPLED, "kl_discount_factor": 0.5}, teacher={"engine": "rollout"})
    setup = build_setup(config)
    setup.publish(0)
    move(setup.policy, 0.05)
    method = OPCT(setup.policy, setup.teacher, config, setup.engine)
    rollouts = method.collect(setup.data.batch(1), 1)
    assert all(r.teacher_logprobs for r in rollouts)
    weights = step_weights(rollouts, "token_mean")
    found = []
    for given in (rollouts, [dataclasses.replace(r, teacher_logprobs=None) for r in rollouts]):
        micro = method.loss(given, weights)
        micro.loss.backward()
        found.append((micro, oracles.gradients(setup.policy)))
    (a, gradients), (b, expected) = found
    assert a.loss.item() == pytest.approx(b.loss.item(), rel=1e-4)
    for x, y in zip(a.values["kl"], b.values["kl"], strict=True):
        assert x == pytest.approx(y, abs=1e-5)
    assert oracles.largest_difference(gradients, expected) < 1e-3
    setup.close()


TEACHER = {"engine": "rollout"}
ADAPTER = {"adapter": "runs/sft"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rollout": ENGINE, "lora": None}, ("rollout.engine=vllm", "lora")),
        ({"teacher": TEACHER, "loss": SAMPLED}, ("teacher.engine=rollout",)),
        ({"rollout": ENGINE, "loss": SAMPLED, "teacher": TEACHER | {"kind": "ema"}}, ("teacher.kind=ema",)),
        ({"rollout": ENGINE, "loss": SAMPLED, "teacher": TEACHER, "model": ADAPTER}, ("model.adapter",)),
        ({"rollout": ENGINE, "teacher": TEACHER}, ("teacher.engine=rollout",)),
        ({"rollout": ENGINE, "method": "offpolicy", "teacher": {"kind": "live"}}, ("teacher.kind",)),
    ],
)
def test_settings_that_an_engine_cannot_follow_are_refused_by_name(make_config, settings, named):
    with refused(ValueError, *named):
        make_config(**settings)
