"""Training in the report: families that are new to an arm, and different budgets."""

import re
import shutil
from dataclasses import replace

import pytest

from opct.data.perturb.jailbreak import FAMILIES
from opct.errors import EvaluationError
from opct.reports.build import report
from opct.reports.compare import compare
from opct.reports.load import load_run
from opct.reports.training import families_note
from opct.reports.warnings import find_warnings
from opct.runs.run_dir import RunDir
from tests.refusals import refused
from tests.unit.reports.small import run, sample
from tests.unit.reports.synthetic import write_rollouts, write_run

ADAPTER = {"model.adapter": "runs/sft-seed1"}
SHARED = {"max_steps": 20, "data.pairs": ["a.jsonl"], "data.anchors": ["b.jsonl"]}
EPOCHS = {**SHARED, "max_steps": None, "num_train_epochs": 1.0}
EARLIER = {"earlier": {"steps": 20, "seconds": 9.0}}


def trained(label, *metrics, seed=0, manifest=(), **more):
    return run(label, [sample("q")], seed, metrics=metrics, manifest={"offline": False} | dict(manifest), **more)


JAILBREAK = [name for name, family in FAMILIES.items() if family.split == "train"]


def test_arms_that_the_training_families_are_new_to_are_named(runs):
    """An arm that was trained on sycophancy alone has not seen them; the base is not named."""
    small = []
    for own in (runs[0], runs[1], runs[3]):
        rows = [row for row in own.rows if (row["metric"], row["group"]) == ("attack_success_rate", "all")]
        small.append(replace(own, rows=tuple(rows), samples=tuple(s for s in own.samples if s.task == "jailbreak")))
    for sft, opct, named in (
        (JAILBREAK, [*JAILBREAK, "majority"], ""),
        (JAILBREAK, ["majority"], "OPCT"),
        (JAILBREAK, sorted(set(JAILBREAK) - {"role_play", "base64"}), "base64 and role play"),
        (None, JAILBREAK, "SFT"),
    ):
        manifests = [{} if families is None else {"trained_families": families} for families in (None, sft, opct)]
        made = [replace(own, manifest=manifest) for own, manifest in zip(small, manifests, strict=True)]
        note = families_note(compare(made), "jailbreak")
        assert named in note
        assert bool(note) == bool(named)


@pytest.mark.parametrize(
    ("sft", "opct", "manifests", "expected"),
    [
        (SHARED, SHARED | {"method": "opct", "optim.learning_rate": 1}, {}, None),
        (SHARED, SHARED | {"data.anchors": ["c"]}, {}, 'data.anchors (SFT: ["b.jsonl"]; OPCT: ["c"])'),
        # one epoch came out as 20 steps, which another arm asked for by number
        (SHARED, EPOCHS, {"sft": {"total_steps": 20}, "opct": {"total_steps": 20}}, None),
        (EPOCHS, EPOCHS, {"sft": {"total_steps": 1020}, "opct": {"total_steps": 30}}, "(SFT: 1,020; OPCT: 30)"),
        (SHARED, SHARED | ADAPTER, {"opct": EARLIER}, "40 optimizer steps"),
        (SHARED | ADAPTER, SHARED, {"sft": EARLIER}, "SFT continued"),
        (SHARED, SHARED | ADAPTER, {}, "unknown"),
        (SHARED | ADAPTER, SHARED | ADAPTER, {"sft": EARLIER, "opct": EARLIER}, None),
        # 40 steps asked for against 20 after 20: one budget in two parts
        (SHARED | {"max_steps": 40}, SHARED | ADAPTER, {"opct": {"earlier": {"steps": 0, "seconds": 0.0}}}, None),
    ],
)
def test_other_budgets_and_pairs_are_named(sft, opct, manifests, expected):
    """Of SFT and OPCT, which have logged 20 steps each."""
    steps = [{"step": i} for i in range(1, 21)]
    made = [run("base", [sample("q")])]
    for label, config in (("sft", sft), ("opct", opct)):
        made.append(trained(label, *steps, seed=1, config_values=config, manifest=manifests.get(label, {})))
    texts = [text for text in find_warnings(compare(made)) if "budgets" in text or "continued from" in text]
    assert len(texts) == (expected is not None)
    assert all(expected in text for text in texts)


def test_runs_of_one_label_that_were_trained_unlike_are_named():
    """Seed, folder and the seed in the path of an adapter are a run's own; the learning rate is not."""

    def texts(*configs):
        made = [run("opct", [sample("q")], c["seed"], config_values=c) for c in configs]
        return [text for text in find_warnings(compare(made)) if "pooled" in text]

    one = {"seed": 1, "output_dir": "runs/1", "optim.learning_rate": 1, "model.adapter": "runs/sft-seed1/final"}
    other = {"seed": 11, "output_dir": "runs/11", "optim.learning_rate": 1, "model.adapter": "runs/sft-seed11/final"}
    assert texts(one, other) == []
    [text] = texts(one, other | {"optim.learning_rate": 3})
    assert "optim.learning_rate (1, 3)" in text
    assert len(texts(one, other | {"model.adapter": "runs/sft-seed1/final"})) == 1


def test_a_training_that_was_not_evaluated_has_a_page(tmp_path):
    """Its KL, and the same prompt at the start, the middle and the end; but not one of an attacker."""
    own = write_run(tmp_path, "opct", 0, questions=2)
    shutil.rmtree(own / "evals")
    (own / "results.json").unlink()
    write_rollouts(own, "validation", {0: 2.0, 6: 0.4, 12: 0.02})
    RunDir(own).update_manifest({"eval_options": " --suite jailbreak"})
    with refused(EvaluationError, f"`opct eval {own} --suite jailbreak`"):
        load_run(own)
    page = report([own], tmp_path / "training.html").read_text(encoding="utf-8")
    shown = re.findall(r"Step (\d+) <span class=\"small\">KL ([\d.]+)", page)
    assert shown == [("0", "1.000"), ("6", "0.200"), ("12", "0.010")]
    assert '<span class="token k5" title="KL 2.000 nats">Par</span>' in page
    assert re.search(r"<h1>OPCT&#39;s distance .* asked plainly went from 0.620 to 0.\d+, on pairs it was not", page)
    assert f"run <code>opct eval {own} --suite jailbreak</code>" in page
    places = [page.index(part) for part in ("<h1>", "on held-out pairs. One line", "Cost of each arm")]
    assert places == sorted(places)
    assert "How to read it" not in page
    assert "Ask a" in page
    assert "Ask b" not in page
    with refused(EvaluationError, own):
        report([own, write_run(tmp_path, "base", 0, questions=2)], tmp_path / "both.html")


def test_without_validations_the_first_pressed_reply_of_training_steps_is_shown(tmp_path):
    """Eight of nine steps, with the first and the last; every reply with its prompt, and none of an attacker."""
    own = write_run(tmp_path, "opct", 0, questions=2)
    write_rollouts(own, "step", dict.fromkeys(range(1, 10), 0.5))
    page = report([own], tmp_path / "training.html").read_text(encoding="utf-8")
    assert re.findall(r'data-step="(\d+)"', page) == list("12345679")
    assert (page.count("Ask a"), page.count("Ask b")) == (8, 0)
