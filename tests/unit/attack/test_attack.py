"""Whole attacks: their settings, their folder, what is refused, and who may read what."""

from __future__ import annotations

import json
from io import StringIO
from zipfile import ZipFile

import pytest
from rich.console import Console

from opct.attack import setup
from opct.attack.run import load_attack_config, run_attack
from opct.data.behaviors import builtin_behaviors
from opct.errors import ConfigError, DataError, EvaluationError, OtherAttackError, RunError
from opct.evals.attackers.config import AttackConfig, Refine
from opct.evals.attackers.episode import Subject, attempts_in
from opct.evals.graders.versions import AGREEMENT
from opct.evals.judges.rubrics import STRONGREJECT
from opct.evals.logs import read_log
from opct.reports.build import report
from opct.runs.console import NullProgress
from opct.runs.io import append_jsonl, read_json
from tests.refusals import refused
from tests.unit.attack.scripted import first_word, user
from tests.unit.attack.test_play import numbered
from tests.unit.evals.judges.test_llm import KEY, Server

SMALL = "n_behaviors=3 episodes=2 rounds=2 target.max_completion_tokens=5"
BEST_OF_N = f"attacker.name=best_of_n {SMALL}"


def attack(target, out, words=BEST_OF_N, **more):
    return run_attack(target, load_attack_config(None, words.split()), out=out, **more)


def attempts(out, name="attack_best_of_n"):
    log = read_log(out / "evals" / f"{name}.eval")
    return {(one.id, one.epoch): [(a.prompt, a.reply, a.score) for a in attempts_in(one.store)] for one in log.samples}


def test_an_attack_on_a_policy_gives_its_rows_and_keeps_its_texts(tiny_policy, tmp_path):
    """3 behaviors x 2 x 2 attempts, 3 bare, and 3 counterparts x 1 x 2; a random model answers nothing readable."""
    done = attack(tiny_policy, tmp_path / "a")
    rows = {row["metric"]: row for row in read_json(tmp_path / "a" / "results.json")["rows"]}
    assert list(rows.values()) == done.rows
    assert done.spent["queries"] == 3 * 4 + 3 + 3 * 2 == sum(map(len, attempts(tmp_path / "a").values()))
    rate = rows["defense_success_rate"]
    assert (rate["axis"], rate["suite"], rate["n"] + rate["n_unscored"]) == ("attack", "attack_best_of_n", 3)
    for name in ("attack_best_of_n.eval", "attack_best_of_n.prompts.jsonl"):
        assert (tmp_path / "a" / "evals" / name).stat().st_mode & 0o777 == 0o600
    assert not list((tmp_path / "a" / "evals" / "unfinished").iterdir())
    scores = read_log(tmp_path / "a" / "evals" / "attack_best_of_n.eval").results.scores
    [headline] = [score for score in scores if score.name == "queries"]
    assert headline.metrics.keys() == {"grouped_bare", "grouped_behavior", "grouped_counterpart"}
    console = Console(width=120, file=StringIO())
    console.print(done.render())
    shown = console.file.getvalue() + (tmp_path / "a" / "results.json").read_text()
    assert "defense_success_rate" in shown
    texts = [said for own in attempts(tmp_path / "a").values() for _, said, _ in own if len(said or "") > 4]
    assert not [said for said in texts if said in shown]


def test_an_attack_that_was_stopped_goes_on_as_if_it_had_not_been(tiny_policy, tmp_path):
    """Not from the log that it replaces, nor with other settings. The folder of an attack of an earlier version is left
    alone."""
    successes = tmp_path / "a" / "attacks" / "best_of_n" / "successful_prompts.jsonl"
    successes.parent.mkdir(parents=True)
    for path in (successes, successes.with_name("identity.json"), successes.with_name("attempts.jsonl")):
        path.write_text("{}\n")
    attack(tiny_policy, tmp_path / "a")

    class Stops(NullProgress):
        def stage(self, name, total=None, initial=0):
            if name == "round 2 of 2":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack(tiny_policy, tmp_path / "a", f"{BEST_OF_N} seed=1", overwrite=True, progress=Stops())
    with refused(RunError, tmp_path / "a"):
        attack(tiny_policy, tmp_path / "a")
    for other in ("rounds=3", "judge.name=refusals", "target.temperature=0.5"):
        with pytest.raises(OtherAttackError):
            attack("some/model", tmp_path / "a", f"{BEST_OF_N} seed=1 {other}", resume=True)  # before it is loaded
    attack(tiny_policy, tmp_path / "a", f"{BEST_OF_N} seed=1", resume=True)
    attack(tiny_policy, tmp_path / "b", f"{BEST_OF_N} seed=1")
    assert attempts(tmp_path / "a") == attempts(tmp_path / "b")
    assert successes.read_text() == "{}\n"


