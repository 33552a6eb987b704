"""Settings from a YAML file, dotted overrides and a preset: every fault at once, each with its place and the remedy.

Layers, the later one wins: defaults of `TrainConfig` < `preset` < the YAML file < overrides (`a.b=c`, left to right).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from opct.config.presets import PRESETS
from opct.config.schema import Section, TrainConfig
from opct.config.yaml_tree import CoreDumper, Entry, Fault, from_plain, read_file, read_override
from opct.errors import ConfigError

# What other tools call these settings; the error about such a name gives ours.
OTHER_WORDS = {
    "batch_size": "optim.prompts_per_step",
    "per_device_train_batch_size": "optim.prompts_per_step",
    "betas": "optim.adam_beta1",
    "epochs": "num_train_epochs",
    "gamma": "loss.kl_discount_factor",
    "group_size": "rollout.num_generations",
    "gradient_accumulation_steps": "optim.micro_batch_tokens",
    "gradient_clipping": "optim.max_grad_norm",
    "lora_alpha": "lora.alpha",
    "lora_r": "lora.r",
    "lora_rank": "lora.r",
    "rank": "lora.r",
    "lr": "optim.learning_rate",
    "lr_scheduler": "optim.lr_scheduler_type",
    "max_new_tokens": "rollout.max_completion_tokens",
    "max_tokens": "rollout.max_completion_tokens",
    "model_name_or_path": "model.name_or_path",
    "num_samples": "rollout.num_generations",
    "steps": "max_steps",
    "train_file": "data.pairs",
    "warmup": "optim.warmup_steps",
}


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), preset: str | None = None
) -> TrainConfig:
    """The checked settings of a YAML file, with a preset under it and dotted overrides over it.

    Args:
        path: a YAML file; None starts from the defaults.
        overrides: `section.name=value` each, the value read as YAML: `lora=null`, `data.pairs=[a.jsonl, b.jsonl]`.
        preset: name of a preset of `opct.config.presets`; wins over the file's own `preset:`.

    Raises:
        ConfigError: with every fault at once, each with file:line (or the override), the dotted name, the value,
            what is expected, and the nearest valid name.
    """
    faults: list[Fault] = []
    tree = Entry({}, "defaults")
    if path is not None:
        tree = read_file(Path(path), faults)
    for text in overrides:
        if (entry := read_override(text, faults)) is not None:
            tree = entry.over(tree)
    tree = _with_preset(tree, preset, faults)
    config = _validate(tree, faults)
    if faults or config is None:
        source = f"of {path} " if path is not None else ""
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "".join(f"\n  {fault.line}" for fault in sorted(faults, key=lambda fault: _line_number(fault, path)))
        raise ConfigError(f"The settings {source}have {count}; nothing was started:{lines}")
    return config


def _line_number(fault: Fault, path: str | Path | None) -> float:
    """Line of the file that a fault is on; what is not in the file comes after it."""
    found = re.match(r":(\d+)", fault.line.removeprefix(str(path)))
    return int(found[1]) if found else float("inf")


def dump_config(config: TrainConfig) -> str:
    """The settings as YAML that `load_config` reads back to an equal config."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=100)


def config_schema() -> dict[str, Any]:
    """JSON schema of a config file, `preset` included: point an editor at it for completion and checks."""
    schema = TrainConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["preset"] = {
        "description": "Named settings laid under this file.",
        "oneOf": [{"const": name, "description": preset.source} for name, preset in PRESETS.items()],
    }
    return schema


def packaged_config(name: str) -> Path:
    """Path of a config that is installed with the package, such as `quickstart`.

    Raises:
        ConfigError: there is none of that name.
    """
    folder = Path(str(resources.files("opct"))) / "config"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
        raise ConfigError(f"No packaged config {name!r}; there are: {known}.")
    return path


def _with_preset(tree: Entry, preset: str | None, faults: list[Fault]) -> Entry:
    own = tree.value.get("preset")
    tree = tree.without(["preset"])
    where, name = ("--preset", preset) if preset is not None else (own.where, own.plain()) if own else ("", None)
    if name is None:
        return tree
    if not isinstance(name, str) or name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        known = ", ".join(PRESETS)
        faults.append(Fault(f"{where}: preset: no preset {name!r}, expected one of {known}{hint}", "preset"))
        return tree
    return tree.over(from_plain(PRESETS[name].settings, f"preset {name}"))


def _validate(tree: Entry, faults: list[Fault]) -> TrainConfig | None:
    """The config, or None with `faults` filled.

    Checks across settings run only on settings that are valid one by one, so faulty ones are first taken out; a check
    that speaks of one of those is not reported, its verdict would rest on a value nobody wrote.
    """
    try:
        return _check(tree)
    except ValidationError as error:
        own = list(_faults_of(error, tree))
    faults += own
    if any(fault.setting == "" for fault in own):  # a check across settings: all settings were valid one by one
        return None
    for error_path in _faulty_paths(tree):
        tree = tree.without(error_path)
    try:
        _check(tree)
    except ValidationError as error:
        doubtful = {fault.setting for fault in faults}
        faults += [f for f in _faults_of(error, tree) if not any(setting in f.line for setting in doubtful if setting)]
    return None


