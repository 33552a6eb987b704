"""Synthetic runs over all axes and benchmarks: deterministic samples in the shape of the real ones, and their rows.

Rates by label, before luck; held-out families are a third of the way back to the base.
"""

from pathlib import Path
from typing import Any

from opct.data.perturb.jailbreak import FAMILIES as WRAPPERS
from opct.data.perturb.safety_awareness import FAMILIES as HIDDEN
from opct.evals.samples import GradedSample
from tests.unit.reports.synthetic import draw, make_records, write_run

SUCCESS = {"base": 0.62, "sft": 0.4, "offpolicy": 0.36, "opct": 0.18}
WARNED = {"base": 0.12, "sft": 0.3, "offpolicy": 0.35, "opct": 0.55}
REFUSED_TWIN = {"base": 0.06, "sft": 0.2, "offpolicy": 0.14, "opct": 0.1}
BENCHMARKS = {"math500": (20, 0.08), "gsm8k": (20, 0.12), "mmlu": (30, 0.31), "commonsenseqa": (30, 0.42)}
MORE = {"sft": -0.02, "opct": 0.0}


def sample(label, seed, suite, axis, cluster, family, split, verdict, values, *, part="", side=""):
    """One reply; 6% of the replies are cut, 1% are empty and so without a value."""
    identifier = f"{suite}/{cluster}/{'benign_' * (side == 'benign')}{family}{part}"
    empty = draw("empty", label, seed, identifier) < 0.01
    kind = {"jailbreak": "behavior", "safety_awareness": "fact"}.get(axis)
    return GradedSample(
        id=identifier,
        task=suite,
        axis=axis,
        family=family,
        family_split=split,
        side=side,
        cluster=cluster,
        grading={kind: cluster} if kind else {},
        prompt=[{"role": "user", "content": f"Message {cluster}, put as {family}."}],
        teacher_prompt=[{"role": "user", "content": f"Message {cluster}."}],
        completion="" if empty else f"A reply that is {verdict}.",
        stop_reason="length" if draw("cut", label, seed, identifier) < 0.06 else "stop",
        completion_tokens=0 if empty else 5,
        verdict="unscored:empty" if empty else verdict,
        values=dict.fromkeys(values) if empty else values,
    )


def rate(table, label, held_out):
    own = table.get(label, 0.3)
    return own + (table["base"] - own) / 3 if held_out else own


def jailbreak_samples(label, seed, behaviors=24):
    """Behaviors bare and in four families each, and their twins alike."""
    names = [name for name, family in WRAPPERS.items() if family.templates]
    rows = []
    for number in range(behaviors):
        cluster = f"behavior-{number:02d}"
        chosen = [names[(number * 4 + i) % len(names)] for i in range(4)]
        for family, split in [("bare", "bare"), *((name, WRAPPERS[name].split) for name in chosen)]:
            luck = draw("jailbreak", label, seed if label != "base" else 0, cluster, family)
            success = float(luck < rate(SUCCESS, label, split == "held_out") * (0.4 if split == "bare" else 1))
            values = {"is_refusal": 1 - success, "is_success": success, "is_partial": float(success and luck < 0.05)}
            verdict = "complied" if success else "refused"
            rows.append(
                sample(label, seed, "jailbreak", "jailbreak", cluster, family, split, verdict,
                       values | {"is_over_refusal": None})
            )  # fmt: skip
            twin = float(
                draw("twin", label, seed if label != "base" else 0, cluster, family) < REFUSED_TWIN.get(label, 0.1)
            )
            values = {"is_refusal": twin, "is_success": None, "is_partial": None, "is_over_refusal": twin}
            verdict = "refused" if twin else "complied"
            rows.append(
                sample(label, seed, "jailbreak", "jailbreak", cluster, family, split, verdict, values,
                       side="benign")
            )  # fmt: skip
    return rows


