"""Labeled files: which column is what, which label means yes, and every fault at once."""

import json
from pathlib import Path

import pytest

from opct.errors import DataError
from opct.evals.judges.labels import read_labels
from tests.labeled import rows, write
from tests.refusals import refused
from tests.rows import jsonl


def test_columns_and_labels_are_read(tmp_path: Path):
    found = read_labels(write(tmp_path / "labels.csv", rows(24)))
    assert found.columns == {"reply": "Response", "label": "label", "question": "question", "cluster": "question"}
    assert found.values == {"1": (12, True), "0": (12, False)}
    first = found.replies[0]
    assert (first.label, first.cluster, first.request.id, first.request.question) == (True, "q0", "row-1", "q0")
    assert found.row()["n_positive"] == 12
    assert found.row()["n_clusters"] == 12
    assert "sorry" not in json.dumps(found.row())


def test_named_columns_and_named_labels(tmp_path: Path):
    made = [
        {"text": "a\nb", "human": "full", "danger": "It burns.", "group": 7, "key": "k1"},
        {"text": "c", "human": "partial", "danger": "It burns.", "group": 7, "key": "k2"},
        {"text": "d", "human": "none", "danger": "It burns.", "group": 8, "key": "k3"},
    ]
    columns = {"reply": "text", "label": "human", "fact": "danger", "cluster": "group", "id": "key"}
    found = read_labels(jsonl(tmp_path / "labels.jsonl", *made), columns, positive=["full", "partial"])
    assert [reply.label for reply in found.replies] == [True, True, False]
    assert [reply.cluster for reply in found.replies] == ["7", "7", "8"]
    assert [reply.request.id for reply in found.replies] == ["k1", "k2", "k3"]
    assert found.replies[0].request.reply == "a\nb"
    assert found.replies[0].request.fact == "It burns."


@pytest.mark.parametrize(
    ("header", "columns", "clusters"),
    [
        ("cluster,asked", {"question": "asked"}, ["7", "7", "8"]),
        ("group_of,prompt", {}, ["q", "q", "p"]),
        ("group_of,asked", {}, ["row-1", "row-2", "row-3"]),
    ],
)
def test_the_cluster_is_the_question_where_there_is_none(tmp_path: Path, header, columns, clusters):
    path = tmp_path / "labels.csv"
    path.write_text(f"{header},reply,label\n7,q,a,1\n7,q,b,0\n8,p,c,0\n")
    found = read_labels(path, columns)
    assert [reply.cluster for reply in found.replies] == clusters
    assert ("cluster" in found.columns) is (clusters[0] != "row-1")


def test_cells_that_mean_nothing_are_faults_all_at_once(tmp_path: Path):
    """Clusters of only some rows, and labels."""
    path = tmp_path / "labels.csv"
    for text, faults in {
        "cluster,question,reply,label\n7,q,a,1\n,q,b,0\n8,p,c,0\n,p,d,0\n": {3: "cluster"},
        "reply,label\na,1\nb,maybe\nc,\nd,0\n": {3: "'maybe'", 4: "label"},
    }.items():
        path.write_text(text)
        with pytest.raises(DataError) as caught:
            read_labels(path)
        for fault, (line, part) in zip(caught.value.faults, faults.items(), strict=True):
            assert fault.startswith(f"{path}:{line}: ")
            assert part in fault


@pytest.mark.parametrize(
    ("cells", "positive", "negative", "read"),
    [
        (("1.0", "0.0"), ["1"], [], [True, False]),
        (("harmful", "safe"), ["HARMFUL"], ["Safe"], [True, False]),
        (("v1.0", "v1"), ["v1.0"], [], [True, False]),  # no number: another label
        (("0", "1"), ["0"], ["1"], [True, False]),  # named the other way round than by default
    ],
)
def test_named_labels_are_read_however_they_are_written(tmp_path: Path, cells, positive, negative, read):
    path = tmp_path / "labels.csv"
    path.write_text("reply,label\n" + "".join(f"r{i},{cell}\n" for i, cell in enumerate(cells)))
    found = read_labels(path, positive=positive, negative=negative)
    assert [reply.label for reply in found.replies] == read
    assert found.values == {cell: (1, yes) for cell, yes in zip(cells, read, strict=True)}


def test_a_named_label_that_no_row_has_is_a_fault(tmp_path: Path):
    """It would make every reply a no."""
    path = tmp_path / "labels.csv"
    path.write_text("reply,label\na,unsafe\nb,safe\nc,safe\n")
    with refused(DataError, path, "'harmful'", "'safe' (2), 'unsafe' (1)"):
        read_labels(path, positive=["harmful"])
    with refused(DataError, "harmless", "--negative"):
        read_labels(path, positive=["unsafe"], negative=["safe", "harmless"])
