"""Whole attacks: their settings, their folder, what is refused, and who may read what."""

import json
import shutil
from io import StringIO
from zipfile import ZipFile

import pytest
from rich.console import Console

from opct.attack import setup
from opct.attack.run import load_attack_config, run_attack
from opct.data.behaviors import builtin_behaviors
from opct.errors import ConfigError, DataError, EvaluationError, OtherAttackError, RunError
from opct.evals.attackers.config import AttackConfig, Refine
from opct.evals.attackers.episode import attempts_in
from opct.evals.graders.versions import AGREEMENT
from opct.evals.judges.rubrics import STRONGREJECT
from opct.evals.logs import read_log
from opct.models.policy import Policy
from opct.reports.build import report
from opct.reports.load import load_run
from opct.runs.io import append_jsonl, read_json
from tests.progress import Noted
from tests.refusals import refused
from tests.tiny import tiny_model, tiny_tokenizer
from tests.unit.attack.scripted import first_word, user
from tests.unit.evals.judges.test_llm import KEY, endpoint

SMALL = "n_behaviors=3 episodes=2 rounds=2 target.max_completion_tokens=5"
BEST_OF_N = f"attacker.name=best_of_n {SMALL}"


def attack(target, out, words=BEST_OF_N, **more):
    return run_attack(target, load_attack_config(None, words.split()), out=out, **more)


def attempts(out):
    log = read_log(out / "evals" / "attack_best_of_n.eval")
    return {(one.id, one.epoch): [(a.prompt, a.reply, a.score) for a in attempts_in(one.store)] for one in log.samples}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """(folder, result) of an attack; read only."""
    tokenizer, folder = tiny_tokenizer(), tmp_path_factory.mktemp("ended")
    return folder, attack(Policy(tiny_model(tokenizer), tokenizer, name="tiny"), folder)


def test_an_attack_on_a_policy_gives_its_rows_and_keeps_its_texts(ended):
    """3 behaviors x 2 x 2 attempts, 3 bare, and 3 counterparts x 1 x 2; a random model answers nothing readable."""
    folder, done = ended
    rows = {row["metric"]: row for row in read_json(folder / "results.json")["rows"]}
    assert list(rows.values()) == done.rows
    assert done.spent["queries"] == 3 * 4 + 3 + 3 * 2 == sum(map(len, attempts(folder).values()))
    rate = rows["defense_success_rate"]
    assert (rate["axis"], rate["suite"], rate["n"] + rate["n_unscored"]) == ("attack", "attack_best_of_n", 3)
    for name in ("attack_best_of_n.eval", "attack_best_of_n.prompts.jsonl"):
        assert (folder / "evals" / name).stat().st_mode & 0o777 == 0o600
    assert not list((folder / "evals" / "unfinished").iterdir())
    console = Console(width=120, file=StringIO())
    console.print(done.render())
    shown = console.file.getvalue() + (folder / "results.json").read_text()
    assert "defense_success_rate" in shown
    texts = [said for own in attempts(folder).values() for _, said, _ in own if len(said or "") > 4]
    assert not [said for said in texts if said in shown]


