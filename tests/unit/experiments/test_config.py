"""From an experiment's file to the settings of every run, and every fault of the file at once."""

from pathlib import Path

import pytest

from opct.errors import ConfigError
from opct.experiments.config import load_experiment
from tests.refusals import refused

PLAIN = """\
output_dir: OUT
train: shared.yaml
seeds: [0, 3]
arms:
  sft: {method: sft}
  opct: {method: opct}
"""
BOTH = PLAIN + "  both: {method: opct, after: sft}\n"


@pytest.fixture
def write(tmp_path: Path):
    """Writes an experiment beside the settings that all arms share."""
    (tmp_path / "shared.yaml").write_text("output_dir: elsewhere\nmax_steps: 4\noptim: {prompts_per_step: 4}\n")

    def make(text: str) -> Path:
        path = tmp_path / "experiment.yaml"
        path.write_text(text.replace("OUT", str(tmp_path / "out")))
        return path

    return make


def test_every_arm_and_seed_is_a_run_of_the_shared_settings(write, tmp_path: Path):
    experiment = load_experiment(write(PLAIN), ["optim.learning_rate=1e-3"])
    assert [arm.name for arm in experiment.arms] == ["sft", "opct"]
    assert list(experiment.configs) == [("sft", 0), ("opct", 0), ("sft", 3), ("opct", 3)]
    config = experiment.configs["sft", 3]
    assert (config.method, config.seed, config.max_steps) == ("sft", 3, 4)
    assert config.output_dir == str(tmp_path / "out" / "sft-seed3")
    assert config.optim.learning_rate == 1e-3


def test_an_arm_continues_the_adapter_of_another_with_the_same_seed(write, tmp_path: Path):
    """It is trained after that one, whatever the order of the file; its teacher is the base."""
    text = PLAIN.replace("arms:\n", "arms:\n  both: {method: opct, after: sft}\n")
    experiment = load_experiment(write(text))
    assert [arm.name for arm in experiment.arms] == ["sft", "opct", "both"]
    config = experiment.configs["both", 3]
    assert config.model.adapter == str(tmp_path / "out" / "sft-seed3")
    assert (config.teacher.kind, config.teacher.include_adapter) == ("base", False)


def test_a_matrix_gives_each_arm_once_for_each_combination(write):
    matrix = "matrix:\n  data.anchor_fraction: [0.0, 0.25]\n  loss.reduction: [token_mean, sum]\n"
    experiment = load_experiment(write(BOTH + matrix))
    assert len(experiment.arms) == 12
    arm = experiment.arms[-1]
    assert arm.name == "both-anchor_fraction-0.25-reduction-sum"
    assert arm.after == "sft-anchor_fraction-0.25-reduction-sum"
    config = experiment.configs[arm.name, 0]
    assert (config.data.anchor_fraction, config.loss.reduction) == (0.25, "sum")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PLAIN + "sedes: [1]\n", "seeds"),
        (PLAIN.replace("seeds: [0, 3]", "seeds: [1, 1]"), "seeds: 1"),
        (PLAIN.replace("  sft:", "  SFT/x:"), "arms.SFT/x"),
        (PLAIN.replace("  sft:", "  base:"), "base"),
        (PLAIN + "  both: {after: stf}\n", "stf"),
        (PLAIN + "  both: {after: [sft]}\n", "['sft']"),
        (PLAIN + "matrix: {seed: [1, 2]}\n", "seed"),
        (PLAIN + "  x: {after: sft, model.adapter: mine}\n", "arms.x.model.adapter"),
        (PLAIN + "  a: {after: b}\n  b: {after: a}\n", "(a, b)"),
        (PLAIN + "  x: {optim: {learning_rate: 1.0}}\nmatrix: {optim.learning_rate: [2.0]}\n", "arms.x.optim"),
        (PLAIN + "matrix: {model.name_or_path: [a/b, a-b]}\n", '"model.name_or_path": "a-b"'),
        (PLAIN + "compare: [[opct, sfd]]\n", "sfd"),
        (PLAIN + "compare: [[opct, sft], [opct, base]]\n", "compare.1"),
        (PLAIN + "attacks: {attackers: [refin]}\n", "refin"),
        (PLAIN + "attacks: {attackers: [transfer, transfer]}\n", "attackers"),
        (PLAIN + "attacks: {attackers: [refine], settings: {target: {label: x}}}\n", "attacks.settings.target.label"),
        (PLAIN + "attacks: {attackers: [refine, grpo], settings: {episodes: 1}}\n", "episodes"),
        # several models are refused whatever their budgets
        (PLAIN + "  x: {model.name_or_path: a/b}\nsame_budget: false\n", "x: a/b"),
        (PLAIN + "  x: {model.revision: old}\n", "revision old"),
    ],
)
def test_faults_are_named(write, text: str, named: str):
    with refused(ConfigError, named):
        load_experiment(write(text))


