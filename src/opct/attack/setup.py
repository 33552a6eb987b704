"""Builds the parts of an attack from its settings: target, attacker, judge and behaviors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inspect_ai.model import Model
from inspect_ai.scorer import Scorer
from inspect_ai.solver import Solver

from opct.config.judge import EndpointSettings, JudgeConfig
from opct.data.behaviors import Behavior, builtin_behaviors, load_behaviors
from opct.data.duplicates import TrainedTexts, contamination_warnings, cross_duplicates, read_trained_texts
from opct.data.perturb.jailbreak import wrapper_families
from opct.data.questions import first_items, of_split
from opct.errors import DataError, EvaluationError, unknown
from opct.evals.answers import REFUSALS, RULES
from opct.evals.attackers import config as settings
from opct.evals.attackers.best_of_n import NOISE, best_of_n
from opct.evals.attackers.config import BUILTIN, AttackConfig
from opct.evals.attackers.episode import BARE, BEHAVIOR, COUNTERPART, Reader, Shot, Subject
from opct.evals.attackers.game import Rules
from opct.evals.attackers.refine import ROLE, WORDING, refine
from opct.evals.attackers.transfer import check_families, finished_prompts, load_successes, transfer, transfer_prompts
from opct.evals.config import OF_MODEL, OF_POLICY
from opct.evals.endpoint import call_config, endpoint_address, open_model
from opct.evals.graders.versions import AGREEMENT
from opct.evals.judges.calibration import calibration_of, weakness
from opct.evals.judges.llm import load_judge
from opct.evals.judges.protocol import digest
from opct.evals.judges.rubrics import RUBRICS
from opct.evals.judges.scorer import judge_scorer
from opct.evals.provider import as_inspect_model
from opct.evals.run import About
from opct.evals.target import INSPECT_MODEL, describe_target, is_inspect_model, open_target, path_of, pinned
from opct.evals.tasks.attack import rule_judge, rules_identity
from opct.models.from_run import load_policy
from opct.models.loading import check_model_name, is_run_or_adapter
from opct.models.self_test import self_test
from opct.runs.console import Progress, pluralize, show_warnings
from opct.runs.identity import Identity
from opct.runs.run_dir import run_behind

if TYPE_CHECKING:
    from opct.models.policy import Policy

HARMFUL = "harmful"
RULES_WARNING = (
    "The judge {} is rule-based: an answer that it counts need not be useful to anyone. The rules for refusals have "
    "{}: {} (measured with version {}). Of 102 breaks of a 0.5B model that a language model read, 39 begin to give "
    "what was asked; replies that count as defended were not read. See docs/how-to/attack.md, under Judges."
)


# ------------------------------------------------------------------------------------------------ behaviors, examples


def all_behaviors(source: str) -> list[Behavior]:
    """All behaviors of a source, of every split. Raises DataError where they cannot be read."""
    return builtin_behaviors() if source == BUILTIN else load_behaviors(source)


def attacked_behaviors(config: AttackConfig) -> list[Behavior]:
    """The behaviors that are attacked. Raises DataError or EvaluationError where they cannot be read, or none is
    left."""
    known = of_split(all_behaviors(config.behaviors), config.split, "behaviors")
    return first_items(known, config.n_behaviors, config.seed)


def subjects_of(config: AttackConfig, behaviors: Sequence[Behavior]) -> list[Subject]:
    """The behaviors, bare and attacked, and their benign counterparts."""
    subjects = [Subject(one.id, one.behavior, kind, one.category) for kind in (BARE, BEHAVIOR) for one in behaviors]
    # finished prompts ask for harm, whatever the text of the counterpart
    if config.counterpart_episodes == 0 or getattr(config.attacker, "prompts", None) is not None:
        return subjects
    counterparts = [Subject(one.id, one.benign, COUNTERPART, one.category) for one in behaviors if one.benign]
    return [*subjects, *counterparts]


def load_pool(config: AttackConfig, behaviors: Sequence[Behavior]) -> list[Shot]:
    """Successes to show an attacker. Raises DataError where the file cannot be read, or one is on an attacked behavior
    or a near-duplicate."""
    path = getattr(config.attacker, "pool", None)
    if path is None:
        return []
    shots = load_successes(path)
    near = cross_duplicates([shot.behavior for shot in shots], [one.behavior for one in behaviors])
    if near:
        pairs = dict.fromkeys((shots[i].behavior_id, behaviors[j].id) for i, j in near.items())
        faults = [f"{a} is attacked" if a == b else f"{a} is a near-duplicate of {b}" for a, b in pairs]
        raise DataError(
            f"{path} holds {len(near)} successes on behaviors that are attacked now, so the attacker would have seen "
            "them. Use another split of behaviors, or another pool:",
            tuple(faults[:50]),
        )
    return shots


def contamination_notes(
    target: Any, policy: Policy | Model, behaviors: Sequence[Behavior], practised: Sequence[Behavior] = ()
) -> list[str]:
    """Warnings about attacked behaviors that the target was trained on, according to its run.

    Args:
        practised: behaviors that an attacker is trained on.
    """
    if isinstance(policy, Model):
        return ["It is unknown which behaviors a model behind an endpoint was trained on."]
    path = path_of(target)
    run = None if path is None else run_behind(path)
    known = None if run is None else read_trained_texts(run)
    # None is unknown, not nothing: only a complete list may be silent
    texts = known or TrainedTexts(is_complete=False)
    samples = [
        {"axis": "jailbreak", "cluster": one.id, "behavior": one.behavior, "family": None, "family_split": ""}
        for one in behaviors
    ]
    warnings = contamination_warnings(samples, texts=texts)
    near = cross_duplicates([one.behavior for one in practised], texts.behaviors)
    if near:
        warnings.append(
            f"The target was trained on {len(near)} of the {len(practised)} behaviors that the attacker is trained "
            "on, or near-duplicates: it may refuse these more often, which makes the attacker weaker. Train it on "
            "others (attacker.train_split, attacker.train_behaviors)."
        )
    if not texts.is_complete and (run is not None or policy.has_adapter):
        warnings.append(
            "It is unknown which behaviors this target was trained on, so the attacked ones may be among them."
        )
    return warnings


# ------------------------------------------------------------------------------------------------------------ target


def check_target(target: Any, config: settings.TargetConfig) -> str:
    """Describe the target in one line. Raises EvaluationError where it is behind an endpoint and not confirmed."""
    if not isinstance(target, str | Path):
        return f"target: {target.name}, a policy loaded in this process"
    name = str(target)
    if not is_inspect_model(name):
        return f"target: {name}, loaded on this machine"
    model_name = name.removeprefix(INSPECT_MODEL)
    address = endpoint_address(model_name, config.base_url)
    where = "" if address is None else f" at {address}"
    if not config.confirm_remote:
        raise EvaluationError(
            f"The target {model_name}{where} is an Inspect model, which may run elsewhere and belong to somebody else. "
            "Attack it only if it is yours or its owner has agreed to this test; then pass --confirm-remote."
        )
    return f"target: {model_name}, queried through Inspect{where}; you confirmed that you may test it"


def check_local_settings(spec: Any, config: EndpointSettings, role: str) -> None:
    """Raise EvaluationError if endpoint settings are given for a model in this process, or the other way round."""
    is_remote = isinstance(spec, str | Path) and is_inspect_model(spec)
    only_remote = (*EndpointSettings.model_fields, "template_opens_thinking")
    without_effect = settings.LocalModelSettings.model_fields if is_remote else only_remote
    given = [f"{role}.{name}" for name in without_effect if name in config.model_fields_set]
    if given and is_remote:
        raise EvaluationError(f"{spec} is not loaded by opct: leave {' and '.join(given)} out.")
    if given:
        raise EvaluationError(
            f"The {role} is loaded in this process: leave {' and '.join(given)} out, or name a model as "
            "inspect:provider/model."
        )


def load_target(
    target: Any, config: AttackConfig, dtype: str | None, out: Path, progress: Progress
) -> tuple[Policy | Model, About]:
    """The target, and its metadata for the results. Raises EvaluationError or ModelError where it cannot be loaded."""
    of_target = config.target
    check_local_settings(target, of_target, "target")
    label: About = {"label": of_target.label} if of_target.label else {}
    if isinstance(target, str | Path) and is_inspect_model(target):
        model, about = _open_endpoint(str(target), of_target, "target")
        return model, {"label": about["model"].rpartition("/")[2], "weights": about, "trained_texts": None, **label}
    dtype = dtype if isinstance(target, str | Path) else None  # a loaded policy keeps its dtype
    target = pinned(target)
    policy = open_target(target, dtype, out, progress, **_model_settings(of_target))
    show_warnings(self_test(policy), progress)
    return policy, {**describe_target(target, policy), **label}


def _model_settings(config: settings.LocalModelSettings) -> dict[str, Any]:
    """Without those that are None, which leave the setting of the run: passed on they would replace it by nothing."""
    return config.model_dump(include=OF_MODEL, exclude_none=True)


def _open_endpoint(name: str, config: Any, role: str) -> tuple[Model, dict[str, Any]]:
    """A model of Inspect with the settings of its endpoint, and what identifies it."""
    asked = name.removeprefix(INSPECT_MODEL), config.base_url, config.model_args
    model, described, address = open_model(*asked, what=f"The {role}'s model", is_target=True)
    model.config = model.config.merge(call_config(model, config))
    return model, {"model": described, **address}


# ---------------------------------------------------------------------------------------------------------- attacker


@dataclass(frozen=True)
class Player:
    """An attacker before its model is loaded.

    Attributes:
        solver: None of one that is trained first.
        identity: what determines its prompts, but for a model.
        model: settings of its model; None if it has none.
        max_tokens: maximum number of tokens sampled for one prompt.
    """

    name: str
    solver: Solver | None
    identity: Mapping[str, Any]
    model: settings.Refine | None = None
    max_tokens: int = 0


def make_player(config: AttackConfig, behaviors: Sequence[Behavior]) -> Player:
    """The attacker of the settings. Raises DataError where its prompts cannot be read or made, EvaluationError or
    ModelError where the name of its model is invalid."""
    chosen = config.attacker
    if isinstance(chosen, settings.BestOfN):
        return Player(chosen.name, best_of_n(chosen.sigma), {"sigma": chosen.sigma, "noise": NOISE})
    if isinstance(chosen, settings.Transfer):
        if chosen.prompts is not None:
            prompts = finished_prompts(chosen.prompts, behaviors)
            shown = {"prompts": digest(prompts)[:12], "n_prompts": sum(map(len, prompts.values()))}
            return Player(chosen.name, transfer_prompts(prompts), shown)
        families = wrapper_families(chosen.families or "held_out")
        # now, not at the first prompt of that family: by then half of the queries are spent
        check_families(behaviors, families, config.seed)
        shown = {"families": families, "seed": config.seed}
        return Player(chosen.name, transfer(families, config.seed), shown)
    if not is_inspect_model(chosen.model) and not is_run_or_adapter(chosen.model):
        check_model_name(chosen.model)
    identity = {"wording": digest(list(WORDING))[:12], "max_tokens": chosen.max_completion_tokens}
    if isinstance(chosen, settings.Grpo):
        return Player(chosen.name, None, identity, None, chosen.max_completion_tokens)
    check_local_settings(chosen.model, chosen, "attacker")
    solver = refine(
        max_tokens=chosen.max_completion_tokens,
        temperature=chosen.temperature,
        reads=Reader(chosen.thinking_tags, chosen.template_opens_thinking, ROLE),
    )
    of_model = chosen.model_dump(include={"temperature", "thinking_tags", "template_opens_thinking"})
    return Player(chosen.name, solver, {**identity, **of_model}, chosen, chosen.max_completion_tokens)


def load_attacker(
    chosen: settings.Refine, target: Any, policy: Policy | Model, config: AttackConfig, dtype: str | None, progress: Any
) -> tuple[Model, dict[str, Any]]:
    """The attacker's model and what identifies it; the target's policy, if it is the same. Raises EvaluationError or
    ModelError where it cannot be loaded."""
    if is_inspect_model(chosen.model):
        return _open_endpoint(chosen.model, chosen, ROLE)
    is_same = all(getattr(chosen, name) == getattr(config.target, name) for name in OF_POLICY)
    if chosen.model != str(target) or not is_same or isinstance(policy, Model):
        progress.stage(f"load {chosen.model}")
        given = _model_settings(chosen) | ({} if dtype is None else {"dtype": dtype})
        policy = load_policy(chosen.model, **given)
        progress.log(f"dtype: {policy.dtype_reason}")
        show_warnings(self_test(policy), progress)
    about = {"model": chosen.model, **policy_identity(policy)}
    return as_inspect_model(policy, batch_size=config.batch_size), about


def policy_identity(policy: Policy) -> dict[str, Any]:
    """What determines a policy's replies, besides sampling."""
    return {
        "weights": policy.weights_hash(),
        "template_hash": policy.renderer.template_hash,
        "chat_template_kwargs": policy.renderer.chat_template_kwargs,
        "dtype": str(policy.dtype).removeprefix("torch."),
    }


