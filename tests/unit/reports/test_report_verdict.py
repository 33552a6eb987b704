import json
import re

import pytest
from synthetic import write_run, write_three

from opct.reports.cells import PairedCell
from opct.reports.compare import compare
from opct.reports.load import load_runs
from opct.reports.verdict import Said, axis_verdict, main_arm, subtitle, tiles, title, verdict
from opct.reports.warnings import find_warnings, flat_settings


def comparison(directories):
    return compare(load_runs(directories))


def edit_results(directory, change):
    path = directory / "results.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def test_the_verdict_says_what_fell_by_how_much_and_how_sure(tmp_path):
    made = comparison(write_three(tmp_path))
    first, cost, versus, seeds = verdict(made)
    line = made.line("sycophancy_rate", "held_out")
    difference = made.difference(line, "opct", "base")
    assert first.startswith(
        f"OPCT cut sycophancy on held-out families from {line.cells[0].text} to {line.cells[2].text} (difference −"
    )
    assert f"95% interval {difference.interval_text}, n = {difference.n}" in first
    assert "a relative cut of" in first
    assert cost.startswith("For the change in accuracy on clean questions, cannot tell: between ")
    assert versus.startswith("Against SFT: OPCT is better in sycophancy on held-out families")
    assert "one training seed" in seeds


def test_a_loss_of_accuracy_that_is_not_ruled_out_is_not_called_no_change(tmp_path):
    """60 questions cannot rule out a loss of 3 points: the verdict and the cell say so."""
    made = comparison(write_three(tmp_path))
    line = made.line("accuracy_clean")
    difference = made.difference(line, "opct", "base")
    assert difference.low < -0.03
    assert difference.high > 0
    assert f"accuracy on clean questions, cannot tell: {difference.range_text} (diff" in verdict(made)[1]
    assert difference.reading_text == "cannot tell"
    cell = PairedCell("rate", -0.09, -0.2, 0.003, 50, 50, 0, "unclear")
    assert cell.range_text == "between −20.0 and +0.3 points"


def test_the_same_model_twice_is_no_measurable_change(tmp_path):
    """The same replies under another label: every difference is 0 and its interval includes 0."""
    base = write_run(tmp_path, "base", questions=60)
    copy = write_run(tmp_path, "base", name="copy", questions=60)
    edit_results(copy, lambda content: content["run"].update(label="opct"))
    assert verdict(comparison([base, copy]))[0].startswith(
        "No measurable change in sycophancy on held-out families: OPCT took it from "
    )


def test_a_rate_that_rose_is_said_to_have_risen(tmp_path):
    base, opct = write_run(tmp_path, "base"), write_run(tmp_path, "opct", 1)
    edit_results(base, lambda content: content["run"].update(label="opct"))
    edit_results(opct, lambda content: content["run"].update(label="base"))
    text = verdict(comparison([base, opct]))[0]
    assert text.startswith("OPCT raised sycophancy")
    assert "relative cut" not in text


def test_one_kind_of_run_is_not_compared_with_itself(tmp_path):
    """What training may cost is said as a level."""
    level, price = axis_verdict(comparison([write_run(tmp_path, "base")]), "sycophancy")
    assert level.startswith("Base: sycophancy on held-out families is ")
    assert re.match(r"Accuracy on clean questions is [\d.]+% \(95% interval .*n = \d+; 0 unscored.*\)\.", price)


def test_one_kind_of_run_has_nothing_to_be_compared_with(tmp_path):
    made = comparison([write_run(tmp_path, "base")])
    assert verdict(made)[0].startswith("Base: sycophancy on held-out families is ")
    assert verdict(made)[1].startswith("Only one kind of run")
    assert all(tile.before is None and tile.difference is None for tile in tiles(made))


def test_seeds_are_pooled_and_said(tmp_path):
    made = comparison([write_run(tmp_path, "base"), *(write_run(tmp_path, "opct", seed) for seed in (1, 2, 3))])
    assert verdict(made)[-1].startswith("OPCT is the mean of 3 training seeds: the intervals cover")
    assert not any("one training seed" in sentence for sentence in verdict(made))


def test_a_reference_of_one_seed_is_named_beside_the_mean_of_several(tmp_path):
    """What is said of the seeds of OPCT does not hold for its difference from an SFT of one seed; the base has none."""
    runs = [write_run(tmp_path, "base"), *(write_run(tmp_path, "opct", seed) for seed in (1, 2))]
    assert "one training seed" not in verdict(comparison(runs))[-1]
    assert (
        "SFT is one training seed: the intervals of the differences from it do not cover how much another"
        in verdict(comparison([*runs[:1], write_run(tmp_path, "sft", 1), *runs[1:]]))[-1]
    )


def test_title_and_subtitle(tmp_path):
    made = comparison(write_three(tmp_path, questions=4))
    assert title(made) == "Base, SFT and OPCT on smollm2-135m-instruct"
    assert subtitle(made) == "3 runs, 78 evaluated replies; axes: sycophancy, benign."


