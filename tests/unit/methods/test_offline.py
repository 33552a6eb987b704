"""The answers before training: given once, kept in the run, the same whatever was given before."""

from pathlib import Path
from typing import Any

import pytest

from opct.errors import RunError
from opct.methods import offline
from opct.methods.offline import answers_to, offline_answers, offline_cost
from opct.methods.registry import METHODS
from opct.methods.sft import SFT
from opct.runs.io import read_jsonl, write_jsonl
from opct.runs.run_dir import RunDir
from tests.refusals import refused
from tests.tiny import move, open_pairs, tiny_anchors, tiny_pairs, tiny_setting


@pytest.fixture
def setting(make_config, tmp_path: Path):
    """(policy, teacher, rendered pairs, config, run) of an SFT run that has not begun."""
    config = make_config(method="sft")
    return *tiny_setting(config, tiny_pairs(3)), config, RunDir(tmp_path / "run")


def test_every_baseline_gives_its_answers_once_and_reads_them_again(make_config, tmp_path: Path):
    """Two a pair, for `dpo` a rejected one as well but on identity pairs, for `act` none; and an open turn.

    The answers of `sft` are those that `offpolicy` trains on and `dpo` prefers.
    """
    rows = {}
    for method, n in (("sft", 8), ("offpolicy", 8), ("dpo", 14), ("act", 0)):
        config, run, kind = make_config(method=method), RunDir(tmp_path / method), METHODS[method]
        policy, teacher, rendered = tiny_setting(config, [*tiny_pairs(2), *tiny_anchors(1), *open_pairs(1)])
        counted: list[int] = []
        first = offline_answers(kind, policy, teacher, rendered, config, run, counted.append).of(rendered)
        assert sum(answers_to(r, kind, config) for r in rendered) == sum(counted) - 1 == n
        assert first[-1].pair.prompt[1]["content"]
        tokens = sum(len(r.ids) for r in first if method != "act")
        assert offline_cost(run)["rollout/offline_tokens"] > tokens  # the turn was sampled, too
        policy.sample = lambda *_, **__: pytest.fail("sampled again")
        assert offline_answers(kind, policy, teacher, rendered, config, run).of(rendered) == first
        rows[method] = read_jsonl(run.offline_path)
    assert all(row.pop("rejected")["logprobs"] for row in rows["dpo"])
    assert rows["dpo"] == rows["sft"] == rows["offpolicy"]


def test_rows_that_are_no_answers_are_refused_by_line(setting, make_config):
    policy, teacher, rendered, config, run = setting
    offline_answers(SFT, policy, teacher, rendered, config, run)
    first, *rest = read_jsonl(run.offline_path)
    for change, named in (
        ({"pair_id": None}, "pair_id"),
        ({"token_ids": []}, "token_ids"),
        ({"logprobs": first["logprobs"][1:]}, "one value a token"),
        ({"rejected": {}}, "rejected"),
        ({"token_ids": [10**6] * len(first["token_ids"])}, "1000000"),
    ):
        write_jsonl(run.offline_path, [*rest, first | change])
        with refused(RunError, run.offline_path.name, named):
            offline_answers(SFT, policy, teacher, rendered, config, run)


def without_logprobs(rows: list[dict]) -> list[dict[str, Any]]:
    """Log-probs depend on the batch to the rounding of the dtype; nothing else of an answer does."""
    return [{key: value for key, value in row.items() if key != "logprobs"} for row in rows]


def test_a_kill_loses_one_part_and_what_lacks_is_given_as_at_the_start(setting, tmp_path: Path, monkeypatch):
    """Killed in the third part of three; the policy moves; then that part alone is sampled, as if from the start."""
    monkeypatch.setattr(offline, "PART", 1)
    policy, teacher, rendered, config, run = setting
    whole = RunDir(tmp_path / "whole")
    offline_answers(SFT, policy, teacher, rendered, config, whole)
    parts, answer = [], SFT.answer

    def kill_in_third_part(model, pairs, *rest):
        parts.append([r.pair.id for r in pairs])
        if len(parts) == 3:
            raise KeyboardInterrupt
        return answer(model, pairs, *rest)

    monkeypatch.setattr(SFT, "answer", kill_in_third_part)
    with pytest.raises(KeyboardInterrupt):
        offline_answers(SFT, policy, teacher, rendered, config, run)
    before = run.offline_path.read_bytes()
    move(policy, 0.3)
    counted: list[int] = []
    offline_answers(SFT, policy, teacher, rendered, config, run, counted.append)
    assert counted == [4, 2]  # kept, then sampled
    assert parts == [["sum/0"], ["sum/1"], ["sum/2"], ["sum/2"]]
    assert run.offline_path.read_bytes().startswith(before)
    assert without_logprobs(read_jsonl(run.offline_path)) == without_logprobs(read_jsonl(whole.offline_path))


def test_a_teacher_that_has_moved_gives_no_further_answers(make_config, tmp_path: Path):
    """It may answer at the start, and a resumed run reads these answers; answers to more pairs would be another's."""
    config, run = make_config(method="sft", teacher={"kind": "ema"}), RunDir(tmp_path / "run")
    policy, teacher, rendered = tiny_setting(config, tiny_pairs(3))
    first = offline_answers(SFT, policy, teacher, rendered[:2], config, run)
    before = run.offline_path.read_bytes()
    with refused(RunError, "ema", "1 pair"):
        offline_answers(SFT, policy, teacher, rendered, config, run)
    assert run.offline_path.read_bytes() == before
    assert offline_answers(SFT, policy, teacher, rendered[:2], config, run).of(rendered[:2]) == first.of(rendered[:2])