@pytest.mark.parametrize(
    ("more", "override", "named"),
    [
        ("", "seed=4", "seed=4"),
        ("matrix: {data.anchor_fraction: [0.0, 0.25]}\n", "data={anchor_fraction: 0.5}", "data.anchor_fraction"),
        ("  both: {method: opct, after: sft}\n", "model.adapter=x", "model.adapter"),
    ],
)
def test_overrides_of_what_the_arms_names_stand_for_are_refused(write, more: str, override: str, named: str):
    with refused(ConfigError, named):
        load_experiment(write(PLAIN + more), [override])


def test_an_override_wins_over_an_arms_own_value(write):
    text = PLAIN + "  fast: {optim.learning_rate: 8.0e-4}\n"
    experiment = load_experiment(write(text), ["optim.learning_rate=1e-3"])
    assert {config.optim.learning_rate for config in experiment.configs.values()} == {1e-3}


HALVES = (
    "  half: {method: sft, max_steps: 1}\n"
    "  more: {method: sft, after: half, max_steps: 1}\n"
    "  both: {method: opct, after: more, max_steps: 2}\n"
)
"""4 steps in all of `both`: 1, 1 and 2."""


@pytest.mark.parametrize(
    ("arms", "named"),
    [
        ("  x: {data.pairs: [a.jsonl]}\n", 'x: ["a.jsonl"]'),
        ("  x: {lora: null}\n", "x: null"),
        ("  both: {method: opct, after: sft, max_steps: 8}\n", "max_steps: sft: 4, opct: 4, both: 8"),
        # 5 in all; a number that is not known yet
        (HALVES.replace("max_steps: 2", "max_steps: 3"), "max_steps: sft: 4, opct: 4, half: 1, more: 1, both: 3"),
        (HALVES.replace("max_steps: 2", "max_steps: null"), "half: 1, more: 1, both: null"),
    ],
)
def test_arms_that_differ_in_budget_are_refused_unless_that_is_said(write, arms: str, named: str):
    with refused(ConfigError, named, "same_budget: false"):
        load_experiment(write(PLAIN + arms))
    assert load_experiment(write(PLAIN + arms + "same_budget: false\n"))


def test_an_arm_may_share_the_steps_of_the_others_with_those_it_continues(write):
    """`sft` and `opct` have 4, `both` 2 after 1 and 1; so may all three of `both` have 4 by themselves."""
    experiment = load_experiment(write(PLAIN + HALVES))
    assert [experiment.configs[arm.name, 0].max_steps for arm in experiment.arms] == [4, 4, 1, 1, 2]
    assert len(load_experiment(write(BOTH)).arms) == 3


def test_combinations_of_the_matrix_may_differ_in_budget_and_arms_of_one_may_not(write):
    text = PLAIN + "matrix: {max_steps: [3, 6]}\n"
    assert len(load_experiment(write(text)).arms) == 4
    with refused(ConfigError, "rollout.num_generations"):
        load_experiment(write(text.replace("matrix:", "  x: {rollout.num_generations: 3}\nmatrix:")))


def test_an_arm_that_continues_another_is_compared_with_the_plain_arm_of_its_method_and_combination(write):
    """OPCT after SFT with OPCT, of each value of the matrix; SFT after OPCT with SFT."""
    text = BOTH + "  back: {method: sft, after: opct}\nmatrix: {data.anchor_fraction: [0.0, 0.25]}\n"
    expected = {
        (f"{of}-anchor_fraction-{value}", f"{against}-anchor_fraction-{value}")
        for value in (0.0, 0.25)
        for of, against in (("both", "opct"), ("back", "sft"))
    }
    assert set(load_experiment(write(text)).comparisons) == expected
