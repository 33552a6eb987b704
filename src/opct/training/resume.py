"""What a checkpoint holds, and when a run may go on from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from opct import distributed
from opct.config.loader import load_config
from opct.config.schema import TrainConfig
from opct.data.dataset import load_training_pairs
from opct.errors import CheckpointError, RunError
from opct.models.from_run import adapter_now
from opct.models.fsdp import placed
from opct.models.loading import TRAINED_ADAPTER
from opct.models.policy import Policy
from opct.models.provenance import Noted, differences, note_adapter, note_model
from opct.runs.checkpoints import read_state
from opct.runs.run_dir import RunDir
from opct.runs.usage import spent_before
from opct.training import sharded_state
from opct.training.setup import Setup

# settings that may differ between a run and its resumption: they change when it ends and what it writes, not its steps
FREE_SETTINGS = {"save_steps", "save_total_limit", "report_to", "output_dir", "stop", "vllm", "parallel"}
FREE_INSIDE = {"rollout": {"max_mismatch_kl"}, "teacher": {"check_behaviors", "check_hazards", "check_tokens"}}
LENGTH_SETTINGS = {
    "max_steps",
    "num_train_epochs",
}  # free as well where the learning rate does not depend on the length
COUNTERS = ("step", "best_kl", "best_step", "reference_kl", "reference_loss", "steps_above")


@dataclass
class SavedState:
    """What changes while a run trains, besides the policy's weights and the teacher's."""

    optimizer: torch.optim.Optimizer
    step: int = 0
    best_kl: float | None = None
    best_step: int | None = None
    reference_kl: float = 0.0
    reference_loss: float = 0.0
    steps_above: int = 0


def write_checkpoint(run: RunDir, setup: Setup, state: SavedState) -> None:
    """Weights, optimizer, teacher and counters, complete or not at all.

    Raises:
        CheckpointError: it could not be written; the last good one is intact.
    """

    sharded = setup.policy.backbone.shards is not None and not setup.policy.has_adapter

    def write(folder: Path | None) -> None:
        if sharded:
            sharded_state.write(folder, setup.policy, setup.teacher, state.optimizer)
            return
        assert folder is not None
        setup.policy.save(folder / ("adapter" if setup.policy.has_adapter else "model"))
        saved = {"optimizer": state.optimizer.state_dict(), "teacher": setup.teacher.state_dict()}
        with open(folder / "state.pt", "wb") as file:  # given a path, torch does not say why it could not write
            torch.save(saved, file)

    counters = {name: getattr(state, name) for name in COUNTERS} | {"teacher": setup.teacher.identity()}
    if distributed.is_main():
        run.save_checkpoint(state.step, write, counters)
    elif sharded:
        write(None)


def latest_checkpoint(run: RunDir) -> Path | None:
    """The newest checkpoint, verified by the main process and there for all of them.

    Raises:
        CheckpointError: it is corrupt, or a process does not see it.
    """
    checkpoint = distributed.from_main(run.latest_checkpoint() if distributed.is_main() else None)
    if checkpoint is not None and not checkpoint.is_dir():
        raise CheckpointError(
            f"Process {distributed.rank()} does not see {checkpoint}: the output_dir must be on a file system that all "
            "machines of the run share."
        )
    return checkpoint


def load_checkpoint(checkpoint: Path, setup: Setup, state: SavedState) -> None:
    """Put a checkpoint's weights, optimizer, teacher and counters in place.

    Raises:
        CheckpointError: its tensors do not fit the model.
    """
    try:
        if (checkpoint / sharded_state.FOLDER).is_dir():
            sharded_state.load(checkpoint, setup.policy, setup.teacher, state.optimizer)
        else:
            device = (
                setup.policy.device if setup.policy.backbone.shards is None else "cpu"
            )  # each takes its part from there
            saved = torch.load(checkpoint / "state.pt", map_location=device, weights_only=True)
            load_weights(setup.policy, checkpoint)
            sharded_state.place_optimizer(saved["optimizer"], setup.policy, state.optimizer)
            sharded_state.place_teacher(saved["teacher"], setup.teacher)
    except (KeyError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"The checkpoint {checkpoint} does not fit this model and config: {error}") from error
    kept = read_state(checkpoint)
    for name in COUNTERS:
        setattr(state, name, kept.get(name, getattr(state, name)))
    teacher = setup.teacher.identity()
    if kept["teacher"] != teacher:
        raise CheckpointError(
            f"The teacher of {checkpoint} does not come back: its hash is {teacher}, and was {kept['teacher']}. "
            "Put the model and adapter of the run back, or start another run."
        )


def load_weights(policy: Policy, checkpoint: Path) -> None:
    """Copy the trained weights of a checkpoint into the policy, bit for bit."""
    from safetensors.torch import load_file

    if policy.has_adapter:
        from peft import set_peft_model_state_dict

        tensors = load_file(checkpoint / "adapter" / "adapter_model.safetensors", device=str(policy.device))
        result: Any = set_peft_model_state_dict(policy.model, tensors, adapter_name=TRAINED_ADAPTER)
        unexpected = list(result.unexpected_keys)
    else:
        tensors = {
            k: v
            for file in sorted((checkpoint / "model").glob("*.safetensors"))
            for k, v in load_file(file, device=str(policy.device)).items()
        }
        own = policy.model.state_dict()
        tensors = {name: placed(value, own[name]) if name in own else value for name, value in tensors.items()}
        missing, unexpected = policy.model.load_state_dict(tensors, strict=False)
        tied = set(policy.model.state_dict()) - {name for name, _ in policy.model.named_parameters()}
        unexpected += sorted(set(missing) - tied)
    if unexpected:
        raise CheckpointError(f"{checkpoint} was made by another model: {', '.join(unexpected[:5])} do not match.")


def origin(run: RunDir, config: TrainConfig) -> dict[str, Any]:
    """What a run begins with, for its manifest.

    weights: the files of the base and of the adapter that it goes on from, so that it can be told later, without a
        model, whether they are the same.
    earlier: where it goes on from an adapter, the steps and seconds that this took until the run began; else None.
    """
    manifest = run.read_manifest()
    before = manifest.get("weights")
    weights = _weights_now(config, before or {})
    adapter = None if config.model.adapter is None else adapter_now(config.model.adapter)
    if "data" not in manifest:  # it begins
        return {"weights": weights, "earlier": None if adapter is None else spent_before(adapter)}
    if before is None:  # it began before this was noted: whether the adapter is still the same is not known
        weights["adapter"] = {}
    return {"weights": weights, "earlier": manifest.get("earlier")}


def _weights_now(config: TrainConfig, before: Mapping[str, Noted]) -> dict[str, Noted]:
    """The files of the base and of the adapter to go on from; none of what is not there any more."""
    folder = None if config.model.adapter is None else adapter_now(config.model.adapter)
    return {
        "base": note_model(config.model, before.get("base")),
        "adapter": {} if folder is None else note_adapter(folder, before.get("adapter")),
    }


def refuse_other_run(run: RunDir, config: TrainConfig, identity: Mapping[str, Any]) -> None:
    """Refuse to resume with other data, another model, another adapter, another teacher or other settings.

    Raises:
        RunError: names everything that differs.
    """
    manifest = run.read_manifest()
    faults = []
    if "data" not in manifest:
        return  # it was stopped before it began
    faults += _data_faults(manifest["data"], identity["data"])
    for name, what in (
        ("base", "the base model's weights"),
        ("teacher", "the teacher's weights"),
        ("template", "the chat template"),
        ("dtype", "the dtype"),
    ):
        if manifest.get(name) != identity[name]:
            faults.append(f"{what} changed ({manifest.get(name)} then, {identity[name]} now)")
    faults += _weight_faults(manifest, config, ("adapter",))  # the base was loaded, and is compared above
    faults += _setting_faults(run, config)
    if faults:
        raise RunError(
            f"{run.path} cannot be resumed as the same run:\n  "
            + "\n  ".join(faults)
            + "\nPut it back, or start another run in another output_dir."
        )


def is_finished(run: RunDir, config: TrainConfig, *, remedy: str = "replace the run with --overwrite") -> bool:
    """True if the run in that folder has trained all the steps that `config` asks for; False if there is none.

    Where the number of steps follows from the pairs (`max_steps: null`), it is the one that the run wrote down; had the
    run another `max_steps` or `num_train_epochs`, resuming finds the number. Files of the base or of the adapter that
    are not there any more are not compared, nor those of a run that noted none.

    Args:
        remedy: what a person can do where it is another run, in words.

    Raises:
        RunError: the run in that folder was made with other settings, other data, another base model or another
            adapter to go on from, or has trained for longer.
        DataError: the data are not there any more, or faulty.
    """
    if not run.is_run or not run.config_path.exists():
        return False
    manifest = run.read_manifest()
    faults = _setting_faults(run, config)
    if not faults and "data" in manifest:
        faults = _data_faults(manifest["data"], load_training_pairs(config).hashes)
        faults += _weight_faults(manifest, config)
    total = config.max_steps or (manifest.get("total_steps") if _is_as_long(run, config) else None)
    steps = [step for step, _ in run.checkpoints()]
    last = max(steps, default=0)
    if not faults and config.max_steps is not None and last > config.max_steps:
        faults = [f"it has trained {last} steps, and max_steps is {config.max_steps}"]
    if faults:
        raise RunError(
            f"{run.path} holds a run made with other settings, data or weights:\n  "
            + "\n  ".join(faults)
            + f"\nPut them back, {remedy}, or choose another output_dir."
        )
    return total is not None and last >= total


def refuse_longer_run(run: RunDir, step: int, total_steps: int) -> None:
    """Raises RunError where a run that is resumed has trained for longer than is asked of it."""
    if step > total_steps:
        raise RunError(
            f"{run.path} has trained {step} steps, and its settings ask for {total_steps} now: ask for as many again, "
            "or start another run in another output_dir."
        )


def _is_as_long(run: RunDir, config: TrainConfig) -> bool:
    """Whether the settings that the number of steps follows from are those of the run."""
    before = load_config(run.config_path)
    return all(getattr(before, name) == getattr(config, name) for name in LENGTH_SETTINGS)


def _weight_faults(
    manifest: Mapping[str, Any], config: TrainConfig, of: Sequence[str] = ("base", "adapter")
) -> list[str]:
    """Which of the files that a run began with are other ones now."""
    before = manifest.get("weights") or {}
    now = _weights_now(config, before)
    names = {
        "base": f"the base model {config.model.name_or_path}",
        "adapter": f"the adapter that it went on from, {config.model.adapter},",
    }
    found = {part: differences(before.get(part) or {}, now[part]) for part in of}
    return [f"{names[part]} changed ({'; '.join(files)})" for part, files in found.items() if files]


def _data_faults(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Which parts of the data are other ones than those that the run wrote down; both are hashes by part."""
    return [
        f"the {name.replace('_', ' ')} changed (hash {before.get(name)} then, {found} now)"
        for name, found in now.items()
        if before.get(name) != found
    ]


def _setting_faults(run: RunDir, config: TrainConfig) -> list[str]:
    """Which settings differ from those of the run, where that makes it another run."""
    before = load_config(run.config_path).model_dump(exclude=FREE_INSIDE) if run.config_path.exists() else {}
    now = config.model_dump(exclude=FREE_INSIDE)
    if config.method == "grpo" and before:  # a file of its attack's folder, which may move; its hash is compared
        before["data"]["pairs"] = now["data"]["pairs"]
    free = FREE_SETTINGS | (LENGTH_SETTINGS if config.may_go_on else set())
    return [
        f"the setting {key} changed ({_difference(before[key], now[key])})"
        for key in sorted(before)
        if key not in free and before[key] != now[key]
    ]


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        return ", ".join(f"{k}: {before[k]!r} then, {now[k]!r} now" for k in before if before[k] != now.get(k))
    return f"{before!r} then, {now!r} now"
