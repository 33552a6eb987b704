"""Settings from a YAML file and dotted overrides, for any pydantic model: faults together, with place and remedy.

Layers, the later one wins: defaults of the model < `base` < preset < the YAML file < overrides (left to right).
Scalars are read as in YAML 1.2 (core schema): `5e-6` is a number, `no` and `on` are text, `true`/`false` are booleans.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from opct.config.methods import LOSSES, LossConfig
from opct.config.packaged import PACKAGED
from opct.config.presets import PRESETS
from opct.config.schema import TrainConfig, flat_settings
from opct.config.section import Name, Section, Tree, faults_of, settings_error
from opct.errors import ConfigError, shorten, unknown

log = logging.getLogger(__name__)

S = TypeVar("S", bound=Section)
DATA = (".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".gz")
MAX_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Most values of a file, with aliases expanded: 500 bytes of aliases can expand to 10^9 values."""
COMMANDS = {"arms": "experiment", "attacker": "attack", "suites": "eval", "max_steps": "train", "optim": "train"}
"""By a setting that only the files of one command have: that command."""


def as_settings(model_class: type[S], given: S | Mapping[str, Any]) -> S:
    """The settings as they are, or those of a dict (nested or by dotted name) over the defaults.

    Raises:
        ConfigError: see `load_settings`; it is neither.
    """
    if isinstance(given, model_class):
        return given
    if isinstance(given, Mapping):
        return load_settings(model_class, base=to_jsonable_python(given))
    raise ConfigError(
        f"{shorten(given)} is neither a {model_class.__name__} nor a dict of its settings; "
        "`opct.load_config(FILE)` reads a file for training."
    )


def load_settings(
    model_class: type[S],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    preset: str | None = None,
    of_a_run: bool = False,
) -> S:
    """Load and check the settings of a YAML file, over a base and a preset and under dotted overrides.

    Args:
        model_class: a `Section`, nested to any depth; unions of sections may have a discriminator.
        path: a YAML file; None starts from the defaults.
        overrides: `section.name=value` each, the value read as YAML: `lora=null`, `data.pairs=[a.jsonl, b.jsonl]`.
        base: values that the file overrides, nested or by dotted name.
        preset: for training settings, the name of a preset that the file overrides; by default the file's `preset:`.
        of_a_run: a run wrote the file, maybe in an earlier version: unknown names are left out.

    Raises:
        ConfigError: with every unknown name and wrong type at once, then every contradiction, each with file:line (or
            the override), the dotted name, the value, what is expected, and the nearest valid name.
    """
    faults: list[str] = []
    if path is not None:
        _refuse_data(Path(path), model_class)
    user_tree = Tree() if path is None else _read_file(Path(path), faults)
    marks = [name for name in COMMANDS if name in user_tree.values]
    if marks and not set(marks) & model_class.model_fields.keys():
        where = user_tree.place((marks[0],))
        raise ConfigError(f"{where}: {marks[0]} is of a file for `opct {COMMANDS[marks[0]]}`. Nothing was started.")
    if of_a_run:
        user_tree.values = _known(user_tree.values, model_class.known_names(user_tree.values), f"{path}: ")
    for text in overrides:
        user_tree.update(_read_override(text, faults))
    tree = Tree()
    for name, value in (base or {}).items():
        tree.update(Tree(_nested(name.split("."), value)))
    if issubclass(model_class, TrainConfig):
        # over `base`, under the file: the other order would let a preset undo what the file says
        tree.update(_chosen_preset(user_tree, preset, faults))
    tree.update(user_tree)
    settings = None
    try:  # JSON mode: a YAML list may become a tuple, while every other type stays strict
        settings = model_class.model_validate_json(json.dumps(tree.values))
    except ValidationError as error:
        faults += faults_of(model_class, error, tree)
    if faults or settings is None:
        raise settings_error(faults, path)
    return settings


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


def load_run_config(path: Path) -> TrainConfig:
    """The settings in the `config.yaml` of a run; those that only an earlier version had are left out, and named."""
    return load_settings(TrainConfig, path, of_a_run=True)


def dump_config(settings: BaseModel) -> str:
    """Serialize settings as YAML; `load_settings` reads back equal settings."""
    values = settings.model_dump(mode="json")
    return yaml.dump(values, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=100)


def read_yaml(path: Path) -> Any:
    """Read a YAML mapping without checking the settings, for files that another version may have written. Raises
    ConfigError where the file is missing, too large, or not a YAML mapping in UTF-8."""
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


def _nested(parts: Sequence[str], value: Any) -> dict[str, Any]:
    for part in reversed(parts):
        value = {part: value}
    return dict(value)


def _known(values: Mapping[str, Any], names: Sequence[str], source: str, prefix: str = "") -> dict[str, Any]:
    """The values that have one of these dotted names."""
    known: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if dotted in names:
            known[name] = value
        elif any(one.startswith(f"{dotted}.") for one in names):  # a section, or null in its place
            known[name] = _known(value, names, source, f"{dotted}.") if isinstance(value, Mapping) else value
        else:
            log.info(f"{source}{dotted} is no setting of this version, and is left out (value {shorten(value)}).")
    return known


