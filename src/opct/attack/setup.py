"""Builds the parts of an attack from its settings: target, attacker, judge, behaviours, and its identity."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opct.attack import config as settings
from opct.attack.best_of_n import BestOfN
from opct.attack.config import BUILTIN, AttackConfig
from opct.attack.loop import Rules
from opct.attack.models import InspectModel, LocalModel
from opct.attack.protocol import BEHAVIOR, COUNTERPART, Attacker, ChatModel, FewShotExample, Subject
from opct.attack.scoring import ANSWERS, RULES, RefusalJudge, Scorer
from opct.attack.transfer import FamilyTransfer, PromptTransfer, finished_prompts, load_successes
from opct.config.judge import EndpointSettings, JudgeConfig
from opct.config.loader import load_run_config
from opct.data.behaviors import Behavior, builtin_behaviors, load_behaviors
from opct.data.duplicates import TrainedTexts, contamination_warnings, cross_duplicates, read_trained_texts
from opct.data.questions import first_items, of_split
from opct.errors import DataError, EvaluationError, unknown
from opct.evals.endpoint import endpoint_address, open_model
from opct.evals.judges.llm import load_judge
from opct.evals.judges.protocol import digest
from opct.evals.judges.rubrics import RUBRICS
from opct.evals.target import INSPECT_MODEL
from opct.models.from_run import load_policy
from opct.models.loading import check_model_name, is_run_or_adapter
from opct.models.self_test import self_test
from opct.runs.console import Progress, pluralize
from opct.runs.run_dir import run_behind, run_of

if TYPE_CHECKING:
    from opct.models.policy import Policy

HARMFUL = "harmful"


class ModelLoader:
    """Loads each policy once, even if attacker and target are the same.

    Args:
        dtype: of every policy; None: chosen as in `opct eval`.
        recorded: dtypes before a resume, by model name. They are used if `dtype` is None or `auto`, since a second
            timing may choose another.
    """

    def __init__(self, dtype: str | None, progress: Progress, recorded: Mapping[str, str] = MappingProxyType({})):
        self._dtype, self._progress, self._recorded = dtype, progress, recorded
        self._policies: dict[str, Policy] = {}

    def load(self, spec: str | Path | Policy, config: settings.TargetConfig | settings.Refine, role: str) -> ChatModel:
        """Load a model by name, or wrap a loaded policy.

        Raises:
            EvaluationError, ModelError: it cannot be loaded.
        """
        check_local_settings(spec, config, role)
        if not isinstance(spec, str | Path):
            return LocalModel(spec, config, source="a loaded policy", thinking_tags=config.thinking_tags)
        name = str(spec)
        if name.startswith(INSPECT_MODEL):
            model, described, address = open_model(
                name.removeprefix(INSPECT_MODEL), config.base_url, config.model_args, what=f"The {role}'s model"
            )
            return InspectModel(model, config, name=described, address=address, role=role)
        kwargs = config.chat_template_kwargs
        key = f"{name} {kwargs}"  # attacker and target may differ in them
        if key not in self._policies:
            self._progress.stage(f"load {name}")
            dtype = self._recorded.get(name, self._dtype) if self._dtype in (None, "auto") else self._dtype
            given: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
            given |= {} if kwargs is None else {"chat_template_kwargs": kwargs}
            self._policies[key] = load_policy(name, trust_remote_code=config.trust_remote_code, **given)
            self._progress.log(f"dtype: {self._policies[key].dtype_reason}")
            for warning in self_test(self._policies[key]):
                self._progress.log(f"warning: {warning}")
        return LocalModel(self._policies[key], config, source=name, thinking_tags=config.thinking_tags)


def check_local_settings(spec: str | Path | Policy, config: EndpointSettings, role: str) -> None:
    """Raise EvaluationError if endpoint settings are given for a model in this process."""
    if isinstance(spec, str | Path) and str(spec).startswith(INSPECT_MODEL):
        return
    only_remote = (*EndpointSettings.model_fields, "template_opens_thinking")
    given = [f"{role}.{name}" for name in only_remote if name in config.model_fields_set]
    if given:
        raise EvaluationError(
            f"The {role} is loaded in this process: leave {' and '.join(given)} out, or name a model as "
            "inspect:provider/model."
        )


def check_target(target: str | Path | Policy, config: settings.TargetConfig) -> str:
    """Describe the target in one line.

    Raises:
        EvaluationError: it is behind an endpoint and not confirmed.
    """
    if not isinstance(target, str | Path):
        return f"target: {target.name}, a policy loaded in this process"
    name = str(target)
    if not name.startswith(INSPECT_MODEL):
        return f"target: {name}, loaded on this machine"
    asked = name.removeprefix(INSPECT_MODEL)
    address = endpoint_address(asked, config.base_url)
    where = "" if address is None else f" at {address}"
    if not config.confirm_remote:
        raise EvaluationError(
            f"The target {asked}{where} is an Inspect model, which may run elsewhere and belong to somebody else. "
            "Attack it only if it is yours or its owner has agreed to this test; then pass --confirm-remote."
        )
    return f"target: {asked}, queried through Inspect{where}; you confirmed that you may test it"


def default_folder(target: str | Path | Policy, attacker: str) -> Path:
    name = str(target) if isinstance(target, str | Path) else target.name
    run = run_of(target) if isinstance(target, str | Path) else None
    if run is not None and run.path == Path(name):
        return run.attacks_dir / attacker
    return Path("runs") / f"attack-{re.sub(r'[^A-Za-z0-9._-]+', '-', name).strip('-.')}-{attacker}"


def target_label(target: str | Path | Policy, policy: Policy | None) -> str:
    """The target's label in a report, the same as in an evaluation."""
    run = run_of(target) if isinstance(target, str | Path) else None
    if run is not None:
        return load_run_config(run.config_path).method
    if policy is None:
        return "remote"
    return "trained" if policy.has_adapter else "base"