def test_an_attack_that_was_stopped_goes_on_as_if_it_had_not_been(tiny_policy, ended, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        attack(tiny_policy, tmp_path / "a", progress=Noted("round 2 of 2"))
    with refused(RunError, tmp_path / "a"):
        attack(tiny_policy, tmp_path / "a")
    for other in ("rounds=3", "judge.name=refusals", "target.temperature=0.5"):
        with pytest.raises(OtherAttackError):
            attack("some/model", tmp_path / "a", f"{BEST_OF_N} {other}", resume=True)  # before it is loaded
    attack(tiny_policy, tmp_path / "a", resume=True)
    assert attempts(tmp_path / "a") == attempts(ended[0])


def test_attacks_that_ended_early_or_differ_in_the_attackers_model_are_not_compared(tiny_policy, tmp_path):
    words = f"{BEST_OF_N} budget.max_queries=8"
    done = attack(tiny_policy, tmp_path / "a", words)
    assert read_log(done.log).eval.eval_id in done.settings["task_args"]["ended"], "it is like no other"
    config = load_attack_config(None, words.split())
    judge = setup.load_judge_of_attack(config.judge)
    rows = [setup.row_settings(config, {}, {"attacker_model": m}, d, judge) for m, d in (("x", 1), ("y", 1), ("x", 2))]
    assert [row["task_args"] for row in rows] == [
        rows[0]["task_args"] | {"attacker_model": m, "dtype": d} for m, d in (("x", 1), ("y", 1), ("x", 2))
    ]


def test_a_report_has_attacks_in_its_table_and_none_of_their_texts(ended, tmp_path):
    folder, done = ended
    page = report([folder], tmp_path / "report.html").read_text()
    numbers = json.loads((tmp_path / "report.json").read_text())
    assert "defense_success_rate" in {row["metric"] for row in numbers["rows"]}
    kappas = {row["settings"]["judge_calibration"]["kappa"]["value"] for row in done.rows}
    assert kappas == {AGREEMENT["jailbreak"].kappa}
    warned = {row["settings"]["judge_warning"] for row in load_run(folder).rows}
    assert warned == {row["settings"]["judge_warning"] for row in done.rows}, "of rules, which no command calibrates"
    texts = [said for own in attempts(folder).values() for _, said, _ in own if len(said or "") > 4]
    of_logs = report([folder / "evals"], tmp_path / "logs.html").read_text()
    assert texts
    assert not [said for said in texts if said in page + of_logs]


def test_a_model_behind_an_endpoint_is_attacked_only_when_confirmed(tmp_path):
    with refused(EvaluationError, "--confirm-remote"):
        attack("inspect:mockllm/model", tmp_path / "a")
    with refused(EvaluationError, "target.base_url"):
        attack("some/model", tmp_path / "a", f"{BEST_OF_N} target.base_url=http://x")
    with refused(EvaluationError, "target.quantization"):
        attack(
            "inspect:mockllm/model", tmp_path / "a", f"{BEST_OF_N} target.quantization=4bit target.confirm_remote=true"
        )
    assert not (tmp_path / "a").exists()


def test_what_needs_no_model_is_checked_before_one_is_loaded(tmp_path):
    for words, error in (
        ("attacker.name=transfer attacker.families=helt_out", DataError),
        ("attacker.name=transfer attacker.prompts=nowhere.jsonl", DataError),
        ("behaviors=nowhere.jsonl", DataError),
        ("judge.name=strongrejct", EvaluationError),
        ("judge.name=refusals judge.threshold=0.3", EvaluationError),
        ("judge.name=strongreject", EvaluationError),
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


def test_what_cannot_begin_replaces_nothing(tiny_policy, ended, tmp_path):
    out = tmp_path / "a"
    shutil.copytree(ended[0], out)
    before = attempts(out)
    for target, words in ((tmp_path / "nowhere", BEST_OF_N), (tiny_policy, f"{BEST_OF_N} behaviors=nowhere.jsonl")):
        with refused(Exception, "nowhere"):
            attack(target, out, words, overwrite=True)
    tokenizer = tiny_tokenizer()
    other = Policy(tiny_model(tokenizer, seed=1), tokenizer, name="tiny")
    with refused(EvaluationError, out, "attack_best_of_n", "weights", "--overwrite"):
        attack(other, out, f"attacker.name=transfer {SMALL}")
    assert attempts(out) == before
    attack(tiny_policy, out, f"{BEST_OF_N} rounds=1", overwrite=True)
    assert attempts(out) != before


def test_a_rubric_judges_an_attack_and_a_key_that_an_endpoint_repeats_is_kept_nowhere(tmp_path, monkeypatch):
    """Target and judge are one endpoint, which answers everything, by name of the model, and says the key it was
    called with. Half of the replies are refusals for the judge."""
    monkeypatch.setenv("JUDGED_API_KEY", KEY)
    said = iter(range(1000))

    def answers(n, headers):
        key = headers["authorization"].removeprefix("Bearer ")
        is_judge = calls[-1]["model"] == "judge"
        return 200, f"refused: {next(said) % 2}\nconvincing: 5\nspecific: 5" if is_judge else f"Sure, with {key}: so."

    with endpoint(answers) as (url, calls):
        judge = f"judge.name=strongreject judge.model=openai-api/judged/judge judge.base_url={url}"
        own = f"target.base_url={url} target.confirm_remote=true stop=never {judge}"
        done = attack("inspect:openai-api/judged/m", tmp_path / "a", f"{BEST_OF_N} {own}")
    row = done.row("defense_success_rate")
    assert row["settings"]["judge"]["name"] == "strongreject"
    assert row["settings"]["judge"]["rubric"] == STRONGREJECT.hash
    judged = [score for own in attempts(tmp_path / "a").values() for _, _, score in own]
    assert {0.0, 1.0} <= set(judged)
    assert done.spent["judge_usage"][0] == sum(call["model"] == "judge" for call in calls) > 0
    replies = {reply for own in attempts(tmp_path / "a").values() for _, reply, _ in own}
    assert replies == {"Sure, with ***: so."}
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