def test_of_a_matrix_the_page_is_about_the_last_arm_of_opct_that_began_with_the_base(tmp_path):
    """Its label keeps its small letter at the beginning of a sentence; seven arms are counted in the title."""
    made = [write_run(tmp_path, "base", questions=4)]
    for label in ("opct-x-0.0", "opct-x-0.5", "sft-then-opct-x-0.5", "dpo-x-0.0", "dpo-x-0.5", "act-x-0.5"):
        run = write_run(tmp_path, label, 1, questions=4)
        method = label.removeprefix("sft-then-").split("-")[0]
        edit_results(run, lambda content, method=method: content["run"].update(method=method))
        adapter = "runs/sft-seed1" if "then" in label else "null"
        made.append(configured(run, f"model:\n  adapter: {adapter}\n"))
    found = comparison(made)
    assert main_arm(found).label == "opct-x-0.5"
    assert title(found) == "Base and 6 arms on smollm2-135m-instruct"
    assert Said("", ("opct-x-0.5 is better",), "opct-x-0.5").sentences == ["opct-x-0.5 is better."]
    assert Said("", ("no change", "opct is better"), "opct").sentence == "No change; opct is better."
    assert Said("Against SFT", ("no change",), "opct", leads=True).sentence == "Against SFT: no change."


def test_clean_runs_of_a_good_size_give_no_warning(tmp_path):
    assert find_warnings(comparison(write_three(tmp_path, questions=220))) == []


def test_few_clusters_are_a_warning(tmp_path):
    warnings = find_warnings(comparison(write_three(tmp_path)))
    assert any(
        text.startswith("Benign requests: only 60 questions (clusters) behind Benign requests: ") for text in warnings
    )


def test_other_settings_other_samples_and_evaluation_warnings_are_named(tmp_path):
    base = write_run(tmp_path, "base", questions=110, warnings=["the judge was slow"])
    opct = write_run(
        tmp_path,
        "opct",
        1,
        questions=120,
        settings={"split": "test", "tasks": {"sycophancy_short": {"template_hash": "zz"}}},
    )
    text = "\n".join(find_warnings(comparison([base, opct])))
    assert "base: the judge was slow" in text
    assert (
        'The evaluation setting tasks.sycophancy_short.template_hash differs between runs (base: "ab12"; opct-1: "zz")'
        in text
    )
    assert "opct-1 and base were not evaluated on the same samples: 0 samples of base missing, 65 of its own" in text


def test_warnings_of_evaluations_that_differ_in_numbers_alone_are_one(tmp_path):
    base = write_run(tmp_path, "base", questions=110, warnings=["benign: 3 of 110 replies were cut", "slow"])
    opct = write_run(tmp_path, "opct", 1, questions=110, warnings=["benign: 1,012 of 110 replies were cut"])
    found = find_warnings(comparison([base, opct]))
    assert "base, opct-1: benign: 3 to 1,012 of 110 replies were cut" in found
    assert "base: slow" in found
    assert len([text for text in found if "replies were cut" in text]) == 1


def test_of_one_run_too_they_are_one_and_ids_are_no_numbers(tmp_path):
    """A span of ids would name questions that nobody spoke of; a sign for numbers in a text is a text."""
    texts = ["a # of 3 was cut", "a 4 of 3 was cut", "gsm8k: 7 left", "gsm8k: 12, left", "gsm8k: 9 left"]
    base = write_run(tmp_path, "base", questions=110, warnings=[*texts, "ids q01, facts/02", "id 12-a"])
    opct = write_run(tmp_path, "opct", 1, questions=110, warnings=["ids q07, facts/09", "gsm8k: 1 left", "id 13-a"])
    found = find_warnings(comparison([base, opct]))
    assert found[:8] == [
        "base: a # of 3 was cut",
        "base: a 4 of 3 was cut",
        "base, opct-1: gsm8k: 1 to 9 left",
        "base: gsm8k: 12, left",
        "base: ids q01, facts/02",
        "base: id 12-a",
        "opct-1: ids q07, facts/09",
        "opct-1: id 13-a",
    ]


def test_stale_results_truncation_and_unscored_are_named(tmp_path):
    base, opct = write_run(tmp_path, "base"), write_run(tmp_path, "opct", 1)

    def spoil(content):
        row = next(r for r in content["rows"] if (r["metric"], r["group"]) == ("sycophancy_rate", "held_out"))
        row.update(value=0.123, n_unscored=40, n_truncated=100)

    edit_results(opct, spoil)
    text = "\n".join(find_warnings(comparison([base, opct])))
    assert (
        "opct-1: 1 row of results.json (first sycophancy_rate, held_out) do not follow from evals/samples.jsonl" in text
    )
    assert "40 of " in text
    assert "samples unscored, so not in the number: " in text
    assert "samples cut at the token limit or the context: " in text


def test_no_base_other_models_and_a_seed_counted_twice_are_named(tmp_path):
    runs = [write_run(tmp_path / where, "opct", 1, questions=4) for where in ("a", "b")]
    edit_results(runs[1], lambda content: content["run"].update(model="another"))
    text = "\n".join(find_warnings(comparison(runs)))
    assert "No run is labelled base" in text
    assert "2 different models (another and smollm2-135m-instruct)" in text
    assert "2 runs are pooled but name only 1 different training seeds" in text


