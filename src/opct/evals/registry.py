"""What Inspect finds through the entry point `inspect_ai`: the model `opct/<path>`, the tasks `opct/<suite>` and the
scorer `opct/judge`.

The arguments of a task (`-T n_questions=20`) are the settings of `EvalConfig` that a single task uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from inspect_ai import Task, task

from opct.config.loader import load_settings
from opct.errors import EvaluationError
from opct.evals.config import OF_MODEL, EvalConfig
from opct.evals.judges.scorer import judge
from opct.evals.provider import opct
from opct.evals.run import SUITES, make_tasks
from opct.evals.tasks.capability import LM_EVAL

__all__ = ["SUITE_TASKS", "judge", "lm_eval", "opct"]
EVAL_ALONE = {"suites", "judge", "kl_samples", "browser_questions", "batch_size", *OF_MODEL}


def _suite_task(name: str) -> Callable[..., Task]:
    @task(name=name)
    def make(**settings: Any) -> Task:
        return _task(name, settings)

    return make


def _task(suite: str, settings: dict[str, Any]) -> Task:
    if useless := sorted(EVAL_ALONE & {name.partition(".")[0] for name in settings}):
        raise EvaluationError(f"A task of Inspect takes no {', '.join(useless)}: give these to `opct eval`.")
    [made] = make_tasks(load_settings(EvalConfig, base={"suites": [suite]} | settings))
    return made


SUITE_TASKS = {name: _suite_task(name) for name in SUITES}


@task
def lm_eval(name: str, **settings: Any) -> Task:
    """Any task of lm-eval by its name."""
    return _task(LM_EVAL + name, settings)
