"""From what a person names to who plays: target, attacker, judge, behaviours; and what must not be mixed up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from opct.attack.best_of_n import BestOfN
from opct.attack.config import BUILTIN, AttackSettings
from opct.attack.grpo import TrainingPlan, plan_training
from opct.attack.models import Endpoint, InspectModel, LocalModel, Sampling, Thinking
from opct.attack.protocol import BEHAVIOR, LOADED, TWIN, Attacker, ChatModel, Judge, Shot, Subject
from opct.attack.refine import Refine
from opct.attack.scoring import ANSWERS, RULES, RefusalJudge, Scorer
from opct.attack.store import AttackDir
from opct.attack.transfer import FamilyTransfer, PromptTransfer, finished_prompts, load_successes
from opct.config.judge import EndpointSettings, JudgeConfig
from opct.config.loader import load_config, load_settings
from opct.data.behaviors import Behavior, builtin_behaviors, load_behaviors
from opct.data.duplicates import cross_duplicates, read_trained_texts
from opct.data.render import THINKING_TAGS
from opct.errors import DataError, EvaluationError, unknown
from opct.evals.tasks.jailbreak import first_behaviors, split_behaviors
from opct.judges.factory import endpoint_address, load_judge, open_model
from opct.judges.llm import LLMJudge
from opct.judges.rubrics import RUBRICS
from opct.models.from_run import load_policy
from opct.models.loading import check_model_name
from opct.runs.progress import Progress
from opct.runs.run_dir import run_behind, run_of

if TYPE_CHECKING:
    from opct.models.policy import Policy

HARMFUL = "harmful"
"""What a judge of an attack says of replies."""
INSPECT = "inspect:"
"""Before the name of a model of Inspect: a hub id looks the same as `provider/model`."""
DEFAULT_ATTACKER = "smollm2-135m-instruct"
SHOWN = 3
PRACTISED_HELD_IN = (
    "the target may refuse these more than others, so that the attacker earns less while it practises, and is weaker "
    "against this target than against one that was not trained on them. Let it practise on others (--train-split, "
    "--train-behaviors)."
)


class Models:
    """Loads each policy once, also where attacker and target are the same.

    Args:
        dtype: of every policy; None: as `opct eval` chooses it.
        recorded: dtypes of before a resume, by the name of the model: where none is given, or `auto`, they are taken
            again, since a second timing may end otherwise.
        concurrency: most calls at once to a model behind an endpoint; None: as many as its provider takes.
    """

    def __init__(
        self,
        dtype: str | None,
        progress: Progress,
        recorded: Mapping[str, str] = MappingProxyType({}),
        *,
        concurrency: int | None = None,
    ):
        self._dtype, self._progress, self._recorded, self._concurrency = dtype, progress, recorded, concurrency
        self._policies: dict[str, Policy] = {}

    def open(
        self,
        spec: str | Path | Policy,
        sampling: Sampling,
        role: str,
        endpoint: Endpoint | None = None,
        thinking: Thinking | None = None,
    ) -> ChatModel:
        """A model by what names it, or a loaded policy.

        Raises:
            EvaluationError, ModelError: it cannot be loaded, or an endpoint is given of what has none.
        """
        endpoint, thinking, name = endpoint or Endpoint(), thinking or Thinking(), str(spec)
        _refuse_endpoint(spec, role, endpoint, thinking)
        if not isinstance(spec, str | Path):
            return LocalModel(spec, sampling, source=LOADED, thinking_tags=thinking.tags or THINKING_TAGS)
        if _is_behind_endpoint(spec):
            what = f"The {role}'s model"
            model, described, address = open_model(
                name.removeprefix(INSPECT), endpoint.base_url, endpoint.model_args, what=what
            )
            settings = EndpointSettings(max_connections=self._concurrency)
            return InspectModel(
                model, sampling, settings, name=described, address=address, thinking=thinking, role=role
            )
        if name not in self._policies:
            self._progress.stage(f"load {name}")
            dtype = self._recorded.get(name, self._dtype) if self._dtype in (None, "auto") else self._dtype
            self._policies[name] = load_policy(name, **({} if dtype is None else {"dtype": dtype}))
            self._progress.log(f"dtype: {self._policies[name].dtype_reason}")
        tags = thinking.tags or trained_tags(spec)
        return LocalModel(self._policies[name], sampling, source=name, thinking_tags=tags)


def _is_behind_endpoint(spec: str | Path | Policy) -> bool:
    return isinstance(spec, str | Path) and str(spec).startswith(INSPECT)


def _refuse_endpoint(spec: str | Path | Policy, role: str, endpoint: Endpoint, thinking: Thinking) -> None:
    """Raises EvaluationError where it is said how an endpoint is reached or what it does, and there is none."""
    if _is_behind_endpoint(spec):
        return
    if endpoint.is_given:
        raise EvaluationError(
            f"The {role} is loaded in this process, and so has no address and no arguments of a provider: leave "
            f"{role}_base_url and {role}_args out, or name a model as inspect:provider/model."
        )
    if thinking.template_opens is not None:
        raise EvaluationError(
            f"The {role} is loaded in this process, where its chat template is read: leave "
            f"{role}_template_opens_thinking out."
        )


def trained_tags(spec: str | Path) -> tuple[str, str]:
    """What opens and closes a thinking block, as the configuration of a model's run has it; by default without one."""
    run = run_behind(spec)
    return THINKING_TAGS if run is None else load_config(run.config_path).loss.thinking_tags


