"""The suites that `opct eval` knows, in the order of their results: what each asks, and which metrics it gives.

A suite is an Inspect task over items, and a function from its graded samples to rows. What is asked of several suites
at once is one `Asked`; a suite takes from it what it has a use for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from opct.data.benign import CATEGORIES, BenignRequest, builtin_benign
from opct.data.hazards import BUILTIN
from opct.data.perturb import jailbreak as wrappers
from opct.data.perturb import safety_awareness as hidden
from opct.data.perturb.families import FAMILY_GROUPS
from opct.data.perturb.in_the_wild import load_templates
from opct.data.perturb.sycophancy import FAMILIES
from opct.data.questions import SPLITS, Question
from opct.errors import EvaluationError, unknown
from opct.evals.capability.options import GRADED_BY
from opct.evals.capability.suites import BENCHMARKS, CAPABILITY_SUITES, WITH_OPTIONS, Part
from opct.evals.metrics import Row
from opct.evals.samples import BENIGN, BENIGN_PREFIX, JUDGED, PARSED, GradedSample
from opct.evals.tasks.benign import benign_task
from opct.evals.tasks.jailbreak import (
    FAMILIES_EACH,
    JAILBREAK,
    finished_attacks,
    jailbreak_task,
    known_behaviors,
    split_behaviors,
)
from opct.evals.tasks.safety_awareness import SAFETY_AWARENESS, safety_task, split_facts
from opct.evals.tasks.sycophancy import CHOICE, SHORT, sycophancy_task

if TYPE_CHECKING:
    from inspect_ai import Task

JAILBREAK_TWINS = "jailbreak_twins"
SAFE_PROMPTS = "safety_awareness_safe"
DEFAULT: Literal["default"] = "default"
"""As many families for each as its suite has by default: `FAMILIES_EACH` for a behaviour, else `TWO`."""
TWO = 2
PerQuestion = int | Literal["default"] | None


@dataclass(frozen=True)
class Asked:
    """What an evaluation asks; see `opct.evals.run.evaluate` for each."""

    questions: Sequence[Question]
    split: str
    families: Mapping[str, str | Sequence[str]]
    n_questions: int | None
    n_problems: int | None
    families_per_question: PerQuestion
    prompts_per_fact: int | None
    twins_per_fact: int | None
    seed: int
    greedy: bool
    max_completion_tokens: int
    max_reply_tokens: int
    max_benign_tokens: int
    n_benign: int | None
    data: Mapping[str, str]
    parts: Mapping[str, Part]
    behavior_columns: Mapping[str, str] | None
    leave_out: Sequence[str]
    augmented: bool
    graded_by: str | None = None

    def families_each(self, default: int = TWO) -> int | None:
        """Families for each question, behaviour or message; None for all."""
        return default if self.families_per_question == DEFAULT else self.families_per_question


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes:
        graded: the names under which its samples and rows stand; two where a reply is graded in two ways.
        make: its Inspect task.
        measures_kl: whether the replies' KL to the base is of interest.
        warn: what a reader of its metrics must know, from the samples under the first of these names.
    """

    name: str
    graded: tuple[str, ...]
    make: Callable[[Asked], Task]
    measures_kl: bool = True
    warn: Callable[[Sequence[GradedSample]], list[str]] | None = None


def _sycophancy(name: str) -> Callable[[Asked], Task]:
    def make(asked: Asked) -> Task:
        return sycophancy_task(
            name,
            asked.questions,
            families=asked.families[name],
            n_questions=asked.n_questions,
            families_per_question=asked.families_each(),
            seed=asked.seed,
            greedy=asked.greedy,
            max_completion_tokens=asked.max_completion_tokens,
        )

    return make


def _jailbreak(asked: Asked) -> Task:
    data = asked.data
    known = known_behaviors(
        data.get(JAILBREAK), asked.behavior_columns, twins=data.get(JAILBREAK_TWINS), leave_out=asked.leave_out
    )
    artifacts = data.get(wrappers.ARTIFACT)
    return jailbreak_task(
        split_behaviors(asked.split, known),
        asked.n_questions,
        asked.families[JAILBREAK],
        asked.families_each(FAMILIES_EACH),
        asked.seed,
        asked.max_reply_tokens,
        asked.greedy,
        templates=load_templates(data[wrappers.IN_THE_WILD]) if wrappers.IN_THE_WILD in data else (),
        attacks=() if artifacts is None else finished_attacks(artifacts, known, asked.split, asked.seed),
    )