# ------------------------------------------------------------------------------------------- behaviours and examples


def all_behaviors(source: str) -> list[Behavior]:
    """All behaviours of a source, of every split.

    Raises:
        DataError: they cannot be read.
    """
    return builtin_behaviors() if source == BUILTIN else load_behaviors(source)


def attacked_behaviors(config: AttackConfig) -> list[Behavior]:
    """The behaviours that are attacked.

    Raises:
        DataError, EvaluationError: they cannot be read, or none is left.
    """
    known = of_split(all_behaviors(config.behaviors), config.split, "behaviours")
    return first_items(known, config.n_behaviors, config.seed)


def subjects_of(
    config: AttackConfig, behaviors: Sequence[Behavior], attacker: Attacker | None
) -> tuple[list[Subject], list[Subject]]:
    """The behaviours and benign counterparts to attack.

    Args:
        attacker: None if its model is not loaded yet; such an attacker can attack counterparts.
    """
    own = [Subject(one.id, one.behavior, BEHAVIOR, one.category) for one in behaviors]
    if config.counterpart_episodes == 0 or not getattr(attacker, "attacks_counterparts", True):
        return own, []
    benign = [Subject(one.id, one.benign, COUNTERPART, one.category) for one in behaviors if one.benign is not None]
    return own, benign


def load_pool(config: AttackConfig, behaviors: Sequence[Behavior]) -> list[FewShotExample]:
    """Successes to show an attacker, checked to exclude attacked behaviours.

    Raises:
        DataError: the file cannot be read, or a success is on an attacked behaviour or a near-duplicate.
    """
    path = getattr(config.attacker, "pool", None)
    if path is None:
        return []
    shots = load_successes(path)
    near = cross_duplicates([shot.behavior for shot in shots], [one.behavior for one in behaviors])
    if near:
        pairs = dict.fromkeys((shots[i].behavior_id, behaviors[j].id) for i, j in near.items())
        faults = [f"{a} is attacked" if a == b else f"{a} is a near-duplicate of {b}" for a, b in pairs]
        raise DataError(
            f"{path} holds {len(near)} successes on behaviours that are attacked now, so the attacker would have seen "
            "them. Use another split of behaviours, or another pool:",
            tuple(faults[:50]),
        )
    return shots


def contamination_notes(
    target: Any, policy: Policy | None, behaviors: Sequence[Behavior], practised: Sequence[Behavior] = ()
) -> list[str]:
    """Warnings about attacked behaviours that the target was trained on, according to its run.

    Args:
        policy: of a target in this process. practised: behaviours that an attacker is trained on.
    """
    if policy is None:
        return ["It is unknown which behaviours a model behind an endpoint was trained on."]
    run = run_behind(target) if isinstance(target, str | Path) else None
    known = None if run is None else read_trained_texts(run)
    texts = known or TrainedTexts(is_complete=False)
    samples = [
        {"axis": "jailbreak", "cluster": one.id, "behavior": one.behavior, "family": None, "family_split": ""}
        for one in behaviors
    ]
    found = contamination_warnings(samples, texts=texts)
    near = cross_duplicates([one.behavior for one in practised], texts.behaviors)
    if near:
        found.append(
            f"The target was trained on {len(near)} of the {len(practised)} behaviours that the attacker is trained "
            "on, or near-duplicates: it may refuse these more often, which makes the attacker weaker. Train it on "
            "others (attacker.train_split, attacker.train_behaviors)."
        )
    if not texts.is_complete and (run is not None or policy.has_adapter):
        found.append(
            "It is unknown which behaviours this target was trained on, so the attacked ones may be among them."
        )
    return found