def _check(tree: Entry) -> TrainConfig:
    # JSON mode: a YAML list may become a tuple, while every other type stays strict.
    return TrainConfig.model_validate_json(json.dumps(tree.plain()))


def _faulty_paths(tree: Entry) -> list[list[str]]:
    try:
        _check(tree)
    except ValidationError as error:
        return [_locate(tree, item["loc"])[0][:2] for item in error.errors(include_url=False)]
    return []


def _locate(tree: Entry, loc: Sequence[int | str]) -> tuple[list[str], Entry]:
    """The part of a pydantic location that was really written (it also names union members), and its entry."""
    path: list[str] = []
    entry = tree
    for part in loc:
        in_group = isinstance(entry.value, dict) and part in entry.value
        in_list = isinstance(entry.value, list) and isinstance(part, int) and part < len(entry.value)
        if not (in_group or in_list):
            break
        entry = entry.value[part]
        path.append(str(part))
    return path, entry


def _faults_of(error: ValidationError, tree: Entry) -> Iterator[Fault]:
    wrong: dict[str, tuple[Entry, list[str]]] = {}
    for item in error.errors(include_url=False):
        path, entry = _locate(tree, item["loc"])
        if item["type"] == "extra_forbidden":
            yield from _unknown(path, entry)
        elif item["type"] == "value_error":
            for line in str(item["ctx"]["error"]).splitlines():
                yield Fault(_cross_place(tree, line) + line, "")
        else:
            wrong.setdefault(".".join(path), (entry, []))[1].append(_expected(item, path))
    for name, (entry, expected) in wrong.items():
        yield Fault(f"{entry.where}: {name}: {_shown(entry)} is not valid, expected {' or '.join(expected)}", name)


def _cross_place(tree: Entry, line: str) -> str:
    """`file:line: ` of the first setting that a check across settings names, where that setting was written."""
    for name in re.findall(r"[a-z_]+(?:\.[a-z_0-9]+)?", line):
        path, entry = _locate(tree, name.split("."))
        if name in setting_names() and len(path) == len(name.split(".")):
            return f"{entry.where}: "
    return ""


def _unknown(path: list[str], entry: Entry) -> Iterator[Fault]:
    if isinstance(entry.value, dict) and entry.value:
        for key, child in entry.value.items():
            yield from _unknown([*path, key], child)
        return
    name = ".".join(path)
    right = nearest_setting(name)
    hint = f"; did you mean {right}?" if right else "; `opct config schema` lists every setting"
    yield Fault(f"{entry.where}: {name}: unknown setting (value {_shown(entry)}){hint}", right or name)


def _expected(item: Any, path: list[str]) -> str:
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        names = [name for name in setting_names() if name.startswith(".".join(path) + ".")]
        return f"a group of settings ({', '.join(name.rpartition('.')[2] for name in names)})"
    text = str(item["msg"])
    for start in ("Input should be ", "Input should have "):
        text = text.removeprefix(start)
    text = text.replace("a valid array", "a list").replace("a valid ", "a ").replace("a integer", "an integer")
    if item["type"] == "list_type":
        return f"{text}, such as [{item['input']}]" if isinstance(item["input"], str) else text
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        options = re.findall(r"'([^']*)'", str(item["ctx"]["expected"]))
        near = difflib.get_close_matches(item["input"], options, n=1)
        return text + (f"; did you mean {near[0]}?" if near else "")
    return text


def _shown(entry: Entry) -> str:
    text = json.dumps(entry.plain(), ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def setting_names() -> list[str]:
    """Every dotted setting name, `seed` and `optim.learning_rate` alike."""
    return list(_names(TrainConfig, ""))


def _names(section: type[Section], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        types = (field.annotation, *get_args(field.annotation))
        inner = [t for t in types if isinstance(t, type) and issubclass(t, Section)]
        if inner:
            yield from _names(inner[0], f"{prefix}{name}.")
        else:
            yield prefix + name


def nearest_setting(name: str) -> str | None:
    """The valid dotted name that `name` most likely means: the same leaf elsewhere, else the most alike; or None."""
    leaf = name.rpartition(".")[2]
    known = setting_names()
    if OTHER_WORDS.get(leaf) in known:
        return OTHER_WORDS[leaf]

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name, candidate).ratio()
        last = difflib.SequenceMatcher(None, leaf, candidate.rpartition(".")[2]).ratio()
        return last + 0.2 * whole  # the leaf decides; the section breaks ties between equal leaves

    best = max(known, key=likeness)
    return best if likeness(best) >= 0.8 else None
