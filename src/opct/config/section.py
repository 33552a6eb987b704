"""`Section`: a group of settings that reports its faults together, each with its place and remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from opct.errors import ConfigError, shorten

Name = tuple[str, ...]
"""The parts of a dotted name; an element of a list has its index as a part."""

# Names in other tools, and ours, which the error message then suggests.
OTHER_NAMES = {
    "batch_size": "prompts_per_step",
    "beta": "dpo_beta",
    "betas": "adam_beta1",
    "bf16": "dtype",
    "dataset": "pairs",
    "dataset_name": "pairs",
    "epochs": "num_train_epochs",
    "gamma": "kl_discount_factor",
    "gradient_accumulation_steps": "micro_batch_tokens",
    "gradient_clipping": "max_grad_norm",
    "group_size": "num_generations",
    "limit": "n_questions",
    "load_in_4bit": "quantization",
    "load_in_8bit": "quantization",
    "lora_alpha": "alpha",
    "lora_r": "r",
    "lora_rank": "r",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "max_new_tokens": "max_completion_tokens",
    "max_tokens": "max_completion_tokens",
    "model_name_or_path": "name_or_path",
    "num_samples": "num_generations",
    "per_device_train_batch_size": "prompts_per_step",
    "rank": "r",
    "steps": "max_steps",
    "torch_dtype": "dtype",
    "train_file": "pairs",
    "warmup": "warmup_steps",
}
OTHER_VALUES = {"bf16": "bfloat16", "bon": "best_of_n", "pair": "refine"}
"""Values in other tools, and ours."""


class _Settings(type(BaseModel)):  # type: ignore[misc]
    def __call__(cls, **values: Any) -> Any:
        try:
            return super().__call__(**values)
        except ValidationError as error:
            raise settings_error(list(faults_of(cls, error, Tree(values)))) from None


class Section(BaseModel, metaclass=cast(Any, _Settings)):  # type: ignore[metaclass]  # to mypy it is that of pydantic
    """A group of settings; rejects unknown names.

    Raises:
        ConfigError: with every fault at once, in the words of a file.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True, allow_inf_nan=False)

    @classmethod
    def known_names(cls, values: Mapping[str, Any]) -> list[str]:
        """The dotted names of the settings that there are, for messages about these values."""
        return setting_names(cls)

    @classmethod
    def where_known(cls, name: str, values: Mapping[str, Any]) -> str | None:
        """Where a setting that these values do not have is one, as text; None if nowhere."""
        return None


# ------------------------------------------------------------------------------------------- values and their places


@dataclass
class Tree:
    """Nested values with the source location of each."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Name, str] = field(default_factory=dict)

    def update(self, other: Tree) -> None:
        """Merge another tree into this one: groups are merged, everything else is replaced."""
        self.values = _merged(self.values, other.values)
        self.places |= other.places

    def place(self, name: Name) -> str:
        """Source location of a value, or of the closest enclosing value that has one."""
        while name and name not in self.places:
            name = name[:-1]
        return self.places.get(name, "given")

    def locate(self, parts: Iterable[int | str]) -> tuple[Name, Any]:
        """The written parts of a pydantic location (without names of union members), and the value there."""
        name: list[str] = []
        value: Any = self.values
        for part in parts:
            in_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
            if in_list or (isinstance(value, dict) and part in value):
                value = value[part]
                name.append(str(part))
        return tuple(name), value


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    # a copy: presets and bases are shared by all loads of this process
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def settings_error(faults: Sequence[str], path: str | Path | None = None) -> ConfigError:
    """The error that lists these faults, in the order of the file at `path`."""
    source = f"of {path} " if path is not None else ""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "".join(f"\n  {fault}" for fault in sorted(faults, key=lambda fault: _line_number(fault, path)))
    return ConfigError(f"The settings {source}have {count}; nothing was started:{lines}")


def _line_number(fault: str, path: str | Path | None) -> float:
    """Sort key: the line of a fault in the file; faults outside the file come last."""
    match = re.match(r":(\d+)", fault.removeprefix(str(path)))
    return int(match[1]) if match else float("inf")


def faults_of(model_class: type[Section], error: ValidationError, tree: Tree) -> Iterator[str]:
    known = model_class.known_names(tree.values)
    wrong: dict[Name, tuple[Any, list[str]]] = {}
    for item in error.errors(include_url=False):
        name, value = tree.locate(item["loc"])
        if item["type"] == "extra_forbidden":
            yield from _unknown(name, value, known, tree, model_class)
        elif item["type"] == "missing":
            missing = ".".join([*name, str(item["loc"][-1])])
            yield f"{tree.place(name)}: {missing}: missing, and it has no default"
        elif item["type"] == "value_error" and isinstance(value, dict):
            for line in str(item["ctx"]["error"]).splitlines():
                yield f"{_cross_place(tree, line) or tree.place(name)}: {line}"
        else:
            # by name: every member of a union reports the same value, which is one fault
            wrong.setdefault(name, (value, []))[1].append(_expected(item, name, known, model_class))
    for name, (value, expected) in wrong.items():
        yield f"{tree.place(name)}: {'.'.join(name)}: {shorten(value)} is not valid, expected {' or '.join(expected)}"


def _cross_place(tree: Tree, line: str) -> str:
    """Location of the first setting that a cross-setting check names; "" if none was written."""
    for word in re.findall(r"[a-z_][\w.-]*\w", line):
        name, value = tree.locate(word.split("."))
        if ".".join(name) == word and not (isinstance(value, dict) and len(name) == 1):
            return tree.place(name)
    return ""


def _unknown(name: Name, value: Any, known: Sequence[str], tree: Tree, model_class: type[Section]) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _unknown((*name, key), child, known, tree, model_class)
        return
    dotted = ".".join(name)
    right = _nearest(dotted, known)
    hint = f"did you mean {right}?" if right else f"there are {', '.join(_siblings(name[:-1], known))}"
    if right == dotted and (joined := [part for part in name if "." in part]):  # as an override is written
        hint = f"in a file, write `{joined[0].replace('.', ':` and, indented below it, `')}:`"
    hint = model_class.where_known(dotted, tree.values) or hint
    yield f"{tree.place(name)}: {dotted}: unknown setting (value {shorten(value)}); {hint}"


def _siblings(section: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names in a section; a nested section counts as one name."""
    prefix = "".join(f"{part}." for part in section)
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(".")[0] for name in inside or known))


