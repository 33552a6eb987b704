"""The settings of attacks in words: who attacked whom, how often, with which models and limits, judged by whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opct.reports.attack_numbers import judge_name, without_folders
from opct.reports.wording import MISSING, told_apart
from opct.runs.plural import count

if TYPE_CHECKING:
    from opct.reports.attacks import AttackRow

ELSEWHERE = ("attacker", "model", "training", "wording")
"""Of an attacker's identity: its name, its model, its training, and a hash; all else are settings of its own."""
LIMITS = (("queries", "queries"), ("tokens", "sampled tokens"), ("seconds", "seconds"))


def settings_of(result: Mapping[str, Any]) -> dict[str, str]:
    """The settings of one attack by what they are called; those that its result does not have are left out."""
    settings, attacker, judge = result["settings"], result["attacker"], result["judge"]
    rules, twins = settings["rules"], settings.get("twin_rules")
    own = {name: value for name, value in attacker.items() if name not in ELSEWHERE}
    found = {
        "behaviours": _counted(settings.get("behaviors"), "behaviour") + _of(settings.get("source")),
        "episodes of each": f"{_played(rules)}; --stop {rules['stop']}",
        "benign twins": _twins(settings.get("twins"), twins),
        "target": _model(result["target"]),
        "attacker": "; ".join(f"{name} {_listed(value)}" for name, value in own.items()),
        "attacker's model": _model(attacker.get("model") or {}),
        "attacker's training": _training(attacker.get("training")),
        "examples shown (--shots)": str(rules["shots"]) if attacker.get("model") else "",
        "pool of earlier successes (--pool)": _pool(settings.get("pool"), attacker),
        "judge": f"{judge_name(judge)}, {judge['label']} from a score of {judge['threshold']:g}",
        "limits": _limits(result["budget"]["limits"]),
        "ended": str(result["ended"]),
        "seed": str(rules["seed"]),
        "result written": str(result.get("created", "")),
    }
    return {name: text for name, text in found.items() if text}


def settings_table(rows: Sequence[AttackRow]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns: an attack each, rows: a setting each) of attacks by one attacker."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    columns = ("setting", *(told_apart(row.arm.label, row.arm.name, row.run) for row in rows))
    return columns, [(name, *(row.settings.get(name, MISSING) for row in rows)) for name in names]


def _played(rules: Mapping[str, Any]) -> str:
    return f"{count(rules['episodes'], 'episode')} of {count(rules['rounds'], 'round')}"


def _counted(of: Mapping[str, Any] | None, noun: str) -> str:
    return count(of["n"], noun) if of else ""


def _of(source: str | None) -> str:
    return f" of {source}" if source else ""


def _twins(twins: Mapping[str, Any] | None, rules: Mapping[str, Any] | None) -> str:
    if not twins or not rules:
        return ""
    drawn = f" drawn from {rules['drawn_from']}" if rules.get("drawn_from") else ""
    return f"{_counted(twins, 'twin')}, {_played(rules)}{drawn}"


def _model(model: Mapping[str, Any]) -> str:
    """A model's name, what it is, how it was sampled, and how it writes its reasoning where that was said."""
    sampled = [("dtype", "{}"), ("max_tokens", "at most {} tokens"), ("temperature", "temperature {}")]
    sampled += [("top_p", "top_p {}"), ("thinking_tags", "thinking between {}")]
    parts = [without_folders(str(model.get("source", "")))]
    parts += [said.format(_listed(model[name])) for name, said in sampled if model.get(name) is not None]
    opens = model.get("template_opens_thinking")
    if opens is not None:
        parts.append("its template opens thinking" if opens else "its template does not open thinking")
    return ", ".join(part for part in parts if part)


def _pool(pool: str | None, attacker: Mapping[str, Any]) -> str:
    """Which prompts the attacker was shown from before, by their hash; an attacker that learns has those of its
    training among them."""
    if pool is None:
        return ""
    return f"{pool}, any of its training among them" if "training" in attacker else str(pool)


def _training(training: Mapping[str, Any] | None) -> str:
    """An attacker's training; of the behaviours only the pool that each step draws from is known here."""
    if not training or "trained_on" not in training:
        return ""
    return f"{count(training['steps'], 'step')}, on behaviours drawn from {training['trained_on']['n']} others"


def _limits(limits: Mapping[str, Any]) -> str:
    set_ = [f"{limits[name]:,} {unit}" for name, unit in LIMITS if limits.get(name) is not None]
    return ", ".join(set_) or "none"


def _listed(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_listed(inner)}" for name, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
