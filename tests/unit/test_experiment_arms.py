"""Which arms of an experiment are compared with which, and what those of one combination share."""

from __future__ import annotations

from pathlib import Path

import pytest

from opct.errors import ConfigError
from opct.experiments.config import load_experiment

SHARED = "output_dir: elsewhere\nmax_steps: 4\noptim: {prompts_per_step: 4}\n"
PLAIN = "output_dir: out\ntrain: shared.yaml\nseeds: [0, 3]\narms:\n  sft: {method: sft}\n  opct: {method: opct}\n"
BOTH = PLAIN + "  both: {method: opct, after: sft}\n"
MATRIX = "matrix: {data.anchor_fraction: [0.0, 0.25]}\n"
LOW, HIGH = "-anchor_fraction-0.0", "-anchor_fraction-0.25"


@pytest.fixture
def write(tmp_path: Path):
    """Writes an experiment beside the settings that all arms share."""
    (tmp_path / "shared.yaml").write_text(SHARED)

    def make(text: str) -> Path:
        path = tmp_path / "experiment.yaml"
        path.write_text(text)
        return path

    return make


# ------------------------------------------------------------------------------------------- what else is compared


def test_an_arm_that_goes_on_is_compared_with_the_plain_arm_of_its_method_and_combination(write):
    """OPCT after SFT with OPCT, of each value of the matrix; SFT after OPCT with SFT."""
    found = load_experiment(write(BOTH + "  back: {method: sft, after: opct}\n" + MATRIX)).comparisons
    assert set(found) == {
        (of + values, against + values) for values in (LOW, HIGH) for of, against in (("both", "opct"), ("back", "sft"))
    }


def test_of_several_plain_arms_it_is_the_one_with_the_same_settings_else_the_first(write):
    arms = "  slow: {method: opct, optim.learning_rate: 1.0e-5}\n"
    text = BOTH.replace("  opct:", arms + "  opct:")
    assert load_experiment(write(text)).comparisons == [("both", "opct")]
    other = text.replace("after: sft", "after: sft, optim.learning_rate: 2.0e-5")
    assert load_experiment(write(other)).comparisons == [("both", "slow")]
    assert load_experiment(write(BOTH.replace("  opct: {method: opct}\n", ""))).comparisons == []


def test_the_file_may_ask_for_more(write):
    """Values of the matrix with one another; what is there already stands once."""
    asked = f"compare: [[opct{HIGH}, opct{LOW}], [both{LOW}, opct{LOW}]]\n"
    found = load_experiment(write(BOTH + MATRIX + asked)).comparisons
    assert sorted(found) == sorted(
        [("both" + LOW, "opct" + LOW), ("both" + HIGH, "opct" + HIGH), ("opct" + HIGH, "opct" + LOW)]
    )


@pytest.mark.parametrize(
    ("compare", "words"),
    [
        ("[[opct, sfd]]", "compare.0: Unknown arm 'sfd'. Did you mean 'sft'? Use one of: sft, opct."),
        ("[[opct, sft], [opct, base]]", "compare.1: every arm is compared with the base; leave it out"),
        ("[[opct, opct]]", "compare.0: opct is compared with itself; name two arms"),
        ("[[opct]]", 'compare.0: ["opct"] is not valid: List should have at least 2 items'),
        ("[opct, sft]", 'compare.0: "opct" is not valid'),
    ],
)
def test_faults_of_what_is_asked_for(write, compare: str, words: str):
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(PLAIN + f"compare: {compare}\n"))
    assert words in str(caught.value)


def test_the_name_of_an_arm_has_its_values(write):
    with pytest.raises(ConfigError, match=r"Unknown arm 'opct'.* are part of a name: 'opct-anchor_fraction-0\.0'\."):
        load_experiment(write(PLAIN + MATRIX + f"compare: [[opct, opct{LOW}]]\n"))


# ---------------------------------------------------------------------------------------------- steps of one budget

HALVES = (
    "  half: {method: sft, max_steps: 1}\n"
    "  more: {method: sft, after: half, max_steps: 1}\n"
    "  both: {method: opct, after: more, max_steps: 2}\n"
)
"""4 steps in all of `both`: 1, 1 and 2."""


def test_an_arm_may_share_the_steps_of_the_others_with_those_it_goes_on_from(write):
    """`sft` and `opct` have 4, `both` 2 after 1 and 1; so may all three of `both` have 4 by themselves."""
    experiment = load_experiment(write(PLAIN + HALVES))
    assert [experiment.configs[arm.name, 0].max_steps for arm in experiment.arms] == [4, 4, 1, 1, 2]
    assert experiment.references["both"] == "sft"
    assert len(load_experiment(write(BOTH)).arms) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            PLAIN + HALVES.replace("max_steps: 2", "max_steps: 3"),
            "max_steps: sft: 4, opct: 4, half: 1, more: 1, both: 3",
        ),
        (PLAIN + HALVES[: HALVES.index("  both")], "max_steps: sft: 4, opct: 4, half: 1, more: 1"),
        (PLAIN + HALVES.replace("max_steps: 2", "max_steps: null"), "half: 1, more: 1, both: null"),
        (PLAIN.replace("  sft: {method: sft}\n", "") + HALVES, "max_steps: opct: 4, half: 1, more: 1, both: 2"),
        (BOTH.replace("after: sft", "after: sft, max_steps: 8"), "max_steps: sft: 4, opct: 4, both: 8"),
    ],
)
def test_arms_of_other_steps_by_themselves_and_in_all_are_refused(write, text: str, said: str):
    """5 in all; parts of nothing that has 4; a number that is not known yet; a part that is the reference of others, as
    the only arm of SFT that begins with the base; 8 by itself and 12 in all.
    """
    with pytest.raises(ConfigError) as caught:
        load_experiment(write(text))
    assert said in str(caught.value)
    assert load_experiment(write(text + "same_budget: false\n"))


@pytest.mark.parametrize(
    ("offpolicy", "is_refused"),
    [("  half: {method: offpolicy, max_steps: 2}\n", True), ("  offpolicy: {method: offpolicy}\n", False)],
)
def test_a_part_that_is_the_off_policy_reference_of_others_is_refused(write, offpolicy: str, is_refused: bool):
    """2 and 2 steps beside 4 of `sft` and of `opct`, which is compared with the first off-policy arm of its
    combination: the part, or one of 4 steps before it.
    """
    part = "" if is_refused else "  half: {method: offpolicy, max_steps: 2}\n"
    text = PLAIN + offpolicy + part + "  later: {method: opct, after: half, max_steps: 2}\n"
    if is_refused:
        with pytest.raises(ConfigError, match="max_steps: sft: 4, opct: 4, half: 2, later: 2"):
            load_experiment(write(text))
    assert load_experiment(write(text + ("same_budget: false\n" if is_refused else "")))