def check_target(target: str | Path | Policy, settings: AttackSettings) -> str:
    """Whose model is attacked, in one line for a person.

    Raises:
        EvaluationError: it is behind an endpoint, and nobody said that it is theirs to test.
    """
    if not isinstance(target, str | Path):
        return f"target: {target.name}, a policy loaded in this process"
    name = str(target)
    if not name.startswith(INSPECT):
        where = "a folder or file on this machine" if Path(name).exists() else "weights that this machine loads"
        return f"target: {name}, {where}"
    asked = name.removeprefix(INSPECT)
    address = endpoint_address(asked, settings.target_base_url)
    where = "" if address is None else f" at {address}"
    if not settings.confirm_remote:
        raise EvaluationError(
            f"The target {asked}{where} is a model of Inspect, which may run elsewhere and belong to somebody else. "
            "Attack it only if it is yours, or its owner has agreed to this test; then say so with --confirm-remote."
        )
    return f"target: {asked}, asked through Inspect{where}; you confirmed that it is yours to test"


def known_behaviors(source: str | Path) -> list[Behavior]:
    """All behaviours of a source, of every split.

    Raises:
        DataError: they cannot be read.
    """
    return builtin_behaviors() if str(source) == BUILTIN else load_behaviors(source)


def chosen_behaviors(settings: AttackSettings) -> list[Behavior]:
    """The behaviours that are attacked.

    Raises:
        DataError, EvaluationError: they cannot be read, or none is left.
    """
    known = known_behaviors(settings.behaviors)
    return first_behaviors(split_behaviors(settings.split, known), settings.n_behaviors, settings.seed)


def attacker_spec(settings: AttackSettings) -> str:
    """The attacker's model."""
    return settings.attacker_model or DEFAULT_ATTACKER


def practice_behaviors(settings: AttackSettings) -> list[Behavior]:
    """Those that an attacker that is trained practises on, of which `plan_training` leaves out what is attacked.

    Raises:
        DataError, EvaluationError: they cannot be read, or none is in the split.
    """
    source = settings.behaviors if settings.train_behaviors is None else settings.train_behaviors
    known = known_behaviors(source)
    try:
        return split_behaviors(settings.train_split or "train", known)
    except EvaluationError as error:
        raise EvaluationError(f"{source}, on which the attacker is to practise (train_split): {error}") from None


def training_of(settings: AttackSettings, behaviors: Sequence[Behavior], folder: AttackDir) -> TrainingPlan | None:
    """How the attacker will be trained; None of one that is not.

    Raises:
        EvaluationError: the attacker's model is behind an endpoint, or is an adapter.
        ConfigError, DataError, EvaluationError: see `plan_training` and `practice_behaviors`.
    """
    if settings.attacker != "grpo":
        return None
    spec = attacker_spec(settings)
    if spec.startswith(INSPECT):
        raise EvaluationError(f"The attacker grpo trains its model, and {spec} is behind an endpoint: name weights.")
    if run_of(spec) is not None or (Path(spec) / "adapter_config.json").is_file():
        raise EvaluationError(
            f"The attacker grpo trains a fresh adapter on a model, and {spec} is a run or an adapter: name the model."
        )
    return plan_training(
        spec,
        practice_behaviors(settings),
        behaviors,
        settings.rules,
        settings.attacker_sampling,
        folder,
        settings.training or (),
        dtype=settings.dtype,
        thinking_tags=settings.attacker_thinking.tags,
    )


def subjects_of(behaviors: Sequence[Behavior]) -> tuple[list[Subject], list[Subject]]:
    """(behaviours, those of their benign twins that there are)."""
    own = [Subject(one.id, one.behavior, BEHAVIOR, one.category) for one in behaviors]
    twins = [Subject(one.id, one.benign, TWIN, one.category) for one in behaviors if one.benign is not None]
    return own, twins


def open_pool(path: str | Path | None, behaviors: Sequence[Behavior]) -> list[Shot]:
    """Successes to show an attacker, none of which is about a behaviour that is attacked.

    Raises:
        DataError: the file cannot be read, or a success in it is about one of these behaviours or a near-duplicate.
    """
    if path is None:
        return []
    shots = load_successes(path)
    near = cross_duplicates([shot.behavior for shot in shots], [one.behavior for one in behaviors])
    if near:
        pairs = dict.fromkeys((shots[i].behavior_id, behaviors[j].id) for i, j in near.items())
        faults = [f"{a} is attacked" if a == b else f"{a} is a near-duplicate of {b}" for a, b in pairs]
        raise DataError(
            f"{path} holds {len(near)} successes on behaviours that are attacked now: an attacker that has seen these "
            "would not be tested on others. Take another split of behaviours, or another pool:",
            tuple(faults[:50]),
        )
    return shots


