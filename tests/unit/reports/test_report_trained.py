"""What a report says of arms that were not trained on an axis' training families."""

from __future__ import annotations

from dataclasses import replace

import pytest
from synthetic_axes import write_axes

from opct.data.perturb.jailbreak import FAMILIES as WRAPPERS
from opct.reports.axis_figures import axis_figures
from opct.reports.build import report_json
from opct.reports.compare import Comparison, compare
from opct.reports.load import load_runs
from opct.reports.page import page_html
from opct.reports.trained import families_note

STAMP = {"created": "now", "version": "0"}
JAILBREAK = [name for name, family in WRAPPERS.items() if family.split == "train"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Base, SFT and OPCT, measured on jailbreak alone."""
    return load_runs(write_axes(tmp_path_factory.mktemp("trained"), labels=("sft", "opct"), axes=("jailbreak",)))


def of(runs, **families: list[str] | None) -> Comparison:
    """The runs with these families in their manifests, by label; None: a manifest that does not say."""
    manifests = {name: {} if own is None else {"trained_families": own} for name, own in families.items()}
    return compare([replace(run, manifest=manifests.get(run.label, {})) for run in runs])


@pytest.mark.parametrize(
    ("sft", "opct", "said"),
    [
        (JAILBREAK, [*JAILBREAK, "majority"], ""),
        (JAILBREAK, ["majority"], "OPCT was trained on none of these training families."),
        (["majority"], [], "SFT and OPCT were trained on none of these training families."),
        (
            JAILBREAK,
            [name for name in JAILBREAK if name not in ("role_play", "base64")],
            "OPCT was not trained on base64 and role play.",
        ),
        (None, JAILBREAK, "Which families SFT was trained on is not known."),
        (
            [],
            None,
            "SFT was trained on none of these training families. Which families OPCT was trained on is not known.",
        ),
    ],
)
def test_arms_that_the_training_families_are_new_to_are_named(runs, sft, opct, said: str):
    """An arm that was trained on sycophancy alone has not seen them; the base has nothing to be said of."""
    assert families_note(of(runs, sft=sft, opct=opct), "jailbreak") == said


def test_of_several_seeds_all_must_have_seen_a_family(runs):
    """The second seed of OPCT lacks base64."""
    own = [
        replace(runs[2], name=name, manifest={"trained_families": families})
        for name, families in (("a", JAILBREAK), ("b", [name for name in JAILBREAK if name != "base64"]))
    ]
    assert families_note(compare([runs[0], *own]), "jailbreak") == "OPCT was not trained on base64."


def test_the_page_the_json_and_the_caption_say_it_and_none_says_that_every_arm_trained_on_them(runs):
    found = of(runs, sft=JAILBREAK, opct=["majority"])
    note = "OPCT was trained on none of these training families."
    figures, _ = axis_figures(found, "jailbreak")
    [train] = [figure for figure in figures if figure.title.startswith("Training families")]
    [held_out] = [figure for figure in figures if figure.title.startswith("Held-out families")]
    assert "The built-in training pairs of this axis are made of these families." in train.caption
    assert train.caption.endswith(note)
    assert note not in held_out.caption
    assert report_json(found, [], STAMP)["axes"][0]["note"] == note
    page = page_html(found, [], STAMP, json_name="report.json", max_rollouts=0)
    assert f"those that they leave out. {note}</p>" in page
