"""math-verify behind a process: equal or not, from threads, ended where it takes too long."""

import json
import threading

import pytest
from tests.unit.evals.capability.conftest import SHARED_DATA

from opct.errors import EvaluationError
from opct.evals.graders import math_verify as module
from opct.evals.graders.math_answer import read_formula
from opct.evals.graders.math_verify import MathVerifier
from opct.evals.graders.short_answer import Verdict

pytest.importorskip("math_verify")


@pytest.fixture(scope="module")
def verify():
    verifier = MathVerifier()
    yield verifier
    verifier.close()


@pytest.mark.parametrize(
    ("gold", "answer", "verdict"),
    [
        ("$18$", "$18$", "correct"),
        ("$18$", "$18.00$", "correct"),
        ("$18$", "$\\frac{36}{2}$", "correct"),
        ("$18$", "$81$", "other"),
        ("$\\frac{1}{2}$", "$0.5$", "correct"),
        ("$\\frac{1}{2}$", "$1/2$", "correct"),
        ("$\\frac{1}{2}$", "$\\frac{2}{1}$", "other"),
        ("$x^2+1$", "$1+x^2$", "correct"),
        ("$(x+1)^2$", "$x^2+2x+1$", "correct"),
        ("$x^2+1$", "$x^2-1$", "other"),
        ("$\\left( 3, \\frac{\\pi}{2} \\right)$", "$(3, \\pi/2)$", "correct"),
        ("$\\left( 3, \\frac{\\pi}{2} \\right)$", "$(\\pi/2, 3)$", "other"),
        ("$1,-2$", "$-2, 1$", "correct"),
        ("$1,-2$", "$1$", "other"),
        ("$\\text{Evelyn}$", "$\\text{Evelyn}$", "correct"),
        ("$\\text{Evelyn}$", "$\\text{Angela}$", "other"),
        ("$45$", "$45^\\circ$", "correct"),
        ("$3$", "so we get $x=3$", "correct"),
        ("$3$", "no numbers here", "unscored:unparsed"),
        ("$2$", "$" * 1000, "unscored:unparsed"),
        ("$2$", "$\\frac{$", "unscored:unparsed"),
    ],
)
def test_verdicts(verify, gold, answer, verdict):
    found = verify(gold, answer)
    assert found.verdict == verdict
    assert found.is_scored == (found.answer_key is not None)


def test_wrong_answers_are_told_apart(verify):
    assert verify("$2$", "$3$").answer_key == verify("$2$", "$3$").answer_key
    assert verify("$2$", "$3$").answer_key != verify("$2$", "$4$").answer_key


def test_from_many_threads(verify):
    """The library itself refuses: "signal only works in main thread"."""
    found = {}

    def one(i):
        found[i] = verify(f"${i}$", "$3$").verdict

    threads = [threading.Thread(target=one, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {i: "correct" if i == 3 else "other" for i in range(6)}


def test_an_endless_comparison_is_ended_and_the_next_one_is_answered():
    """A tower of powers is computed inside the interpreter, where no signal reaches it."""
    verifier = MathVerifier(timeout_s=1.5)
    assert verifier("$1$", "$1$").verdict == "correct"
    assert verifier("$2$", "$9^{9^{9^{9}}}-9^{9^{9^{8}}}$") == Verdict("unscored:grader_timeout")
    assert verifier("$1$", "$1$").verdict == "correct"
    verifier.close()


def test_a_process_that_hangs_or_dies(tmp_path, monkeypatch):
    """Scripted processes in the place of math-verify: one that never answers, one that ends."""
    worker = tmp_path / "math_worker.py"
    monkeypatch.setattr(module, "__file__", str(tmp_path / "math_verifier.py"))
    ready = "import sys, time\nprint('{\"ready\": true}', flush=True)\nsys.stdin.readline()\n"
    worker.write_text(ready + "time.sleep(60)\n")
    verifier = MathVerifier(timeout_s=0.3)
    assert verifier("$1$", "$1$") == Verdict("unscored:grader_timeout")
    worker.write_text(ready + "sys.exit(1)\n")
    assert verifier("$1$", "$1$") == Verdict("unscored:grader_error")
    worker.write_text(ready + "print('{\"gold_parsed\": true', end='', flush=True)\n")
    assert verifier("$1$", "$1$") == Verdict("unscored:grader_error")
    worker.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(EvaluationError, match=r"could not be started.*exit code 3"):
        verifier("$1$", "$1$")
    verifier.close()


def test_a_right_answer_that_cannot_be_read_is_a_fault_of_the_data(verify):
    with pytest.raises(EvaluationError, match="reads no mathematics in the right answer"):
        verify("nothing", "$1$")


def test_without_math_verify(monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EvaluationError, match=r"pip install 'opct\[capability\]'"):
        MathVerifier()("$1$", "$1$")


@pytest.mark.skipif(not (SHARED_DATA / "capability").is_dir(), reason="needs MATH-500 in OPCT_SHARED_DATA")
def test_the_solutions_of_math500_are_right(verify):
    """Every tenth solution as if it were a reply: its boxed answer is read and found right."""
    lines = (SHARED_DATA / "capability" / "math500_test.jsonl").read_text(encoding="utf-8").splitlines()[::10]
    wrong = []
    for row in map(json.loads, lines):
        answer = read_formula(row["solution"], is_cut=True)
        verdict = answer if isinstance(answer, Verdict) else verify(f"${row['correct_answer']}$", answer)
        if verdict.verdict != "correct":
            wrong.append((row["unique_id"], verdict))
    assert not wrong