def _safety(asked: Asked) -> Task:
    split = None if asked.split == "test" else asked.split  # the default: all of a set that is for evaluation only
    return safety_task(
        split_facts(
            split,
            asked.data.get(SAFETY_AWARENESS, BUILTIN),
            safe_source=asked.data.get(SAFE_PROMPTS),
            augmented=asked.augmented,
        ),
        n_facts=asked.n_questions,
        prompts_per_fact=asked.prompts_per_fact,
        twins_per_fact=asked.twins_per_fact,
        families=asked.families[SAFETY_AWARENESS],
        families_per_prompt=asked.families_each(),
        seed=asked.seed,
        max_completion_tokens=asked.max_reply_tokens,
        greedy=asked.greedy,
    )


def _benchmark(name: str) -> Callable[[Asked], Task]:
    def make(asked: Asked) -> Task:
        part = asked.parts.get(name)
        settings = dict(part.settings) if part else {}
        if asked.graded_by is not None and name in WITH_OPTIONS:
            settings["graded_by"] = asked.graded_by
        return BENCHMARKS[name](
            n=_n_problems(part, asked), data=asked.data.get(name), seed=asked.seed, greedy=asked.greedy, **settings
        )

    return make


def _n_problems(part: Part | None, asked: Asked) -> int | None:
    """At most so many of a benchmark: the fewer of what its plan and the user say; without a plan the user alone."""
    if part is None:
        return asked.n_questions if asked.n_problems is None else asked.n_problems
    return min((n for n in (part.n, asked.n_problems) if n is not None), default=None)


def _benign(asked: Asked) -> Task:
    requests = _benign_requests(asked.split, asked.n_benign)
    return benign_task(requests, asked.seed, asked.max_benign_tokens, asked.greedy)


def _benign_requests(split: str, limit: int | None) -> list[BenignRequest]:
    split = "test" if split == "all" else split
    if split not in SPLITS:
        raise EvaluationError(unknown("split", split, SPLITS))
    requests = builtin_benign(split)  # type: ignore[arg-type]
    place: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    order: list[tuple[int, int, BenignRequest]] = []
    for request in requests:
        order.append((place[request.category], len(order), request))
        place[request.category] += 1
    return [request for _, _, request in sorted(order, key=lambda entry: entry[:2])][:limit]


def missing_twins(samples: Sequence[GradedSample]) -> list[str]:
    """A warning where behaviours have no benign counterpart: what a model refuses besides them is not measured."""
    sides: tuple[set[str], set[str]] = (set(), set())
    for sample in samples:
        sides[sample.family_split.startswith(BENIGN_PREFIX)].add(sample.cluster)
    asked, lacking = len(sides[0]), len(sides[0] - sides[1])
    if not lacking:
        return []
    return [
        f"jailbreak: {lacking} of the {asked} behaviours have no benign twin, so no over_refusal_rate says "
        "whether the model refuses harmless requests like them as well: a low attack_success_rate may be that alone. "
        "Give twins (--data jailbreak_twins=FILE, or a column benign)."
    ]


_ALL = (
    Suite(SHORT, (SHORT,), _sycophancy(SHORT)),
    Suite(CHOICE, (CHOICE, CHOICE + PARSED), _sycophancy(CHOICE)),
    Suite(JAILBREAK, (JAILBREAK, JAILBREAK + JUDGED), _jailbreak, warn=missing_twins),
    Suite(SAFETY_AWARENESS, (SAFETY_AWARENESS, SAFETY_AWARENESS + JUDGED), _safety),
    Suite(BENIGN, (BENIGN,), _benign),
    *(Suite(name, (name,), _benchmark(name), measures_kl=False) for name in BENCHMARKS),
)
SUITES = {suite.name: suite for suite in _ALL}
_OF_GRADED = {name: suite for suite in _ALL for name in suite.graded}


FAMILIES_OF: dict[str, Iterable[str]] = {
    SHORT: FAMILIES,
    CHOICE: FAMILIES,
    JAILBREAK: wrappers.FAMILIES,
    SAFETY_AWARENESS: hidden.FAMILIES,
}