def safety_samples(label, seed, facts=24):
    """Facts with three families each, once with the hazard hidden and once as a safe twin."""
    names = list(HIDDEN)
    rows = []
    for number in range(facts):
        cluster = f"{('kitchen', 'garden', 'travel')[number % 3]}/fact-{number:02d}"
        for i in range(3):
            family = names[(number * 3 + i) % len(names)]
            split = HIDDEN[family].split
            for kind in ("hazard", "safe_twin"):
                chance = rate(WARNED, label, split == "held_out") * (1 if kind == "hazard" else 0.2)
                warned = float(draw(kind, label, seed if label != "base" else 0, cluster, family) < chance)
                values = {"is_warned": None, "is_over_warned": None, "is_refused": 0.0}
                values["is_warned" if kind == "hazard" else "is_over_warned"] = warned
                side = "" if kind == "hazard" else "safe_twin"
                verdict = "warned" if warned else "not_warned"
                rows.append(
                    sample(label, seed, "safety_awareness", "safety_awareness", cluster, family, split, verdict,
                           values, part=f"/{kind}", side=side)
                )  # fmt: skip
    return rows


def benchmark_samples(label, seed, name, n, chance):
    """Problems of one benchmark; one in twenty without a readable answer."""
    rows = []
    for number in range(n):
        luck = draw(name, number)
        moved = draw(name, label, seed, number) < 0.15 if label != "base" else False
        solved = float((draw(name, label, seed, number, "again") if moved else luck) < chance + MORE.get(label, 0.0))
        read = solved or draw("read", name, number) > 0.05
        values = {"is_correct": solved, "is_extracted": float(read)}
        verdict = "correct" if solved else "other"
        rows.append(
            sample(label, seed, name, "capability", f"{name}-{number}", "problems", "capability", verdict, values)
        )
    return rows


def ifeval_samples(label, seed, n=15):
    """Prompts of one to three instructions, of which some are followed."""
    rows = []
    for number in range(n):
        count = 1 + number % 3
        done = sum(draw("ifeval", label, seed, number, i) < 0.5 for i in range(count))
        values = {"is_correct": float(done == count), "prompt_level_loose_acc": float(done == count)}
        for metric in ("inst_level_strict_acc", "inst_level_loose_acc"):
            values |= {metric: done / count, f"{metric}/n": float(count)}
        verdict = "correct" if done == count else "other"
        rows.append(
            sample(label, seed, "ifeval", "capability", f"ifeval-{number}", "prompts", "capability", verdict, values)
        )
    return rows


def make_axes(label, seed, *, questions=40, axes=("sycophancy", "jailbreak", "safety_awareness", "capability")):
    """Every graded sample of one run over these axes."""
    found = make_records(label, seed, questions=questions) if "sycophancy" in axes else []
    if "jailbreak" in axes:
        found += jailbreak_samples(label, seed)
    if "safety_awareness" in axes:
        found += safety_samples(label, seed)
    if "capability" in axes:
        for name, (n, chance) in BENCHMARKS.items():
            found += benchmark_samples(label, seed, name, n, chance)
        found += ifeval_samples(label, seed)
    return found


def make_steps(label, seed, steps=12):
    """metrics.jsonl of a run on all axes; `offpolicy` did not log the tokens in the loss."""
    rows: list[dict] = [{"step": 0, "validation/kl": 0.62}]
    for step in range(1, steps + 1):
        level = 0.6 * 0.88**step + (0.05 if label == "opct" else 0.12)
        row = {"step": step, "time/step_s": 2.5, "train/completion_tokens": 800, "train/kl": level}
        if label != "offpolicy":
            row["train/tokens_in_loss"] = 640
        for i, axis in enumerate(("sycophancy", "jailbreak", "safety_awareness")):
            row[f"validation/kl_{axis}"] = level * (1 + i * 0.2) * (0.9 + 0.2 * draw(label, seed, step, axis))
        rows.append(row | {"validation/kl": level * 1.1})
    return rows


def write_axes_run(root: Path, label: str, seed: int = 0, **options: Any) -> Path:
    """Write one evaluated run directory over all axes, and return it."""
    name = label if label == "base" else f"{label}-seed{seed}"
    return write_run(root, label, seed, name=name, make=make_axes, steps=make_steps, **options)
