"""Which runs are shown as one, and which are compared with which: arms, and the pairs of them.

Every arm is compared with the first (base). Of trained arms each is compared with an arm of SFT too, its reference: the
one that `references` names, as an experiment does, which knows what its arms are. Without it the reference is found by
name: arms whose method is sft, each split at its first dash into a name and the values after it; the reference of an
arm is that whose values end the arm's own label (`bct-x-0.25` of `opct-x-0.25`, `bct` of `opct`), the longest if there
are several, the first if they are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opct.reports.load import EvaluatedRun
from opct.reports.svg import STYLES
from opct.reports.wording import arm_name, joined

SFT = "sft"
STYLE_OF_LABEL = {"base": 0, SFT: 1, "opct": 2}


@dataclass(frozen=True)
class Arm:
    """The runs of one label (its seeds), shown under one name, one shape and one colour."""

    label: str
    name: str
    style: int
    runs: tuple[EvaluatedRun, ...]

    @property
    def is_sft(self) -> bool:
        """True of the paper's baseline, whatever its label."""
        return self.label == SFT or (bool(self.runs) and all(run.method == SFT for run in self.runs))


@dataclass(frozen=True)
class Pair:
    """A comparison between two arms, by label: the difference is `of` minus `against`."""

    of: str
    against: str

    @property
    def title(self) -> str:
        """ "OPCT − SFT", as it heads a column."""
        return f"{arm_name(self.of)} \u2212 {arm_name(self.against)}"


def make_arms(runs: Sequence[EvaluatedRun]) -> tuple[Arm, ...]:
    """Runs by label, base first, then in the order given; every label has a style of its own while there are enough."""
    labels = list(dict.fromkeys(run.label for run in runs))
    labels.sort(key=lambda label: label != "base")
    free = [style for style in range(STYLES) if style not in {STYLE_OF_LABEL[x] for x in labels if x in STYLE_OF_LABEL}]
    arms: list[Arm] = []
    for label in labels:
        style = STYLE_OF_LABEL[label] if label in STYLE_OF_LABEL else (free.pop(0) if free else len(arms) % STYLES)
        arms.append(Arm(label, arm_name(label), style, tuple(run for run in runs if run.label == label)))
    return tuple(arms)


def make_pairs(arms: Sequence[Arm], references: Mapping[str, str] | None = None) -> tuple[Pair, ...]:
    """Every arm against the first (base), then every other trained arm against its reference, the arm of SFT.

    Args:
        references: the label of the reference by the label of the arm; None: found by name.
    """
    first, *others = arms
    found = references_by_name(others) if references is None else references
    labels = {arm.label for arm in others}
    pairs = [Pair(arm.label, first.label) for arm in others]
    pairs += [
        Pair(arm.label, found[arm.label])
        for arm in others
        if found.get(arm.label) in labels and found[arm.label] != arm.label
    ]
    return tuple(pairs)


def references_by_name(arms: Sequence[Arm]) -> dict[str, str]:
    """The arm of SFT that each trained arm is compared with, by label; see the module's docstring."""
    of_values: dict[str, Arm] = {}
    for arm in sorted((arm for arm in arms if arm.is_sft), key=lambda arm: _split(arm.label)[0] != SFT):
        of_values.setdefault(_split(arm.label)[1], arm)
    found = {}
    for arm in arms:
        fitting = [v for v, sft in of_values.items() if sft is not arm and arm.label.endswith(v)]
        if fitting:
            found[arm.label] = of_values[max(fitting, key=len)].label
    return found


def _split(label: str) -> tuple[str, str]:
    """ "sft-x-0.25" is the name "sft" and the values "-x-0.25"."""
    name, dash, rest = label.partition("-")
    return name, dash + rest


def sft_pairs(arms: Sequence[Arm], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The comparisons with a reference, without those with the first arm."""
    return tuple(pair for pair in pairs if pair.against != arms[0].label)


def reference_note(arms: Sequence[Arm], pairs: Sequence[Pair]) -> str:
    """Which of several SFT arms the others are compared with; empty where there is but one."""
    by_label = {arm.label: arm for arm in arms}
    rivals: dict[str, list[str]] = {}
    for pair in sft_pairs(arms, pairs):
        if by_label[pair.of].is_sft:
            rivals.setdefault(by_label[pair.against].name, []).append(by_label[pair.of].name)
    parts = [
        f"Of several SFT arms {name} is the one that others are compared with, {joined(more)} too."
        for name, more in rivals.items()
    ]
    return " ".join(parts)