def known_suites(names: Sequence[str]) -> list[str]:
    """The suites of these names, each once; `capability` and `capability-fast` stand for their benchmarks.

    Raises:
        EvaluationError: one is unknown, or none is named.
    """
    for name in names:
        if name not in SUITES and name not in CAPABILITY_SUITES:
            raise EvaluationError(unknown("suite", name, [*SUITES, *CAPABILITY_SUITES]))
    if not names:
        raise EvaluationError(f"No suites to evaluate: name at least one of {', '.join(SUITES)}.")
    return list(dict.fromkeys(single for name in names for single in ([name] if name in SUITES else parts_of([name]))))


def parts_of(names: Sequence[str]) -> dict[str, Part]:
    """How much of each benchmark is asked by `capability` or `capability-fast`, by benchmark; of both, the first."""
    found: dict[str, Part] = {}
    for name in names:
        for part in CAPABILITY_SUITES.get(name, ()):
            found.setdefault(part.benchmark, part)
    return found


def check_graded_by(names: Sequence[str], graded_by: str | None) -> None:
    """Refuse a way of grading that does not exist, or that no benchmark among these suites has.

    Raises:
        EvaluationError: either.
    """
    if graded_by is None:
        return
    if graded_by not in GRADED_BY:
        raise EvaluationError(unknown("way of grading", graded_by, GRADED_BY))
    if not set(names) & set(WITH_OPTIONS):
        raise EvaluationError(
            f"graded_by {graded_by} is of benchmarks with options ({', '.join(WITH_OPTIONS)}), and none of these is "
            "asked: leave it out, or name one."
        )


def families_by_suite(names: Sequence[str], families: str | Sequence[str]) -> dict[str, str | list[str]]:
    """What each suite that has families is to ask: a group (all, train, held_out), or those of the names it has.

    Raises:
        EvaluationError: a name is no family of these suites, or a suite is left with none.
    """
    own = {name: FAMILIES_OF[name] for name in names if name in FAMILIES_OF}
    if isinstance(families, str) and families in FAMILY_GROUPS:
        return dict.fromkeys(own, families)
    listed = [name.strip() for name in families.split(",")] if isinstance(families, str) else list(families)
    everything = [family for known in own.values() for family in known]
    for family in listed:
        if family not in everything:
            raise EvaluationError(unknown("family or group of families", family, [*FAMILY_GROUPS, *everything]))
    chosen: dict[str, str | list[str]] = {
        name: [family for family in dict.fromkeys(listed) if family in known] for name, known in own.items()
    }
    for name, kept in chosen.items():
        if not kept:
            raise EvaluationError(f"None of the families {', '.join(listed)} is of the suite {name}: leave it out.")
    return chosen


def known_files(data: Mapping[str, object]) -> None:
    """Raises EvaluationError where a file is for nothing that is asked with files, or goes with one that is lacking."""
    of_axes = [JAILBREAK, JAILBREAK_TWINS, wrappers.IN_THE_WILD, wrappers.ARTIFACT, SAFETY_AWARENESS, SAFE_PROMPTS]
    for name in data:
        if name not in (*of_axes, *BENCHMARKS):
            raise EvaluationError(unknown("use of a file", name, [*of_axes, *BENCHMARKS]))
    for name, other in ((JAILBREAK_TWINS, JAILBREAK), (SAFE_PROMPTS, SAFETY_AWARENESS)):
        if name in data and other not in data:
            raise EvaluationError(f"{name}={data[name]} goes with another file: name that too, as {other}=FILE.")


def suite_warnings(samples: Sequence[GradedSample]) -> list[str]:
    """What a reader of the suites' metrics must know besides what is true of any; see `Suite`."""
    found = []
    for suite in _ALL:
        own = [sample for sample in samples if sample.task == suite.graded[0]]
        found += suite.warn(own) if suite.warn is not None and own else []
    return found


def measures_kl(graded: str) -> bool:
    """Whether the KL of the samples under that name is of interest; once for a reply that is graded in two ways."""
    suite = _OF_GRADED.get(graded)
    return suite is not None and suite.measures_kl and graded == suite.graded[0]


def sorted_by_suite(rows: Iterable[Row], key: str) -> list[Row]:
    """Rows (`key` "suite") or samples ("task") in the order of the suites, whichever was evaluated first."""
    return sorted(rows, key=lambda row: _place(row[key]))


def in_order(graded: Iterable[str]) -> list[str]:
    """Names under which samples stand, in the order in which results have them."""
    return sorted(graded, key=_place)


def _place(graded: str) -> tuple[int, str]:
    order = list(_OF_GRADED)
    return (order.index(graded) if graded in order else len(order), graded)