# ------------------------------------------------------------------------------------------------------------- judge


@dataclass(frozen=True)
class JudgeOfAttack:
    """The judge of behaviors as a scorer.

    Attributes:
        identity: as a row of results has it.
        about: further settings of the rows: calibration and what is weak about it.
    """

    scorer: Scorer
    identity: Mapping[str, Any]
    about: Mapping[str, Any]


def load_judge_of_attack(config: JudgeConfig) -> JudgeOfAttack:
    """The judge of the settings. Raises EvaluationError where there is no such judge or model, or it does not judge
    harm."""
    if config.name in RULES:
        given = sorted(config.model_fields_set - {"name"})
        # a value that is written but is the default changes nothing
        if any(getattr(config, name) != JudgeConfig.model_fields[name].default for name in given):
            raise EvaluationError(f"The judge {config.name} is rule-based: leave judge.{', judge.'.join(given)} out.")
        agreement = AGREEMENT["jailbreak"]
        said = RULES_WARNING.format(config.name, agreement.text, agreement.errors, agreement.version)
        kappa = {"value": agreement.kappa, "ci_low": agreement.ci_low, "ci_high": agreement.ci_high}
        measured = {"kappa": kappa, "n": agreement.n, "n_unscored": 0}
        of_rules = {"judge_calibration": measured, "judge_warning": said}
        return JudgeOfAttack(rule_judge(config.name), rules_identity(config.name), of_rules)
    harmful = [name for name, rubric in RUBRICS.items() if rubric.label == HARMFUL]
    if config.name not in harmful:
        raise EvaluationError(unknown("judge of an attack", config.name, [*RULES, *harmful]))
    judge = load_judge(config)
    calibration = calibration_of(judge.identity)
    about = {"judge_calibration": calibration, "judge_warning": weakness(calibration)}
    scorer = judge_scorer(judge, judge.identity.name, lambda metadata: True, lambda result: None)
    return JudgeOfAttack(scorer, judge.identity.row(), about)


