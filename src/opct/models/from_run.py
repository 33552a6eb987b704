"""Load the policy of a path: `inspect eval TASK --model opct/<path>`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opct.config.loader import load_run_config, load_settings
from opct.config.schema import Q4_MODEL, ModelConfig, TrainConfig
from opct.errors import ModelError
from opct.models.adapters import read_adapter_config
from opct.models.gguf import smollm2_q4_path
from opct.models.names import check_path, name_one_inside
from opct.models.provenance import changed_files, fingerprint_weights
from opct.runs.run_dir import RunDir, run_behind, run_of

if TYPE_CHECKING:
    import torch

    from opct.models.policy import Policy

log = logging.getLogger(__name__)

GIVEN_MODEL = "given_model"  # in the manifest of a run whose base the caller had loaded


def load_policy(path: str, *, thinking_tags: tuple[str, str] | None = None, **settings: Any) -> Policy:
    """Load the newest checkpoint of a run directory, a PEFT adapter with its base, or a model.

    Args:
        path: a run directory or one of its `checkpoints/step-*`, the folder of an adapter, or whatever
            `model.name_or_path` may be.
        thinking_tags: opening and closing tag of a reasoning block; by default those of the run, else of the template.
        settings: of `opct.config.schema.ModelConfig`, such as `dtype` and `device`; they override the run's settings,
            and the run's `trust_remote_code` is ignored. The thinking tags, `chat_template_kwargs` and `quantization`
            of a run are its adapters' too.

    Raises:
        ConfigError: a setting is not one of a model.
        ModelError: the run has no checkpoint, or there is no such folder.
    """
    run, folder = run_of(path), Path(path)
    if run is None:
        check_path(path)  # before torch is imported
    from opct.models.policy import Policy

    behind = run or run_behind(path)
    trained = TrainConfig() if behind is None else load_run_config(behind.config_path)
    load = functools.partial(Policy.load, thinking_tags=thinking_tags or trained.loss.thinking_tags)
    if run is not None:
        return _of_run(run, run.checkpoint_named(path), trained.model, settings, load)
    defaults: dict[str, Any] = {"name_or_path": path}
    if (folder / "adapter_config.json").is_file():
        inherited = trained.model.model_dump(include={"chat_template_kwargs", "quantization", "template_date"})
        defaults = {**adapter_base(folder), "adapter": path, **inherited}
    return load(load_settings(ModelConfig, base={**defaults, **settings}))


def refuse_moved_base(run: RunDir, name: str) -> None:
    """Raise ModelError if a run was trained from a local folder or file of this name, and nothing is there now."""
    files = (run.read_manifest().get("weights") or {}).get("base") or {}
    # a hub model has the key `commit`; the Q4_1 weights are in a cache
    if files and "commit" not in files and name != Q4_MODEL and not Path(name).exists():
        raise ModelError(
            f"{run.path} was trained from {name}, which is not here. If it was moved, set model.name_or_path to its "
            f"new place in {run.config_path}, and in the config that you resume with."
        )


def adapter_base(folder: Path) -> dict[str, Any]:
    """The base model that an adapter names, as settings of a model. Raises ModelError where it names none."""
    adapter = read_adapter_config(folder)
    name = adapter.get("base_model_name_or_path")
    if not name:
        raise ModelError(
            f"{folder / 'adapter_config.json'} does not name the adapter's base model: set base_model_name_or_path "
            "there."
        )
    if Path(name).name == smollm2_q4_path().name:  # in the cache of the machine where the adapter was trained
        return {"name_or_path": Q4_MODEL}
    return {"name_or_path": name, "revision": adapter.get("revision")}


def adapter_folder(adapter: str | None) -> Path | None:
    """The folder of a PEFT adapter: the path itself, or in the last checkpoint of a run directory, which is verified.
    Raises ModelError where there is none; CheckpointError where the checkpoint is corrupt."""
    if adapter is None:
        return None
    RunDir(adapter).latest_checkpoint()  # verifies it
    folder = adapter_now(adapter)
    if folder is None:
        raise ModelError(
            f"model.adapter={adapter!r} is neither a PEFT adapter (no adapter_config.json) nor a run that trained one."
            f"{name_one_inside(Path(adapter))}"
        )
    return folder


def adapter_now(adapter: str | None) -> Path | None:
    """As `adapter_folder`, without verification; None also if it is gone."""
    if adapter is None:
        return None
    folders = [Path(adapter), *(checkpoint / "adapter" for _, checkpoint in RunDir(adapter).checkpoints()[-1:])]
    return next((folder for folder in folders if (folder / "adapter_config.json").is_file()), None)


def refuse_other_base(run: RunDir, base: ModelConfig, base_hash: Callable[[], str] | None) -> None:
    """Raise ModelError if the base of a run has other weights now than the run was trained on.

    A new commit or a copy with other files may hold the same weights, so the hash decides where there is one. Without,
    other files are refused, and a new commit on the hub gives a warning.

    Args:
        base: the settings by which it is loaded.
        base_hash: of its weights in the dtype of the run; None if they are not loaded, or in another one.
    """
    manifest: Mapping[str, Any] = run.read_manifest()
    before, now = (manifest.get("weights") or {}).get("base") or {}, fingerprint_weights(base)
    changed = changed_files(before, now)
    is_unknown = manifest.get(GIVEN_MODEL) and base_hash is not None
    if not (changed or is_unknown):
        return
    if base_hash is not None and base_hash() == manifest.get("base"):
        if other := [line for line in changed if line.startswith("config.json")]:
            log.warning("%s: its base has the same weights and may compute otherwise: %s", run.path, other[0])
        return
    if changed:
        said = (
            f"{run.path} was trained on another base model than {base.name_or_path} is now ({'; '.join(changed)}): "
            "restore that model's files, or name that commit (model.revision)"
        )
        if base_hash is None and before.keys() == now.keys() == {"commit"}:
            log.warning("%s, unless its weights are the same in both.", said)
            return
        raise ModelError(f"{said}.")
    remedy = (
        "Load that model as then and put the adapter of a checkpoint on it with PEFT; opct.evaluate takes "
        "opct.Policy(peft_model, tokenizer)."
    )
    if load_run_config(run.config_path).lora is None:
        remedy = "Evaluate with kl_samples=0, which leaves out the KL to it."
    raise ModelError(
        f"{run.path} was trained on a model that was given to opct.train loaded, and {base.name_or_path} has other "
        f"weights. {remedy}"
    )


def _of_run(
    run: RunDir, checkpoint: Path | None, config: ModelConfig, settings: dict[str, Any], load: Callable[..., Policy]
) -> Policy:
    """A checkpoint of a run, in the dtype that the run began with, named as its model."""
    if checkpoint is None:
        raise ModelError(f"{run.path} has no checkpoint to evaluate: train it first (`opct train ... --resume`).")
    recorded = run.read_manifest().get("dtype")
    adapter = str(checkpoint / "adapter") if (checkpoint / "adapter").is_dir() else None
    if adapter is not None:
        refuse_moved_base(run, settings.get("name_or_path") or config.name_or_path)
    # a folder from outside must not run its code: only `settings`, which the caller gives, may turn it on
    of_run = config.model_dump() | {"adapter": adapter, "trust_remote_code": False}
    base = load_settings(ModelConfig, base={**of_run, **settings})
    if adapter is not None:
        policy = load(base, recorded_dtype=recorded)
        is_as_then = settings.keys().isdisjoint(("dtype", "quantization"))
        refuse_other_base(run, base, (lambda: policy.base_hash()) if is_as_then else None)
        return policy
    trained = base.model_copy(update={"name_or_path": str(checkpoint / "model"), "revision": None})
    policy = load(trained, recorded_dtype=recorded)
    policy.name = base.name_or_path
    policy.set_base(base_loader(run, base, policy.dtype, load))
    return policy


def base_loader(
    run: RunDir, base: ModelConfig, dtype: torch.dtype, load: Callable[..., Policy]
) -> Callable[[], Policy]:
    """What loads the model that a run trained every weight of, in the dtype of the trained one: with `auto`, a second
    timing could choose another."""
    from opct.models.loading import master_hash

    def load_base() -> Policy:
        refuse_other_base(run, base, lambda: master_hash(base))
        return load(base.model_copy(update={"dtype": str(dtype).removeprefix("torch.")}))

    return load_base
