"""The target of an evaluation: loads a run, an adapter or a model, and gives its metadata and output folder."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from opct.config.loader import load_run_config
from opct.config.schema import ModelConfig
from opct.data.duplicates import read_trained_texts
from opct.data.reasoning import Reasoning
from opct.errors import CheckpointError, EvaluationError, RunError
from opct.evals.run import About
from opct.models.from_run import adapter_base, load_policy
from opct.models.loading import with_weights
from opct.runs.checkpoints import weight_hashes
from opct.runs.console import Progress
from opct.runs.io import file_sha256
from opct.runs.run_dir import RunDir, run_behind, run_of

if TYPE_CHECKING:
    from opct.models.policy import Policy

Target: TypeAlias = "str | Path | Policy"
INSPECT_MODEL = "inspect:"
"""Prefix of a model of Inspect, since a hub id looks like provider/model, too."""


def _check_loaded(target: Policy) -> None:
    """Raise EvaluationError for what is no policy, such as a model of transformers."""
    if not hasattr(target, "renderer"):
        raise EvaluationError(
            f"The target is a {type(target).__name__}: give a path, a name, or opct.Policy(model, tokenizer)."
        )


def path_of(target: Target) -> str | Path | None:
    """A path, or the checkpoint that a loaded policy was saved as at the end of its training; None where there is none,
    or it has other weights now (of a run that went on, or was replaced)."""
    if isinstance(target, str | Path):
        return target
    if target.saved is not None:
        with contextlib.suppress(CheckpointError):
            if weight_hashes(target.saved[0]) == target.saved[2]:
                return target.saved[0]
    return None


def is_inspect_model(target: Target) -> bool:
    """Whether the target is `inspect:provider/model`: behind an API, a server, or another library."""
    return isinstance(target, str | Path) and str(target).startswith(INSPECT_MODEL)


def pinned(target: Target) -> Target:
    """The target; a run as its newest checkpoint, since one that trains on would be loaded at one step and described at
    a later one."""
    run = run_of(target) if isinstance(target, str | Path) else None
    return target if run is None else run.checkpoint_named(str(target)) or target


def open_target(target: Target, dtype: str | None, out: Path, progress: Progress, **settings: Any) -> Policy:
    """Load the policy to evaluate; by default in the dtype of the results in `out`, if any.

    Args:
        settings: as `load_policy` takes them.

    Raises:
        EvaluationError: a loaded policy has other settings, or other weights than at the end of its training; or the
            target is none.
        ModelError, RunError: it cannot be loaded.
    """
    if not isinstance(target, str | Path):
        _check_loaded(target)
        if target.saved is not None and target.weights_hash() != target.saved[1]:
            raise EvaluationError(
                "The weights of this policy are not those that its training ended with: they were changed, or its "
                f"adapter is off. Evaluate the run by its path, {target.saved[0].parent.parent}, or what these weights "
                "are now as opct.Policy(result.model, tokenizer)."
            )
        if dtype is not None:
            raise EvaluationError(f"A loaded policy keeps its dtype, {target.dtype}: make it with another dtype.")
        tags = settings.get("thinking_tags")
        for name, current, given in (
            ("quantization", target.quantization, settings.get("quantization")),
            ("chat_template_kwargs", target.renderer.chat_template_kwargs, settings.get("chat_template_kwargs")),
            ("thinking_tags", target.renderer.reasoning, tags and Reasoning.of_tags(tags)),
        ):
            if given not in (None, current):
                raise EvaluationError(f"A loaded policy keeps its {name}, {current}: make it with another value.")
        return target
    progress.stage(f"load {target}")
    earlier = _dtype_of_results(target, out) if dtype is None else None
    settings |= {"dtype": dtype or earlier} if dtype or earlier else {}
    policy = load_policy(str(target), **settings)
    progress.log(f"dtype: {earlier}, that of the results in {out}" if earlier else f"dtype: {policy.dtype_reason}")
    return policy


def _dtype_of_results(target: str | Path, out: Path) -> str | None:
    """The dtype of the results in a folder; None if there are none, or they are of another model, or
    the target is a run, which has its own.
    """
    if run_of(target) is not None:
        return None
    try:
        run = RunDir(out).read_results()["run"]
    except RunError:  # there are none, or they are damaged: the evaluation writes it again, from the logs
        return None
    folder = Path(target)
    is_adapter = (folder / "adapter_config.json").is_file()
    base = adapter_base(folder) if is_adapter else {"name_or_path": str(target)}
    model = with_weights(ModelConfig.model_validate(base)).name_or_path
    # a second timing could choose the other dtype, and the earlier logs would then be of other weights
    return run.get("dtype") if run.get("model") == model else None


def describe_target(target: Target, policy: Policy) -> About:
    """Metadata of the run, model or policy for the results: label, method, seed, weights, and training data."""
    path = path_of(target)
    run = None if path is None else run_of(path)
    if path is None or run is None:
        folder = Path(target) if policy.has_adapter and isinstance(target, str | Path) else None
        stored = sorted(folder.glob("*.safetensors")) if folder else []
        files = {path.name: file_sha256(path) for path in stored}
        label = "trained" if policy.has_adapter else "base"
        weights = {"sha256": files} if files else {"hash": policy.weights_hash()}
        return {"label": label, "weights": weights, **trained_on(target, policy)}
    config = load_run_config(run.config_path)
    about: About = {
        "label": config.method,
        "method": config.method,
        "train_seed": config.seed,
        "name": run.path.name,
        **trained_on(target, policy),
    }
    checkpoint = run.checkpoint_named(path)
    if checkpoint is not None:
        step = int(checkpoint.name.removeprefix("step-"))
        about["weights"] = {"step": step, "sha256": weight_hashes(checkpoint)}
    manifest, last = run.read_manifest(), max((step for step, _ in run.checkpoints()), default=0)
    total = last if manifest.get("ended_at") == last else manifest.get("total_steps", 0)
    if last < total and run.in_use:
        about["warnings"] = [f"{run.path} is still trained, here at step {last} of {total}: evaluate it at the end."]
    elif last < total:
        about["warnings"] = [
            f"The training of {run.path} stopped after step {last} of {total}: resume it (`opct train "
            f"{run.config_path} --resume`), then evaluate again."
        ]
    return about


def default_out(target: Target) -> Path:
    """The folder of results: the run directory, also of a policy that was trained in it, else `runs/eval-<target>`."""
    if not isinstance(target, str | Path):
        _check_loaded(target)
        if (checkpoint := path_of(target)) is not None and (run := run_of(checkpoint)) is not None:
            return run.path
        return Path("runs") / f"eval-{_file_name(target.name)}{'-trained' if target.has_adapter else ''}"
    run = run_of(target)
    if run is not None and run.path == Path(str(target)):
        return run.path
    if not os.path.exists(target):  # False too for what cannot be a path
        return Path("runs") / f"eval-{_file_name(str(target))}"
    path = Path(target).resolve()
    # from its path, so that two adapters of one base do not share a folder
    inside = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return Path("runs") / f"eval-{_file_name(str(inside)) or path.name}"


def trained_on(target: Target, policy: Policy) -> About:
    """Training data of the weights according to their run; unknown for an adapter without a run."""
    path = path_of(target)
    run = None if path is None else run_behind(path)
    if run is None:
        return {"trained_texts": None} if policy.has_adapter else {}
    manifest = run.read_manifest()
    return {
        "trained_texts": read_trained_texts(run),
        "trained_families": manifest.get("trained_families", ()),
        "trained_questions": manifest.get("trained_questions", ()),
    }


def _file_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")
