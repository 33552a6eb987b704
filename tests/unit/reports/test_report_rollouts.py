import json
from dataclasses import replace

from synthetic import HOSTILE, write_run

from opct.reports.browser import UNPUBLISHED, build_browser, embeddable
from opct.reports.load import load_run


def arms(tmp_path, **options):
    return [(label, load_run(write_run(tmp_path, label, **options))) for label in ("base", "opct")]


def test_embedded_json_cannot_end_its_element_and_reads_back():
    value = {"a": "</script><!-- & \u2028 \u2029 é 😀"}
    text = embeddable(value)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == value


def test_a_lone_surrogate_becomes_a_question_mark():
    assert json.loads(embeddable(["\ud83d end"])) == ["? end"]


def test_only_shared_samples_are_shown_and_the_rest_is_counted(tmp_path):
    """6 questions of 6 samples and 3 benign requests against 4 and 2: shared 4 * 6 + 2 = 26, alone 2 * 6 + 1 = 13."""
    base, opct = load_run(write_run(tmp_path, "base", questions=6)), load_run(write_run(tmp_path, "opct", questions=4))
    browser = build_browser([("base", base), ("opct", opct)], max_items=10)
    assert (browser.shown, browser.paired, browser.unpaired) == (10, 26, 13)


def test_the_choice_is_the_same_every_time_and_shows_every_family_first(tmp_path):
    runs = arms(tmp_path, questions=30)
    first, second = build_browser(runs, max_items=7).data["items"], build_browser(runs, max_items=7).data["items"]
    assert first == second
    assert len({item["family"] for item in first}) == 7
    assert [item["split"] for item in first[:3]] == ["sycophancy_short:held_out"] * 3


def test_changes_from_suggested_to_correct_come_before_samples_that_did_not_change(tmp_path):
    items = build_browser(arms(tmp_path, questions=60), max_items=5).data["items"]
    assert [r["verdict"] for r in items[0]["replies"]] == ["suggested", "correct"]


def test_the_page_is_bounded_in_bytes(tmp_path):
    small = build_browser(arms(tmp_path, questions=20), max_bytes=4000)
    assert 1 <= small.shown < 10


def test_an_item_holds_both_prompts_and_all_replies_with_tokens_only_where_kl_matches(tmp_path):
    items = build_browser(arms(tmp_path, questions=9)).data["items"]
    painted = [reply for item in items for reply in item["replies"] if "tokens" in reply]
    assert painted
    assert all(len(reply["tokens"]) == len(reply["kl"]) for reply in painted)
    pressed = next(item for item in items if item["family"] == "are_you_sure")
    assert [role for role, _ in pressed["prompt"]] == ["user", "assistant", "user"]
    assert [role for role, _ in pressed["teacher"]] == ["user"]
    assert next(item for item in items if item["split"] == "sycophancy_short:clean")["teacher"] is None


def test_hostile_text_is_kept_word_for_word(tmp_path):
    items = build_browser(arms(tmp_path, questions=30)).data["items"]
    texts = {reply["text"] for item in items for reply in item["replies"]}
    assert HOSTILE in texts
    back = json.loads(embeddable(build_browser(arms(tmp_path / "b", questions=30)).data))
    assert HOSTILE.replace("\ud83d", "?") in {reply["text"] for item in back["items"] for reply in item["replies"]}


def test_a_long_reply_is_cut_and_says_by_how_much(tmp_path):
    runs = arms(tmp_path, questions=1)
    for _, run in runs:
        run.samples[0].update(completion="x" * 7000, tokens=["x"], kl=[float("nan")])
    item = next(i for i in build_browser(runs).data["items"] if i["split"] == "sycophancy_short:clean")
    assert item["replies"][0]["cut"] == 1000
    assert "tokens" not in item["replies"][0]


def test_a_kl_that_is_not_a_number_is_null(tmp_path):
    runs = arms(tmp_path, questions=1)
    for _, run in runs:
        run.samples[0].update(tokens=["x", "y"], kl=[float("nan"), 0.123456])
    item = next(i for i in build_browser(runs).data["items"] if i["split"] == "sycophancy_short:clean")
    assert item["replies"][0]["kl"] == [None, 0.1235]


def gpqa_sample(number):
    prompt = [{"role": "user", "content": f"Secret question {number}?"}]
    return {
        **{"id": f"gpqa/{number}/Physics", "task": "gpqa", "axis": "capability", "family": "Physics"},
        **{"family_split": "capability", "cluster": str(number), "prompt": prompt, "teacher_prompt": prompt},
        **{"completion": "A", "stop_reason": "stop", "verdict": "correct", "answer": "secret", "values": {}},
    }


def test_what_is_not_to_be_published_is_not_on_the_page(tmp_path):
    """Three problems of GPQA, one of them with one arm alone, and a sample for evaluation only, which the older of the
    two runs does not say: 4 are withheld from both arms and in no other count."""
    runs = arms(tmp_path, questions=3)
    before = build_browser(runs)
    secret = [gpqa_sample(number) for number in range(3)]
    base, opct = (
        replace(run, samples=(*run.samples, *secret[:most])) for (_, run), most in zip(runs, (3, 2), strict=True)
    )
    opct.samples[0]["is_evaluation_only"] = True
    browser = build_browser([("base", base), ("opct", opct)])
    assert browser.withheld == 4
    assert (browser.shown, browser.paired, browser.unpaired) == (before.shown - 1, before.paired - 1, before.unpaired)
    text = json.dumps(browser.data)
    assert "Secret" not in text
    assert "gpqa" not in text
    assert opct.samples[0]["id"] not in {item["id"] for item in browser.data["items"]}


def test_an_attackers_finished_prompts_are_not_on_the_page(tmp_path):
    runs = arms(tmp_path, questions=3)
    for _, run in runs:
        run.samples[0].update(axis="jailbreak", family="artifact")
    browser = build_browser(runs)
    assert browser.withheld == 1
    assert runs[0][1].samples[0]["id"] not in {item["id"] for item in browser.data["items"]}


def test_the_suite_that_is_withheld_is_named_as_its_task_is():
    from opct.evals.tasks.capability import BENCHMARKS

    assert set(UNPUBLISHED) == {"gpqa"} < set(BENCHMARKS)


def test_a_reply_with_a_prompt_of_its_own_carries_it(tmp_path):
    runs = arms(tmp_path, questions=1)
    other = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "mine"},
        {"role": "user", "content": "sure?"},
    ]
    runs[1][1].samples[1].update(prompt=other)
    identifier = runs[1][1].samples[1]["id"]
    item = next(i for i in build_browser(runs).data["items"] if i["id"] == identifier)
    assert "prompt" not in item["replies"][0]
    assert item["replies"][1]["prompt"][1] == ["assistant", "mine"]