def _expected(item: Any, name: Name, known: Sequence[str], model_class: type[BaseModel]) -> str:
    """What pydantic expected, in the words of a YAML file."""
    kind, given, context = item["type"], item["input"], item.get("ctx", {})
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        if not any(one.startswith(".".join((*name, ""))) for one in known):
            return "names with values, such as {name: value}"
        section = model_class.model_fields.get(".".join(name))
        or_null = " or null" if section is not None and type(None) in get_args(section.annotation) else ""
        return f"a group of settings ({', '.join(_siblings(name, known))}){or_null}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        options = re.findall(r"'([^']*)'", context["expected_tags"])
        tag = context["discriminator"].strip("'")
        return f"{tag}: one of {', '.join(options)}{nearest_of(context['tag'], options)}"
    text = re.sub(r"^(Input|List|String) should (be|have) ", "", item["msg"])
    text = text.replace("a valid array", "a list").replace("a valid ", "a ").replace("a integer", "an integer")
    if kind == "list_type" and isinstance(given, str):
        return f"{text}, such as [{given}]"
    if kind == "literal_error":
        return text + nearest_of(str(given), re.findall(r"'([^']*)'", context["expected"]))
    return text


def nearest_of(word: str, options: Iterable[str]) -> str:
    near = difflib.get_close_matches(OTHER_VALUES.get(word.lower(), word), list(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


# ------------------------------------------------------------------------------------------------------------- names


def setting_names(model_class: type[BaseModel]) -> list[str]:
    """Every dotted setting name, such as `seed` and `optim.learning_rate`; a union has the names of all its
    sections.
    """
    return list(dict.fromkeys(_names(model_class, "")))


def _names(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, setting in section.model_fields.items():
        inner = list(_sections(setting.annotation))
        for one in inner:
            yield from _names(one, f"{prefix}{name}.")
        # a union of sections and null has its sections' names alone
        if not inner:
            yield prefix + name


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold directly; sections in a list or dict have no dotted name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif getattr(annotation, "__origin__", None) not in (list, dict, tuple):
        for part in get_args(annotation):
            yield from _sections(part)


def _nearest(name: str, known: Sequence[str]) -> str | None:
    """The closest valid name: first by an equal last part, else by similarity; or None."""
    leaf = name.rpartition(".")[2]
    leaf = OTHER_NAMES.get(leaf, leaf)

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name, candidate).ratio()
        last = difflib.SequenceMatcher(None, leaf, candidate.rpartition(".")[2]).ratio()
        return last + 0.2 * whole  # the leaf decides; the section breaks ties between equal leaves

    best = max(known, key=likeness)
    return best if likeness(best) >= 0.8 else None