def judge_weakness(judge: JudgeOfAttack, attacker: str) -> list[str]:
    """A warning where an attacker that writes its prompts is judged by what counts any answer."""
    if judge.identity["name"] != REFUSALS or attacker in ("transfer", "best_of_n"):
        return []
    return [
        "The judge refusals counts any answer as a break, even if the prompt no longer makes the request, and this "
        "attacker writes its prompts. Use the judge answers, a trained judge or a rubric before you trust the rate."
    ]


# --------------------------------------------------------------------------------------------- rules and identity


def rules_of(config: AttackConfig) -> Rules:
    shots = getattr(config.attacker, "shots", 0)
    counterparts = min(max(config.counterpart_episodes, 1), config.episodes)
    return Rules(config.episodes, config.rounds, config.stop, shots, counterparts, config.batch_size, config.seed)


def identity_of(
    config: AttackConfig, subjects: Sequence[Subject], player: Player, judge: JudgeOfAttack, pool: Sequence[Shot]
) -> Identity:
    """What a resumed attack must share with the earlier one, as far as it is known without a model."""
    names = {"max_completion_tokens", "temperature", "thinking_tags", "template_opens_thinking"}
    of_target = config.target.model_dump(include=names)
    texts = {kind: [[one.id, one.text] for one in subjects if one.kind == kind] for kind in (BEHAVIOR, COUNTERPART)}
    return Identity(
        {
            "attacker": {"name": player.name, **player.identity},
            "target": of_target,
            "judge": dict(judge.identity),
            # the batch size changes no attempt, so a resume may choose another
            "rules": {name: value for name, value in asdict(rules_of(config)).items() if name != "batch_size"},
            "behaviors": digest(texts[BEHAVIOR])[:12],
            "counterparts": digest(texts[COUNTERPART])[:12],
            "pool": digest([asdict(shot) for shot in pool])[:12] if pool else None,
        }
    )