# ------------------------------------------------------------------------------------------------ attacker and judge


def modelless_attacker(config: AttackConfig, behaviors: Sequence[Behavior]) -> Attacker | None:
    """The attacker if it has no model; else None, after checking the name of its model.

    Raises:
        DataError: its prompts cannot be read or made. EvaluationError, ModelError: the name of its model is invalid.
    """
    own = config.attacker
    if isinstance(own, settings.BestOfN):
        return BestOfN(own.sigma)
    if isinstance(own, settings.Transfer):
        if own.prompts is not None:
            return PromptTransfer(finished_prompts(own.prompts, behaviors), episodes=config.episodes)
        families = FamilyTransfer(own.families or "held_out", episodes=config.episodes, seed=config.seed)
        families.check(behaviors)
        return families
    if isinstance(own, settings.Refine):
        check_local_settings(own.model, own, "attacker")
    if not own.model.startswith(INSPECT_MODEL) and not is_run_or_adapter(own.model):
        check_model_name(own.model)
    return None


def load_scorer(config: JudgeConfig) -> Scorer:
    """The judge of an attack.

    Raises:
        EvaluationError: there is no such judge or model, or it does not judge harm.
    """
    if config.name in RULES:
        given = sorted(config.model_fields_set - {"name"})
        if any(getattr(config, name) != JudgeConfig.model_fields[name].default for name in given):
            raise EvaluationError(f"The judge {config.name} is rule-based: leave judge.{', judge.'.join(given)} out.")
        return Scorer(RefusalJudge(on_topic=config.name == ANSWERS))
    harmful = [name for name, rubric in RUBRICS.items() if rubric.label == HARMFUL]
    if config.name not in harmful:
        raise EvaluationError(unknown("judge of an attack", config.name, [*RULES, *harmful]))
    judge = load_judge(config)
    return Scorer(judge, is_local=judge.is_local)


# ------------------------------------------------------------------------------------------------ rules and identity


def rules_of(config: AttackConfig) -> Rules:
    shots = getattr(config.attacker, "shots", 0)
    return Rules(config.episodes, config.rounds, config.stop, shots, config.batch_size, config.seed)


def counterpart_rules(config: AttackConfig) -> Rules:
    """The rules for benign counterparts. Every round is run, so that none drops out once it was answered. Each gets
    some of the episodes, so that together they cover every kind of episode.
    """
    episodes = min(max(config.counterpart_episodes, 1), config.episodes)
    return replace(rules_of(config), episodes=episodes, stop="never", drawn_from=config.episodes)


def run_identity(
    config: AttackConfig,
    subjects: Sequence[Subject],
    counterparts: Sequence[Subject],
    scorer: Scorer,
    pool: Sequence[FewShotExample],
) -> dict[str, Any]:
    """JSON values that a resumed attack must share with the earlier one, as far as they are known without a model."""
    return {
        "behaviors": {"n": len(subjects), "hash": _hash(subjects)},
        "counterparts": {"n": len(counterparts), "hash": _hash(counterparts)},
        "rules": asdict(rules_of(config)),
        "counterpart_rules": asdict(counterpart_rules(config)) if counterparts else None,
        "judge": scorer.judge_of_behaviors.identity.row(),
        "counterpart_judge": scorer.judge_of_counterparts.identity.row() if counterparts else None,
        "pool": digest([asdict(shot) for shot in pool])[:12] if pool else None,
    }


def _hash(subjects: Sequence[Subject]) -> str:
    return digest([[one.id, one.text, one.kind] for one in subjects])[:12]


def describe_plan(
    config: AttackConfig, subjects: Sequence[Subject], counterparts: Sequence[Subject], attacker: Attacker | None
) -> str:
    """Describe the maximum size of the attack in one line."""
    each = rules_of(config).attempts
    most, benign = each * len(subjects), counterpart_rules(config).attempts * len(counterparts)
    if isinstance(attacker, PromptTransfer):
        most = sum(min(len(attacker.prompts.get(one.id, ())), each) for one in subjects)
    limit = config.budget.max_queries
    ends = "" if limit is None or limit >= most + benign else f"; budget.max_queries stops it at {limit:,}"
    return (
        f"up to {most + benign:,} queries to the target: {most:,} about {pluralize(len(subjects), 'behaviour')}, "
        f"{benign:,} about {pluralize(len(counterparts), 'benign counterpart')}{ends}"
    )