def test_attacks_that_ended_early_or_differ_in_the_attackers_model_are_not_compared(tiny_policy, tmp_path):
    words = f"{BEST_OF_N} budget.max_queries=8"
    settings = [attack(tiny_policy, tmp_path / name, words).settings["task_args"] for name in ("a", "b")]
    assert settings[0] != settings[1]
    config = load_attack_config(None, words.split())
    judge = setup.load_judge_of_attack(config.judge)
    rows = [setup.row_settings(config, {}, {"attacker_model": m}, d, judge) for m, d in (("x", 1), ("y", 1), ("x", 2))]
    assert [row["task_args"] for row in rows] == [
        rows[0]["task_args"] | {"attacker_model": m, "dtype": d} for m, d in (("x", 1), ("y", 1), ("x", 2))
    ]


def test_a_report_has_attacks_in_its_table_and_none_of_their_texts(tiny_policy, tmp_path):
    for name in ("base", "sft"):
        attack(tiny_policy, tmp_path / name, f"{BEST_OF_N} judge.name=refusals target.label={name}")
    report([tmp_path / "base", tmp_path / "sft"], tmp_path / "report.html")
    numbers = json.loads((tmp_path / "report.json").read_text())
    row = next(one for one in numbers["rows"] if one["metric"] == "bare_defense_rate")
    assert set(row["arms"]) == {"base", "sft"}
    for label in ("base", "sft"):
        rows = read_json(tmp_path / label / "results.json")["rows"]
        assert {one["settings"]["judge_calibration"]["kappa"]["value"] for one in rows} == {
            AGREEMENT["jailbreak"].kappa
        }
    assert all(one["reason"].startswith("no scored sample") for one in row["not_compared"]), "the same attack"
    page = (tmp_path / "report.html").read_text()
    texts = [said for own in attempts(tmp_path / "base").values() for _, said, _ in own if len(said or "") > 4]
    assert texts
    assert not [said for said in texts if said in page]


def test_a_model_behind_an_endpoint_is_attacked_only_when_confirmed(tmp_path):
    with refused(EvaluationError, "--confirm-remote"):
        attack("inspect:mockllm/model", tmp_path / "a")
    with refused(EvaluationError, "target.base_url"):
        attack("some/model", tmp_path / "a", f"{BEST_OF_N} target.base_url=http://x")
    assert not (tmp_path / "a").exists()


def test_what_needs_no_model_is_checked_before_one_is_loaded(tmp_path):
    for words, error in (
        ("attacker.name=transfer attacker.families=helt_out", DataError),
        ("attacker.name=transfer attacker.prompts=nowhere.jsonl", DataError),
        ("behaviors=nowhere.jsonl", DataError),
        ("judge.name=strongrejct", EvaluationError),
        ("judge.name=refusals judge.threshold=0.3", EvaluationError),
        ("judge.name=strongreject", EvaluationError),
        ("attacker.name=refin", ConfigError),
        ("roundz=2", ConfigError),
        ("rounds=0", ConfigError),
        ("attacker.name=grpo episodes=1", ConfigError),
    ):
        with pytest.raises(error):
            attack("some/model", tmp_path / "a", f"attacker.name=best_of_n {words}")

    def undecorated(state, generate): ...

    for words, name, wrong in (
        (SMALL, "attacker", undecorated),
        (SMALL, "attacker", first_word()),
        (BEST_OF_N, "judge", undecorated),
    ):
        with refused(EvaluationError, {"attacker": "@solver", "judge": "@scorer"}[name]):
            attack("some/model", tmp_path / "a", words, **{name: wrong})
    assert not (tmp_path / "a").exists()


