"""The plan of a run says what the run then does."""

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from opct.data.pairs import write_pairs
from opct.errors import ConfigError
from opct.models.inference.sampler import Completion
from opct.models.policy import Policy
from opct.training import dry_run, estimate
from opct.training import setup as building
from opct.training.dry_run import clean_replies, make_plan
from opct.training.estimate import estimate_memory, size
from opct.training.setup import build_setup, load_data
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import tiny_pairs


def numbers(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.fixture
def few_replies(monkeypatch):
    """Two clean replies of at most 8 tokens, in place of 32 of 512."""
    monkeypatch.setattr(dry_run, "CLEAN_REPLIES", 2)
    monkeypatch.setattr(dry_run, "CLEAN_TOKENS", 8)


@pytest.mark.usefixtures("few_replies")
@pytest.mark.parametrize(("method", "completions", "tokens", "probed"), [("opct", 2, 192, 8), ("dpo", 4, 384, 16)])
def test_its_numbers_are_those_of_the_run(make_config, method: str, completions: int, tokens: int, probed: int):
    """4 steps x 4 pairs x 2 completions x 6 tokens; `dpo` has preferences of 2."""
    config = make_config(method=method)
    rows, data = dict(make_plan(config).rows), load_data(config)
    assert rows["method"].startswith(method)
    assert numbers(rows["steps"]) == [4, 4, completions]
    assert numbers(rows["pairs"])[:2] == [len(data.pairs), 0]
    assert numbers(rows["completion tokens"]) == [tokens]
    assert numbers(rows["cut completions"])[1:] == [probed, 6]
    assert numbers(rows["passes"]) == [pytest.approx(4 * 3 / len(data.pairs), abs=0.05)]
    assert size(estimate_memory(config, data.pairs, 300).peak) in rows["memory"]
    assert ("offline" in rows["time"]) == (method == "dpo")


@pytest.mark.usefixtures("few_replies")
def test_it_writes_nothing_and_shows_its_warnings(make_config, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.rglob("*"))
    changes = {"data": {"validation_size": 1}, "rollout": {"max_completion_tokens": 1}}
    plan = make_plan(make_config(report_to=["tensorboard"], **changes))
    assert set(tmp_path.rglob("*")) == before
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(plan.render())
    text = console.export_text()
    assert "rollout.max_completion_tokens" in text
    assert "warning: validation" in text
    assert all(fact.split(":")[0] in text for fact in plan.facts)


@pytest.mark.parametrize(("balance", "probed"), [(True, ["a", "a", "b", "b"]), (False, None)])
def test_it_tries_pairs_of_each_axis_of_a_balanced_run(make_config, tmp_path, balance, probed):
    pairs = [replace(pair, axis="ab"[i % 2]) for i, pair in enumerate(tiny_pairs(24))]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    data = {"pairs": [str(tmp_path / "pairs.jsonl")], "balance_axes": balance}
    data = load_data(make_config(data=data, optim={"prompts_per_step": 8}))
    tried = dry_run._some(data)
    assert len({pair.pair.id for pair in tried}) == 4
    assert [pair.pair.axis for pair in tried] == (probed or [pair.pair.axis for pair in data.batch(1)[:4]])


@pytest.mark.parametrize(
    ("lengths", "limit", "numbers_said"),
    [
        (range(1, 11), 4, [95, 10, 10, 4, 6]),  # % of n end within N; the limit cuts 5 to 10
        ([5] * 19 + [None], 6, [95, 20, 5, 6, 1]),
        ([5] * 9 + [None], 6, [9, 10, 512, 6, 1]),
    ],
    ids=["all end", "one of twenty goes on", "too many go on"],
)
def test_it_says_how_long_clean_replies_are(make_config, tmp_path, monkeypatch, lengths, limit, numbers_said):
    """Answers of the teacher to `teacher_prompt`, of these lengths; None: as long as they may be."""
    write_pairs(tmp_path / "pairs.jsonl", tiny_pairs(len(lengths)))
    data = {"pairs": [str(tmp_path / "pairs.jsonl")], "validation_size": 0, "validation_fraction": 0.0}
    setup = build_setup(make_config(data=data, rollout={"max_completion_tokens": limit}))
    asked = []

    def sample(self, prompts, seeds, sampling, **_):
        asked.extend(prompts)
        known = [(n or sampling.max_completion_tokens, "stop" if n else "length") for n in lengths]
        return [[Completion("", (7,) * n, stop, (0.0,) * n, 1, 0)] for n, stop in known]

    monkeypatch.setattr(Policy, "sample", sample)
    needed, words = clean_replies(setup)
    assert (needed, numbers(words)) == (numbers_said[2], numbers_said)
    assert asked == [pair.teacher_ids for pair in setup.data.pairs]


def test_it_does_not_plan_for_another_trainer(make_config):
    with refused(ConfigError, "engine=verl"):
        make_plan(make_config(engine="verl"))


def test_on_an_accelerator_the_estimate_comes_before_the_weights(make_config, monkeypatch):
    """Here the device is one by name alone; what helps is said where little is free."""
    noted = Noted()
    monkeypatch.setattr(estimate, "choose_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(estimate, "choose_dtype", lambda *_: (torch.bfloat16, ""))
    monkeypatch.setattr(estimate, "free_memory", lambda device: 9)
    monkeypatch.setattr(building, "_load_policy", lambda *_: pytest.fail("loaded"))
    with pytest.raises(pytest.fail.Exception):
        make_plan(make_config(), noted)
    [said, warned] = [line for line in noted.lines if "MB" in line or "micro_batch_tokens" in line]
    assert "weights" in said
    assert "optim.micro_batch_tokens" in warned


def test_when_it_validates(make_config):
    for steps, every, expected in ((4, None, [0, 2, 4]), (5, 2, [0, 2, 4, 5]), (1, None, [0, 1]), (4, 9, [0, 4])):
        data = load_data(make_config(max_steps=steps, eval_steps=every))
        assert data.validation_steps == expected
    data.validation, data.validation_anchors = [], []
    assert data.validation_steps == []