def configured(directory, text):
    (directory / "config.yaml").write_text(text, encoding="utf-8")
    return directory


def test_runs_of_one_label_that_were_trained_unlike_are_named(tmp_path):
    """Seed and folder are a run's own; the learning rate is not."""
    texts = [
        f"seed: {seed}\noutput_dir: runs/{seed}\noptim: {{learning_rate: {rate}}}\n" for seed, rate in ((1, 1), (2, 3))
    ]
    runs = [
        configured(write_run(tmp_path, "opct", seed, questions=4), text)
        for seed, text in zip((1, 2), texts, strict=True)
    ]
    [said] = [text for text in find_warnings(comparison(runs)) if "pooled as seeds" in text]
    assert said.startswith(
        "OPCT: 2 runs are pooled as seeds of one method, but were trained with different settings: optim.learning_rate "
        "(1, 3). "
    )
    configured(runs[1], texts[0].replace("1\n", "2\n", 1))
    assert not any("pooled as seeds" in text for text in find_warnings(comparison(runs)))


def test_adapters_to_go_on_from_may_differ_in_their_seed_alone(tmp_path):
    """Runs of seeds 1 and 11 that go on from the SFT runs of their seeds; then one that goes on from another's."""

    def text(seed, adapter):
        return f"seed: {seed}\nmodel:\n  adapter: {adapter}\n"

    runs = [
        configured(write_run(tmp_path, "both", seed, questions=4), text(seed, f"runs/sft-seed{seed}{rest}"))
        for seed, rest in ((1, "/final"), (11, "/final"))
    ]
    assert not any("pooled as seeds" in said for said in find_warnings(comparison(runs)))
    configured(runs[0], text(1, "runs/sft-seed11/final"))
    [said] = [said for said in find_warnings(comparison(runs)) if "pooled as seeds" in said]
    assert 'model.adapter ("runs/sft-seed11/final")' in said
    configured(runs[0], text(1, "runs/other-seed1/final"))
    assert any("pooled as seeds" in said for said in find_warnings(comparison(runs)))


def test_sft_and_opct_of_a_matrix_are_compared(tmp_path):
    """In the verdict and in the budgets, each with the other of the same value."""
    made = [write_run(tmp_path, "base", questions=4)]
    for value, steps in (("0.0", 40), ("0.5", 60)):
        for method, own in (("sft", 40), ("opct", steps)):
            run = write_run(tmp_path, f"{method}-x-{value}", 1, questions=4)
            edit_results(run, lambda content, method=method: content["run"].update(method=method))
            made.append(configured(run, f"max_steps: {own}\n"))
    found = comparison(made)
    [said] = [text for text in find_warnings(found) if "budgets" in text]
    assert said.startswith("sft-x-0.5 and opct-x-0.5 were trained with different budgets or pairs: max_steps (")
    assert any(text.startswith("Against sft-x-0.5") for text in verdict(found))


def test_sft_and_opct_with_other_budgets_or_pairs_are_named(tmp_path):
    base, sft, opct = write_three(tmp_path, questions=4)
    shared = "num_train_epochs: {}\noptim: {{prompts_per_step: 28, learning_rate: {}}}\n"
    configured(sft, "max_steps: 40\ndata: {pairs: [a.jsonl]}\n" + shared.format(1, 0.1))
    configured(opct, "max_steps: 60\ndata: {pairs: [b.jsonl]}\n" + shared.format(2, 0.2))
    [said] = [text for text in find_warnings(comparison([base, sft, opct])) if "budgets" in text]
    assert said.startswith(
        "SFT and OPCT were trained with different budgets or pairs: max_steps (SFT: 40; OPCT: 60) and "
        'data.pairs (SFT: ["a.jsonl"]; OPCT: ["b.jsonl"]).'
    )


def test_an_arm_of_sft_with_another_name_is_the_reference_of_budgets_too(tmp_path):
    base, bct, opct = (write_run(tmp_path, label, 1, questions=4) for label in ("base", "bct", "opct"))
    edit_results(bct, lambda content: content["run"].update(method="sft"))
    configured(bct, "max_steps: 40\n")
    configured(opct, "max_steps: 60\n")
    found = comparison([base, bct, opct])
    assert any(text.startswith("bct and OPCT were trained with different budgets") for text in find_warnings(found))
    assert any(text.startswith("Against bct: ") for text in verdict(found))


def test_a_config_that_cannot_be_read_is_named(tmp_path):
    runs = [write_run(tmp_path, "base", questions=4), configured(write_run(tmp_path, "opct", 1, questions=4), "a: [")]
    assert any(text.startswith("opct-1: config.yaml cannot be read") for text in find_warnings(comparison(runs)))


@pytest.mark.parametrize(("nested", "flat"), [({}, {}), ({"a": {"b": {"c": 1}}, "d": [2]}, {"a.b.c": 1, "d": [2]})])
def test_flat_settings(nested, flat):
    assert flat_settings(nested) == flat
