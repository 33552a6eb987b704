"""The offline judge on people's labels of jailbroken replies; skipped where that data is not."""

from dataclasses import replace

import pytest
from tests.conftest import SHARED_DATA

from opct.judges.calibration import calibrate, weakness
from opct.judges.classifier import TrainingSettings, train
from opct.judges.labels import read_labels
from opct.judges.offline import OfflineJudge

FOLDER = SHARED_DATA / "judge_labels"


def test_a_third_of_the_labels_is_enough_to_agree_with_people_on_new_questions():
    """Every third reply of the training file; the 20 questions of the other file are none of its 80. This
    gave a kappa of .812 and an agreement of .908 without the replies that are in both; the whole file gives
    .830 and .917 (docs/judges.md)."""
    if not FOLDER.is_dir():
        pytest.skip(f"no labelled replies in {FOLDER}: name the folder above with OPCT_SHARED_DATA")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'opct[judge]'")
    labelled = read_labels(FOLDER / "gptfuzz_responses_train.csv")
    assert (len(labelled.replies), labelled.row()["n_positive"], labelled.row()["n_clusters"]) == (6160, 1694, 80)
    part = replace(labelled, replies=labelled.replies[::3])
    made = train(part, settings=TrainingSettings(folds=3, most_features=10_000))
    held_out = read_labels(FOLDER / "gptfuzz_responses_eval.csv")
    assert not {reply.cluster for reply in held_out.replies} & {reply.cluster for reply in part.replies}
    found = calibrate(OfflineJudge(made), held_out)
    assert found["n"] + sum(found["unscored_reasons"].values()) == 1540
    assert found["n"] >= 1241
    assert found["kappa"]["value"] > 0.8
    assert found["agreement"]["value"] > 0.9
    assert weakness(found) is None
