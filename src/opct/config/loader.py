"""Settings from a YAML file and dotted overrides, for any pydantic model: every fault at once, with place and remedy.

Layers, the later one wins: defaults of the model < `base` < preset < the YAML file < overrides (left to right).
Scalars are read as in YAML 1.2 (core schema): `5e-6` is a number, `no` and `on` are text, `true`/`false` are booleans.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from opct.config.presets import PRESETS
from opct.config.schema import Section, TrainConfig, flat_settings
from opct.errors import ConfigError

log = logging.getLogger(__name__)

S = TypeVar("S", bound=BaseModel)
Name = tuple[str, ...]
"""The parts of a dotted name; an element of a list has its index as a part."""
MAX_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Most values of a file, with aliases expanded: 500 bytes of aliases can expand to 10^9 values."""

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


def load_settings(
    model_class: type[S],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    preset: str | None = None,
) -> S:
    """Load and check the settings of a YAML file, over a base and a preset and under dotted overrides.

    Args:
        model_class: a `Section`, nested to any depth; unions of sections may have a discriminator.
        path: a YAML file; None starts from the defaults.
        overrides: `section.name=value` each, the value read as YAML: `lora=null`, `data.pairs=[a.jsonl, b.jsonl]`.
        base: values that the file overrides, nested or by dotted name.
        preset: for training settings, the name of a preset that the file overrides; by default the file's `preset:`.

    Raises:
        ConfigError: with every fault at once, each with file:line (or the override), the dotted name, the value,
            what is expected, and the nearest valid name.
    """
    faults: list[Fault] = []
    own = Tree() if path is None else _read_file(Path(path), faults)
    for text in overrides:
        own.update(_read_override(text, faults))
    tree = Tree()
    for name, value in (base or {}).items():
        tree.update(Tree(_nested(name.split("."), value)))
    if issubclass(model_class, TrainConfig):
        tree.update(_chosen_preset(own, preset, faults))
    tree.update(own)
    settings = _validate(model_class, tree, faults)
    if faults or settings is None:
        raise _settings_error(faults, path)
    return settings


def _settings_error(faults: Sequence[Fault], path: str | Path | None = None) -> ConfigError:
    """The error that lists these faults, in the order of the file at `path`."""
    source = f"of {path} " if path is not None else ""
    count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
    lines = "".join(f"\n  {fault.text}" for fault in sorted(faults, key=lambda fault: _line_number(fault, path)))
    return ConfigError(f"The settings {source}have {count}; nothing was started:{lines}")


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), preset: str | None = None
) -> TrainConfig:
    """Load and check the settings of a training run; see `load_settings`.

    Args:
        preset: name of a preset of `opct.config.presets`; overrides the `preset:` of the file.

    Raises:
        ConfigError: with every fault at once.
    """
    return load_settings(TrainConfig, path, overrides, preset=preset)


def dump_config(settings: BaseModel) -> str:
    """Serialise settings as YAML; `load_settings` reads back equal settings."""
    values = settings.model_dump(mode="json")
    return yaml.dump(values, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=100)


def read_yaml(path: Path) -> Any:
    """Read a YAML mapping without checking the settings, for files that another version may have written.

    Raises:
        ConfigError: the file is missing, too large, or not a YAML mapping in UTF-8.
    """
    return _read_file(path, []).values


def config_schema() -> dict[str, Any]:
    """JSON schema of a training config, `preset` included: point an editor at it for completion and checks."""
    schema = TrainConfig.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["properties"]["preset"] = {
        "description": "Preset that this file overrides.",
        "oneOf": [{"const": name, "description": preset.source} for name, preset in PRESETS.items()],
    }
    return schema


# ------------------------------------------------------------------------------------------- values and their places


@dataclass(frozen=True)
class Fault:
    """One fault: the line to show, and the setting that it makes invalid."""

    text: str
    setting: str


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


