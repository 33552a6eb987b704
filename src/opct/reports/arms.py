"""Which runs are shown as one, and which are compared with which: arms, and the pairs of them.

Every arm is compared with the first (base). Of trained arms each is compared with its references too: an arm of SFT,
and an arm of OPCT with an off-policy one, which tells what on-policy sampling buys. Those that `references` names are
taken as they are, as an experiment knows what its arms are. Without it a reference is found by name: arms whose method
is sft, each split at its first dash into a name and the values after it; the reference of an arm is that whose values
end the arm's own label (`bct-x-0.25` of `opct-x-0.25`, `bct` of `opct`), the longest if there are several, the first if
they are alike. The off-policy arm is found in the same way where `references` names none, but is first looked for among
those that share the arm's reference of SFT: they are of one combination. Arms that went on from another adapter have
no off-policy one, for that is not all that they differ in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opct.reports.charts import STYLES
from opct.reports.load import EvaluatedRun, run_config
from opct.reports.wording import arm_name, joined

SFT, OFFPOLICY, OPCT = "sft", "offpolicy", "opct"
ADAPTER = "model.adapter"
"""The setting that a run goes on from another's adapter by."""
References = Mapping[str, str | Sequence[str]]
"""By the label of an arm, that of the arm it is compared with, or those of several."""
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
        return self.is_of(SFT)

    def is_of(self, method: str) -> bool:
        """True where that is the method of every run, or the label."""
        return self.label == method or (bool(self.runs) and all(run.method == method for run in self.runs))

    @property
    def goes_on(self) -> bool:
        """True where a run began with the adapter of another one."""
        return any((run_config(run) or {}).get(ADAPTER) for run in self.runs)


@dataclass(frozen=True)
class Pair:
    """A comparison between two arms, by label: the difference is `of` minus `against`. `is_reference` is true of one
    with a reference, `is_asked` of one that was asked for; a pair may be both.
    """

    of: str
    against: str
    is_asked: bool = False
    is_reference: bool = False

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


def make_pairs(
    arms: Sequence[Arm], references: References | None = None, also: Sequence[tuple[str, str]] = ()
) -> tuple[Pair, ...]:
    """Every arm against the first (base), then every other trained arm against its references, then what is asked for.

    Args:
        references: by the label of the arm; None: found by name.
        also: (arm, against), by label.
    """
    first, *others = arms
    found = all_references(others, references)
    labels = {arm.label for arm in others}
    referred = [
        (arm.label, other) for arm in others for other in found.get(arm.label, ()) if other in labels - {arm.label}
    ]
    asked = [pair for pair in also if labels.issuperset(pair)]
    pairs = dict.fromkeys([*((arm.label, first.label) for arm in others), *referred, *asked])
    return tuple(Pair(*pair, is_asked=pair in asked, is_reference=pair in referred) for pair in pairs)


def all_references(arms: Sequence[Arm], references: References | None = None) -> dict[str, list[str]]:
    """The arms that each trained arm is compared with, by label; see the module's docstring."""
    if references is None:
        found = {label: [other] for label, other in by_name(arms, [arm for arm in arms if arm.is_sft], SFT).items()}
    else:
        found = {label: [other] if isinstance(other, str) else list(other) for label, other in references.items()}
    plain = [arm for arm in arms if not arm.goes_on]
    rivals = [arm for arm in plain if arm.is_of(OFFPOLICY)]
    named = by_name(arms, rivals, OFFPOLICY)
    for arm in plain:
        own = found.get(arm.label, [])
        if not arm.is_of(OPCT) or any(rival.label in own for rival in rivals):
            continue
        beside = [rival.label for rival in rivals if set(own) & set(found.get(rival.label, ()))]
        other = beside[0] if references is not None and beside else named.get(arm.label)
        if other is not None:
            found[arm.label] = [*own, other]
    return found


def by_name(arms: Sequence[Arm], rivals: Sequence[Arm], method: str) -> dict[str, str]:
    """Of some arms the one that each arm is compared with, by label; see the module's docstring."""
    of_values: dict[str, Arm] = {}
    for arm in sorted(rivals, key=lambda arm: _split(arm.label)[0] != method):
        of_values.setdefault(_split(arm.label)[1], arm)
    found = {}
    for arm in arms:
        fitting = [v for v, rival in of_values.items() if rival is not arm and arm.label.endswith(v)]
        if fitting:
            found[arm.label] = of_values[max(fitting, key=len)].label
    return found


def _split(label: str) -> tuple[str, str]:
    """ "sft-x-0.25" is the name "sft" and the values "-x-0.25"."""
    name, dash, rest = label.partition("-")
    return name, dash + rest


def reference_pairs(arms: Sequence[Arm], pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The comparisons with a reference and those that were asked for, without those with the first arm."""
    return tuple(pair for pair in pairs if pair.against != arms[0].label)


def reference_note(arms: Sequence[Arm], pairs: Sequence[Pair]) -> str:
    """Which of several SFT arms the others are compared with; empty where there is but one."""
    by_label = {arm.label: arm for arm in arms}
    rivals: dict[str, list[str]] = {}
    for pair in reference_pairs(arms, pairs):
        if by_label[pair.of].is_sft and pair.is_reference:
            rivals.setdefault(by_label[pair.against].name, []).append(by_label[pair.of].name)
    parts = [
        f"Of several SFT arms {name} is the one that others are compared with, {joined(more)} too."
        for name, more in rivals.items()
    ]
    return " ".join(parts)