def _chosen_preset(user_tree: Tree, preset: str | None, faults: list[str]) -> Tree:
    """The settings of the chosen preset, if any; its name is removed from `user_tree`."""
    # popped: no section has such a setting, so it would be unknown
    name, place = user_tree.values.pop("preset", None), user_tree.place(("preset",))
    if preset is not None:
        name, place = preset, "--preset"
    if name is None:
        return Tree()
    if str(name) not in PRESETS:
        faults.append(f"{place}: preset: {unknown('preset', str(name), PRESETS)}")
        return Tree()
    values = dict(PRESETS[name].settings)
    # another method takes a preset too: without the settings of `loss` that it does not have
    section = LOSSES.get(str(user_tree.values.get("method", values["method"])), LossConfig)
    values["loss"] = {name: value for name, value in values["loss"].items() if name in section.model_fields}
    return Tree(values, {tuple(dotted.split(".")): f"preset {name}" for dotted in flat_settings(values)})


# ------------------------------------------------------------------------------------------------------ reading YAML

# YAML 1.2 core schema: tag, how a plain scalar of it looks, and how it is read. PyYAML implements 1.1, where 5e-6 is
# text and `no` is false.
_SCALARS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "null": (r"~|null|Null|NULL|", lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", lambda text: text.lower() == "true"),
    # before float, which matches `5` too: the first that fits is taken
    "int": (r"[-+]?[0-9]+", int),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
    ),
}
_TAG = "tag:yaml.org,2002:"
# \Z and not $, which also matches before a final line feed: the text "5\n" would be a number
_RESOLVERS = {None: [(_TAG + tag, re.compile(rf"(?:{pattern})\Z")) for tag, (pattern, _) in _SCALARS.items()]}


class _CoreLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class CoreDumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS


def _refuse_data(path: Path, model_class: type[Section]) -> None:
    """Raise ConfigError where the path is that of pairs or questions, with what makes a config of them."""
    if path.suffix not in DATA or not path.is_file():
        return
    quoted, experiment = shlex.quote(str(path)), ""
    if "arms" in model_class.model_fields:
        experiment = (
            " An experiment is a file beside that: `train: mine.yaml`, `arms: {opct: {}, sft: {method: sft}}`, and for "
            f"questions `evaluation: {{questions: {json.dumps(str(path))}}}`, as in docs/how-to/experiments.md."
        )
    raise ConfigError(
        f"{path} is data, not settings. `opct init mine.yaml --data {quoted}` writes a config for pairs, "
        f"`opct init mine.yaml --questions {quoted}` one for questions.{experiment}"
    )


def _read_file(path: Path, faults: list[str]) -> Tree:
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
        if (path / "config.yaml").is_file():
            remedy = f" That run has its settings in {path / 'config.yaml'}."
        if "=" in str(path) and isinstance(error, FileNotFoundError):
            remedy = " The file comes first, then NAME=VALUE; `opct init` writes one."
        elif path.stem in PACKAGED and isinstance(error, FileNotFoundError):
            remedy = (
                f" `opct init {shlex.quote(str(path.with_suffix('.yaml')))} --from {path.stem}` writes that of opct."
            )
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


def _read_override(text: str, faults: list[str]) -> Tree:
    """Parse `section.name=value` into a tree with one setting; if malformed, an empty tree and a fault."""
    place = f"override {text}"
    dotted, equals, raw = text.partition("=")
    name = tuple(dotted.strip().split("."))
    if not equals or not all(name):
        faults.append(f"{place}: an override is `section.name=value`, such as optim.learning_rate=1e-4")
        return Tree()
    try:
        node = yaml.compose(raw, Loader=_CoreLoader) if raw.strip() else None
        if node is None:
            raise yaml.YAMLError("no value; write `null` for no value, and quote empty text or text that begins with #")
        reader = _NodeReader(place, faults, has_lines=False)
        value = reader.value(node, name)
    except (yaml.YAMLError, RecursionError) as error:
        faults.append(f"{place}: {'.'.join(name)}: {_yaml_problem(error)}")
        return Tree()
    return Tree(_nested(name, value), {name[:1]: place} | reader.places)


def _yaml_problem(error: Exception) -> str:
    return f"not valid YAML: {getattr(error, 'problem', None) or error}"


class _NodeReader:
    """Converts YAML nodes to values with their locations. Duplicate keys and unknown tags become faults."""

    def __init__(self, source: str, faults: list[str], *, has_lines: bool):
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
            if tag == "str":  # no shell expands the home folder in a file or a list
                return os.path.expanduser(text) if text.startswith("~/") else text
            return _SCALARS[tag][1](text)
        except (KeyError, ValueError):  # a tag of Python, one that does not fit its text, or too many digits
            self._fault(node, name, f"{text!r:.60} cannot be read as !!{tag}; write a plain value")
            return text

    def _group(self, node: yaml.MappingNode, name: Name) -> dict[str, Any]:
        group: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, name, f"a name must be text, found a {_kind(key_node)}")
                continue
            full = (*name, key_node.value)
            # YAML would keep the last one in silence
            if key_node.value in group:
                self._fault(key_node, full, f"given twice, first at {self.places[full]}: keep one")
                continue
            self.places[full] = self._place(key_node)
            if isinstance(value_node, yaml.ScalarNode) and value_node.value == "" and value_node.style is None:
                self._fault(key_node, full, "no value; write one, or `null`, or put a # before the name")
                continue
            group[key_node.value] = self.value(value_node, full)
        return group

    def _place(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}" if self._has_lines else self._source

    def _fault(self, node: yaml.Node, name: Name, text: str) -> None:
        self._faults.append(f"{self._place(node)}: {'.'.join(name)}: {text}")


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "group" if isinstance(node, yaml.MappingNode) else "single value"