def _without(values: dict[str, Any], name: Name) -> dict[str, Any]:
    kept = dict(values)
    if len(name) > 1 and isinstance(kept.get(name[0]), dict):
        kept[name[0]] = _without(kept[name[0]], name[1:])
    elif name:
        kept.pop(name[0], None)
    return kept


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _nested(parts: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def _line_number(fault: Fault, path: str | Path | None) -> float:
    """Sort key: the line of a fault in the file; faults outside the file come last."""
    found = re.match(r":(\d+)", fault.text.removeprefix(str(path)))
    return int(found[1]) if found else float("inf")


def _chosen_preset(own: Tree, preset: str | None, faults: list[Fault]) -> Tree:
    """The settings of the chosen preset, if any; its name is removed from `own`."""
    name, place = own.values.pop("preset", None), own.place(("preset",))
    if preset is not None:
        name, place = preset, "--preset"
    if name is None:
        return Tree()
    if str(name) not in PRESETS:
        expected = f"expected one of {', '.join(PRESETS)}{_did_you_mean(str(name), PRESETS)}"
        faults.append(Fault(f"{place}: preset: no preset {name!r}, {expected}", "preset"))
        return Tree()
    values = PRESETS[name].settings
    return Tree(dict(values), {tuple(dotted.split(".")): f"preset {name}" for dotted in flat_settings(values)})


# ------------------------------------------------------------------------------------------------------ reading YAML

# YAML 1.2 core schema: tag, how a plain scalar of it looks, and how it is read. PyYAML implements 1.1, where 5e-6 is
# text and `no` is false.
_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    "int": (r"[-+]?[0-9]+", int),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
_TAG = "tag:yaml.org,2002:"
_RESOLVERS = {None: [(_TAG + tag, re.compile(rf"(?:{pattern})\Z")) for tag, (pattern, _) in _SCALARS.items()]}


class _CoreLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class CoreDumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS


def _read_file(path: Path, faults: list[Fault]) -> Tree:
    """Parse the YAML file into a tree; recoverable faults are added to `faults`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has {path.stat().st_size:,} bytes, and settings have at most {MAX_BYTES:,}")
        if not path.is_file():  # a pipe or a device may never end
            raise ValueError("it is not a regular file")
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: also text that is not UTF-8, and a NUL in the path
        why = getattr(error, "strerror", None) or error
        is_other = isinstance(error, UnicodeDecodeError) or not path.is_file()
        remedy = " Give the path of a UTF-8 text file." if is_other else ""
        raise ConfigError(f"Cannot read the config file {path}: {why}.{remedy}") from error
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
        if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):  # `---` alone
            log.info(f"{path} is empty: every setting has its default.")
            return Tree()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path}:1: a config is `name: value` lines, found a {_kind(node)}.")
        reader = _NodeReader(str(path), faults, has_lines=True)
        return Tree(reader.value(node, ()), reader.places)
    except (yaml.YAMLError, RecursionError) as error:  # RecursionError: too deep, or an alias that contains itself
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise ConfigError(f"{place}: {_yaml_problem(error)}.") from error


def _read_override(text: str, faults: list[Fault]) -> Tree:
    """Parse `section.name=value` into a tree with one setting; if malformed, an empty tree and a fault."""
    place = f"override {text}"
    dotted, equals, raw = text.partition("=")
    name = tuple(dotted.strip().split("."))
    if not equals or not all(name):
        faults.append(Fault(f"{place}: an override is `section.name=value`, such as optim.learning_rate=1e-4", ""))
        return Tree()
    try:
        node = yaml.compose(raw, Loader=_CoreLoader) if raw.strip() else None
        if node is None:
            raise yaml.YAMLError("no value; write `null` for no value, and quote empty text or text that begins with #")
        reader = _NodeReader(place, faults, has_lines=False)
        value = reader.value(node, name)
    except (yaml.YAMLError, RecursionError) as error:
        faults.append(Fault(f"{place}: {'.'.join(name)}: {_yaml_problem(error)}", ".".join(name)))
        return Tree()
    return Tree(_nested(name, value), {name[:1]: place} | reader.places)


def _yaml_problem(error: Exception) -> str:
    return f"not valid YAML: {getattr(error, 'problem', None) or error}"


class _NodeReader:
    """Converts YAML nodes to values with their locations. Duplicate keys and unknown tags become faults."""

    def __init__(self, source: str, faults: list[Fault], *, has_lines: bool):
        self._source, self._faults, self._has_lines = source, faults, has_lines
        self.places: dict[Name, str] = {}

    def value(self, node: yaml.Node, name: Name) -> Any:
        self.places.setdefault(name, self._place(node))
        if len(self.places) > MAX_VALUES:
            raise ConfigError(
                f"{self._place(node)}: more than {MAX_VALUES:,} values, aliases written out; write fewer."
            )
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*name, str(i))) for i, child in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._group(node, name)
        tag, text = node.tag.removeprefix(_TAG), node.value
        try:
            return text if tag == "str" else _SCALARS[tag][1](text)
        except (KeyError, ValueError):  # a tag of Python, one that does not fit its text, or too many digits
            self._fault(node, name, f"{_shorten(repr(text))} cannot be read as !!{tag}; write a plain value")
            return text

    def _group(self, node: yaml.MappingNode, name: Name) -> dict[str, Any]:
        group: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, name, f"a name must be text, found a {_kind(key_node)}")
                continue
            full = (*name, key_node.value)
            if key_node.value in group:
                self._fault(key_node, full, f"given twice, first at {self.places[full]}: keep one")
                continue
            self.places[full] = self._place(key_node)
            group[key_node.value] = self.value(value_node, full)
        return group

    def _place(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}" if self._has_lines else self._source

    def _fault(self, node: yaml.Node, name: Name, text: str) -> None:
        self._faults.append(Fault(f"{self._place(node)}: {'.'.join(name)}: {text}", ".".join(name)))


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "group" if isinstance(node, yaml.MappingNode) else "single value"


# ---------------------------------------------------------------------------------------------------------- checking


def _validate(model_class: type[S], tree: Tree, faults: list[Fault]) -> S | None:
    """The validated settings, or None with `faults` filled.

    Checks across settings run only if each setting is valid. So invalid settings are replaced by their defaults, and
    the rest is checked again. A fault that names an invalid setting is dropped, since it may come from the default.
    """
    try:
        return _check(model_class, tree)
    except ValidationError as error:
        faults += _faults_of(model_class, error, tree)
        for item in error.errors(include_url=False):
            tree = Tree(_without(tree.values, tree.locate(item["loc"])[0]), tree.places)
    try:
        _check(model_class, tree)
    except ValidationError as error:
        doubtful = {fault.setting for fault in faults if fault.setting}
        later = [fault for fault in _faults_of(model_class, error, tree) if fault not in faults]
        faults += [fault for fault in later if not any(setting in fault.text for setting in doubtful)]
    return None


def _check(model_class: type[S], tree: Tree) -> S:
    # JSON mode: a YAML list may become a tuple, while every other type stays strict.
    return model_class.model_validate_json(json.dumps(tree.values))


def _faults_of(model_class: type[BaseModel], error: ValidationError, tree: Tree) -> Iterator[Fault]:
    known = setting_names(model_class)
    wrong: dict[Name, tuple[Any, list[str]]] = {}
    for item in error.errors(include_url=False):
        name, value = tree.locate(item["loc"])
        if item["type"] == "extra_forbidden":
            yield from _unknown(name, value, known, tree)
        elif item["type"] == "missing":
            missing = ".".join([*name, str(item["loc"][-1])])
            yield Fault(f"{tree.place(name)}: {missing}: missing, and it has no default", missing)
        elif item["type"] == "value_error" and isinstance(value, dict):
            for line in str(item["ctx"]["error"]).splitlines():
                yield Fault(f"{_cross_place(tree, line) or tree.place(name)}: {line}", "")
        else:
            wrong.setdefault(name, (value, []))[1].append(_expected(item, name, known, model_class))
    for name, (value, expected) in wrong.items():
        text = f"{'.'.join(name)}: {_shown(value)} is not valid, expected {' or '.join(expected)}"
        yield Fault(f"{tree.place(name)}: {text}", ".".join(name))


def _init(self: Section, **values: Any) -> None:
    """A section made in Python; raises ConfigError with the same messages as for a file."""
    try:
        BaseModel.__init__(self, **values)
    except ValidationError as error:
        raise _settings_error(list(_faults_of(type(self), error, Tree(values)))) from None


_init.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # so pydantic does not call it for nested sections
Section.__init__ = _init  # type: ignore[method-assign, assignment]


def _cross_place(tree: Tree, line: str) -> str:
    """Location of the first setting that a cross-setting check names; "" if none was written."""
    for word in re.findall(r"[a-z_][\w.-]*\w", line):
        name, value = tree.locate(word.split("."))
        if ".".join(name) == word and not (isinstance(value, dict) and len(name) == 1):
            return tree.place(name)
    return ""


def _unknown(name: Name, value: Any, known: Sequence[str], tree: Tree) -> Iterator[Fault]:
    if isinstance(value, dict) and value:
        for key, child in value.items():
            yield from _unknown((*name, key), child, known, tree)
        return
    dotted = ".".join(name)
    right = _nearest(dotted, known)
    hint = f"did you mean {right}?" if right else f"there are {', '.join(_siblings(name[:-1], known))}"
    yield Fault(f"{tree.place(name)}: {dotted}: unknown setting (value {_shown(value)}); {hint}", right or dotted)


def _siblings(section: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names in a section; a nested section counts as one name."""
    prefix = "".join(f"{part}." for part in section)
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(".")[0] for name in inside or known))