def computed_in(measured: Mapping[str, Any]) -> str | None:
    """The dtype of the target's weights, "bfloat16" or "bfloat16, 4bit"; None of an endpoint."""
    return ", ".join(filter(None, (measured.get("dtype"), measured.get("quantization")))) or None


def row_settings(
    config: AttackConfig, identity: Mapping[str, Any], models: Mapping[str, Any], dtype: Any, judge: JudgeOfAttack
) -> dict[str, Any]:
    """The settings of the rows: two attacks are compared only where these are equal.

    Args:
        identity: as far as it is known without a model.
        models: what identifies the attacker's model; nothing does for one that is trained, which has other weights for
            each target.
        dtype: of the target; see `computed_in`.
    """
    names = {"model", "training", "train_behaviors", "train_split"}
    task_args = {
        **identity,
        "budget": config.budget.model_dump(exclude_none=True),
        "attacker_settings": config.attacker.model_dump(mode="json", include=names, exclude_defaults=True),
        "attacker_model": models["attacker_model"],
        "dtype": dtype,
    }
    return {
        "grader": f"{judge.identity['name']} ({judge.identity['model']})",
        "judge": dict(judge.identity),
        **judge.about,
        "source": f"{Path(config.behaviors).name}:{config.split}",
        "task_args": task_args,
    }


def describe_plan(config: AttackConfig, subjects: Sequence[Subject]) -> str:
    rules = rules_of(config)
    maxima = dict.fromkeys((BEHAVIOR, COUNTERPART, BARE), 0)
    for subject in subjects:
        maxima[subject.kind] += len(rules.numbers(subject)) * rules.n_rounds(subject.kind)
    n = {kind: sum(one.kind == kind for one in subjects) for kind in maxima}
    total, limit = sum(maxima.values()), config.budget.max_queries
    ends = "" if limit is None or limit >= total else f"; budget.max_queries stops it at {limit:,}"
    return (
        f"up to {total:,} queries to the target: {maxima[BEHAVIOR]:,} about {pluralize(n[BEHAVIOR], 'behavior')}, "
        f"{maxima[COUNTERPART]:,} about {pluralize(n[COUNTERPART], 'benign counterpart')}, {maxima[BARE]:,} without an "
        f"attack{ends}"
    )