def test_what_cannot_begin_replaces_nothing(tiny_policy, tmp_path):
    out = tmp_path / "a"
    attack(tiny_policy, out)
    before = attempts(out)
    for target, words in ((tmp_path / "nowhere", BEST_OF_N), (tiny_policy, f"{BEST_OF_N} behaviors=nowhere.jsonl")):
        with refused(Exception, "nowhere"):
            attack(target, out, words, overwrite=True)
    assert attempts(out) == before
    attack(tiny_policy, out, f"{BEST_OF_N} seed=1", overwrite=True)
    assert attempts(out) != before


def test_a_solver_and_a_scorer_of_the_user_take_part(tiny_policy, tmp_path):
    done = attack(tiny_policy, tmp_path / "a", SMALL, attacker=numbered(), judge=first_word())
    assert done.log.name == "attack_numbered.eval"
    assert done.row("defense_success_rate")["settings"]["judge"]["name"].endswith("first_word")
    assert {said for own in attempts(tmp_path / "a", "attack_numbered").values() for _, said, _ in own}


def test_a_rubric_judges_an_attack_and_a_key_that_an_endpoint_repeats_is_kept_nowhere(tmp_path, monkeypatch):
    """Target and judge are one endpoint, which answers everything, by name of the model, and says the key it was
    called with. Half of the replies are refusals for the judge."""
    monkeypatch.setenv("JUDGED_API_KEY", KEY)
    said = iter(range(1000))

    def answers(n, headers):
        key = headers["authorization"].removeprefix("Bearer ")
        is_judge = server.calls[-1]["model"] == "judge"
        return 200, f"refused: {next(said) % 2}\nconvincing: 5\nspecific: 5" if is_judge else f"Sure, with {key}: so."

    with Server(answers) as server:
        judge = f"judge.name=strongreject judge.model=openai-api/judged/judge judge.base_url={server.url}"
        own = f"target.base_url={server.url} target.confirm_remote=true stop=never {judge}"
        done = attack("inspect:openai-api/judged/m", tmp_path / "a", f"{BEST_OF_N} {own}")
    row = done.row("defense_success_rate")
    assert row["settings"]["judge"]["name"] == "strongreject"
    assert row["settings"]["judge"]["rubric"] == STRONGREJECT.hash
    judged = [score for own in attempts(tmp_path / "a").values() for _, _, score in own]
    assert {0.0, 1.0} <= set(judged)
    assert done.spent["judge_usage"][0] == sum(call["model"] == "judge" for call in server.calls) > 0
    replies = {reply for own in attempts(tmp_path / "a").values() for _, reply, _ in own}
    assert replies == {"Sure, with [secret]: so."}
    with ZipFile(done.log) as log:
        assert not [name for name in log.namelist() if KEY.encode() in log.read(name)]
    assert not [path for path in (tmp_path / "a").rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]


def test_the_counterparts_of_the_embedded_set_meet_every_episode_number():
    config = load_attack_config(None, ["attacker.name=transfer"])
    subjects = setup.subjects_of(config, setup.attacked_behaviors(config))
    rules = setup.rules_of(config)
    numbers = [n for one in subjects if one.kind == "counterpart" for n in rules.numbers(one)]
    assert set(numbers) == set(range(8))
    assert rules.numbers(subjects[0]) == [0], "asked bare once"
    finished = AttackConfig(attacker={"name": "transfer", "prompts": "x.json"})
    assert not [one for one in setup.subjects_of(finished, builtin_behaviors("test")) if one.kind == "counterpart"]


def test_a_pool_with_an_attacked_behavior_in_other_words_is_refused(tmp_path):
    train, test = builtin_behaviors("train")[0], builtin_behaviors("test")[0]

    def pool_of(behavior):
        path = tmp_path / "prompts.jsonl"
        path.unlink(missing_ok=True)
        row = {"behavior_id": "x", "behavior": behavior, "prompt": list(user("p"))}
        append_jsonl(path, {"opct_warning": "P", "kind": "opct_successful_prompts", "schema": 1}, row)
        return setup.load_pool(AttackConfig(attacker=Refine(pool=str(path))), [test])

    assert [shot.behavior for shot in pool_of(train.behavior)] == [train.behavior]
    with refused(DataError, test.id):
        pool_of(test.behavior.upper())


def test_how_large_an_attack_can_get():
    config = load_attack_config(None, [*SMALL.split(), "budget.max_queries=9"])
    subjects = [Subject(str(i), f"r{i}", kind) for i in range(3) for kind in ("behavior", "bare", "counterpart")]
    assert {"21", "9"} <= set(setup.describe_plan(config, subjects).split())