def _expected(item: Any, name: Name, known: Sequence[str], model_class: type[BaseModel]) -> str:
    """What pydantic expected, in the words of a YAML file."""
    kind, given, context = item["type"], item["input"], item.get("ctx", {})
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        section = model_class.model_fields.get(".".join(name))
        or_null = " or null" if section is not None and type(None) in get_args(section.annotation) else ""
        return f"a group of settings ({', '.join(_siblings(name, known))}){or_null}"
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_invalid":
        options = re.findall(r"'([^']*)'", context["expected_tags"])
        tag = context["discriminator"].strip("'")
        return f"{tag}: one of {', '.join(options)}{_did_you_mean(context['tag'], options)}"
    text = re.sub(r"^(Input|List|String) should (be|have) ", "", item["msg"])
    text = text.replace("a valid array", "a list").replace("a valid ", "a ").replace("a integer", "an integer")
    if kind == "list_type" and isinstance(given, str):
        return f"{text}, such as [{given}]"
    if kind == "literal_error":
        return text + _did_you_mean(str(given), re.findall(r"'([^']*)'", context["expected"]))
    return text


def _did_you_mean(word: str, options: Iterable[str]) -> str:
    near = difflib.get_close_matches(OTHER_VALUES.get(word.lower(), word), list(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(value: Any) -> str:
    return _shorten(json.dumps(value, ensure_ascii=False, default=repr))


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------------------------- names


def setting_names(model_class: type[BaseModel] = TrainConfig) -> list[str]:
    """Every dotted setting name, such as `seed` and `optim.learning_rate`; a union has the names of all its
    sections.
    """
    return list(dict.fromkeys(_names(model_class, "")))


def _names(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, setting in section.model_fields.items():
        inner = list(_sections(setting.annotation))
        for one in inner:
            yield from _names(one, f"{prefix}{name}.")
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
