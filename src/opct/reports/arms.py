"""Groups runs into arms, and chooses which arms are compared.

Every arm is compared with the first (base), and every trained arm with its references: an SFT arm, and for OPCT an
off-policy one. `references` names them. Without it, they are found by name: a label is split at its first dash into a
name and values, and the reference is the SFT or off-policy arm whose values end the arm's own label (`bct-x-0.25` for
`opct-x-0.25`); the longest if several match. Arms that continue from another adapter have no off-policy reference,
because they differ in more than the method.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opct.evals.config import OF_POLICY
from opct.reports.charts import STYLES
from opct.reports.load import EvaluatedRun
from opct.reports.wording import arm_name

BASE, SFT, OFFPOLICY, OPCT = "base", "sft", "offpolicy", "opct"
ADAPTER = "model.adapter"
"""Setting that names the adapter a run continues from."""
References = Mapping[str, str | Sequence[str]]
"""The reference label or labels of each arm, by label."""
STYLE_OF_LABEL = {BASE: 0, SFT: 1, OPCT: 2}


@dataclass(frozen=True)
class Arm:
    """The runs of one label (its seeds), with a name, marker and color."""

    label: str
    name: str
    style: int
    runs: tuple[EvaluatedRun, ...]

    def uses(self, method: str) -> bool:
        """True if every run has that method, or the label names it."""
        return self.label == method or all(run.method == method for run in self.runs)

    @property
    def has_seeds(self) -> bool:
        """False if its runs are one model that was asked several times."""
        weights = {run.weights for run in self.runs if run.weights}
        return len(weights) > 1 or any(run.seed is not None for run in self.runs)

    def asked(self, suite: str) -> EvaluatedRun:
        """The first run that has the suite; of a base its suites may lie in several folders."""
        return next((run for run in self.runs if suite in run.suites), self.runs[0])

    @property
    def continues(self) -> bool:
        """True if a run continued the adapter of another run."""
        return any(run.config_values.get(ADAPTER) for run in self.runs)


OF_REPLIES = ("system_prompt", *sorted(OF_POLICY))
"""Settings of an evaluation that make a model answer as another one."""


@dataclass(frozen=True)
class Pair:
    """A comparison by label: the difference is `of` minus `against`; `is_requested`: it is in `also`."""

    of: str
    against: str
    is_requested: bool = False

    @property
    def title(self) -> str:
        """ "OPCT − SFT"."""
        return f"{arm_name(self.of)} \u2212 {arm_name(self.against)}"


def make_arms(runs: Sequence[EvaluatedRun]) -> tuple[Arm, ...]:
    """Group runs by label, base first, then in the given order; styles repeat when they run out.

    Untrained models that nobody labeled are arms of their own, also one model with other settings, such as a system
    prompt: they are no seeds of one another.
    """
    bases = {_what_answers(run) for run in runs if run.label == BASE}
    plain = {json.dumps([run.model, *[None] * len(OF_REPLIES)]) for run in runs if run.label == BASE}
    if len(bases) > 1:  # of one model the one without such settings is the base
        kept = plain if len(plain) == 1 else set()
        runs = [
            replace(run, label=run.name) if run.label == BASE and _what_answers(run) not in kept else run
            for run in runs
        ]
    # stable: False sorts first, so base leads and the others keep their order
    labels = sorted(dict.fromkeys(run.label for run in runs), key=lambda label: label != BASE)
    taken = {STYLE_OF_LABEL[label] for label in labels if label in STYLE_OF_LABEL}
    free = [style for style in range(STYLES) if style not in taken]
    arms: list[Arm] = []
    for label in labels:
        style = STYLE_OF_LABEL[label] if label in STYLE_OF_LABEL else (free.pop(0) if free else len(arms) % STYLES)
        arms.append(Arm(label, arm_name(label), style, tuple(run for run in runs if run.label == label)))
    return tuple(arms)


def _what_answers(run: EvaluatedRun) -> str:
    return json.dumps(
        [run.model, *(run.settings.get(name) or None for name in OF_REPLIES)], sort_keys=True, default=str
    )


def make_pairs(
    arms: Sequence[Arm], references: References | None = None, also: Sequence[tuple[str, str]] = ()
) -> tuple[Pair, ...]:
    """Compare every arm with the first, then with its references, then as requested.

    Args:
        references: None: found by name.
        also: (arm, against) by label; unknown labels are left out.
    """
    first, *others = arms
    by_arm: Mapping[str, Sequence[str]] = (
        _references_by_name(others)
        if references is None
        else {label: [against] if isinstance(against, str) else against for label, against in references.items()}
    )
    labels = {arm.label for arm in others}
    referred = [
        (arm.label, other) for arm in others for other in by_arm.get(arm.label, ()) if other in labels - {arm.label}
    ]
    requested = [pair for pair in also if labels.issuperset(pair)]
    # each pair once: one counted twice would raise the number expected by chance
    pairs = dict.fromkeys([*((arm.label, first.label) for arm in others), *referred, *requested])
    return tuple(Pair(*pair, is_requested=pair in requested) for pair in pairs)


def _references_by_name(arms: Sequence[Arm]) -> dict[str, list[str]]:
    """The references of each trained arm, by label; see the module's docstring."""
    by_arm = {label: [other] for label, other in _by_name(arms, [arm for arm in arms if arm.uses(SFT)], SFT).items()}
    from_base = [arm for arm in arms if not arm.continues]
    off_policy = _by_name(arms, [arm for arm in from_base if arm.uses(OFFPOLICY)], OFFPOLICY)
    for arm in from_base:
        if arm.uses(OPCT) and arm.label in off_policy:
            by_arm.setdefault(arm.label, []).append(off_policy[arm.label])
    return by_arm


def _by_name(arms: Sequence[Arm], candidates: Sequence[Arm], method: str) -> dict[str, str]:
    """The reference of each arm, by label: the candidate whose values end the arm's label."""
    of_values: dict[str, Arm] = {}
    # the arm named after the method first: `setdefault` keeps the first of equal values
    for arm in sorted(candidates, key=lambda arm: arm.label.partition("-")[0] != method):
        of_values.setdefault("".join(arm.label.partition("-")[1:]), arm)
    references = {}
    for arm in arms:
        fitting = [v for v, other in of_values.items() if other is not arm and arm.label.endswith(v)]
        if fitting:
            # the longest: "-0.25" fits more than "", which ends every label
            references[arm.label] = of_values[max(fitting, key=len)].label
    return references