def open_refine(settings: AttackSettings, models: Models) -> Refine:
    """The attacker refine, with its model.

    Raises:
        EvaluationError, ModelError: its model cannot be loaded.
    """
    spec, endpoint, thinking = attacker_spec(settings), settings.attacker_endpoint, settings.attacker_thinking
    return Refine(models.open(spec, settings.attacker_sampling, "attacker", endpoint, thinking))


def open_modelless(settings: AttackSettings, behaviors: Sequence[Behavior]) -> Attacker | None:
    """The attacker that is meant, where it has no model; else None, once its model is seen to be named as one can be.

    Raises:
        DataError: its prompts cannot be read or made. EvaluationError, ModelError: it cannot be as it is set.
    """
    if settings.attacker in ("refine", "grpo"):
        spec = attacker_spec(settings)
        _refuse_endpoint(spec, "attacker", settings.attacker_endpoint, settings.attacker_thinking)
        if not _is_behind_endpoint(spec):
            check_model_name(spec)
        return None
    if settings.attacker == "best_of_n":
        return BestOfN(settings.noise)
    if settings.prompts is not None:
        return PromptTransfer(finished_prompts(settings.prompts, behaviors), episodes=settings.episodes)
    attacker = FamilyTransfer(settings.transfer_families, episodes=settings.episodes, seed=settings.seed)
    attacker.check(behaviors)
    return attacker


def open_scorer(settings: AttackSettings, cache: Path) -> Scorer:
    """The judge that is meant.

    Args:
        cache: file of judgements that were paid for.

    Raises:
        EvaluationError: there is no such judge or model, or it judges something else than harm.
    """
    if settings.judge in RULES:
        of_a_model = settings.judge_base_url or settings.judge_args or settings.judge_settings
        if settings.judge_model is not None or settings.threshold is not None or of_a_model:
            raise EvaluationError(
                f"The judge {settings.judge} is made of rules: leave its model, how that is reached and asked, and the "
                "threshold out."
            )
        return Scorer(RefusalJudge(on_topic=settings.judge == ANSWERS))
    rubric = RUBRICS.get(settings.judge)
    if rubric is not None:
        _refuse_other_meaning(rubric.name, rubric.label)  # before its model is asked for
    elif not Path(settings.judge).is_dir():
        harmful = [name for name, other in RUBRICS.items() if other.label == HARMFUL]
        known = unknown("judge of an attack", settings.judge, [*RULES, *harmful])
        raise EvaluationError(f"{known} Anything else is a folder made by `opct judge train`.")
    config = load_settings(
        JudgeConfig,
        base={
            **settings.judge_settings,
            "name": settings.judge,
            "model": settings.judge_model,
            "base_url": settings.judge_base_url,
            "model_args": dict(settings.judge_args),
            "threshold": settings.threshold,
        },
    )
    judge: Judge = load_judge(config, cache=cache)
    _refuse_other_meaning(judge.identity.name, judge.identity.label)
    return Scorer(judge, is_local=not (isinstance(judge, LLMJudge) and not judge.client.is_local))


def _refuse_other_meaning(name: str, meaning: str) -> None:
    if meaning != HARMFUL:
        raise EvaluationError(
            f"The judge {name} says which replies are {meaning}, and an attack needs {HARMFUL}: take strongreject, "
            "answers, refusals, or a judge trained for that."
        )


def held_in_warnings(
    target: Any, policy: Policy | None, behaviors: Sequence[Behavior], practised: Sequence[Behavior] = ()
) -> list[str]:
    """What of the behaviours that are attacked, and practised on, the target was trained on, as its run says.

    Args:
        policy: of a target in this process.
        practised: of an attacker that is trained.
    """
    if policy is None:
        return ["It is not known which behaviours a model behind an endpoint was trained on."]
    run = run_behind(target) if isinstance(target, str | Path) else None
    texts = None if run is None else read_trained_texts(run)
    found = []
    if texts is not None:
        for what, own, follows in (
            ("attacked behaviours", behaviors, "what is measured is partly held in."),
            ("behaviours that the attacker practises on", practised, PRACTISED_HELD_IN),
        ):
            near = cross_duplicates([one.behavior for one in own], texts.behaviors)
            if near:
                shown = ", ".join([own[i].id for i in near][:SHOWN]) + (", ..." if len(near) > SHOWN else "")
                found.append(
                    f"{len(near)} of the {len(own)} {what}, or near-duplicates of them, were trained on ({shown}): "
                    f"{follows}"
                )
    if (texts is None or not texts.is_complete) and (run is not None or policy.has_adapter):
        found.append(
            "It is not known which behaviours this target was trained on, so those attacked may be among them."
        )
    return found
