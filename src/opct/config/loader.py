"""Settings from a YAML file and dotted overrides, for any pydantic model: every fault at once, with place and remedy.

Layers, the later one wins: defaults of the model < `base` < preset < the YAML file < overrides (left to right).
Scalars are read as in YAML 1.2 (core schema): `5e-6` is a number, `no` and `on` are text, `true`/`false` are booleans.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from opct.config.presets import PRESETS
from opct.config.schema import TrainConfig
from opct.errors import ConfigError

S = TypeVar("S", bound=BaseModel)
MAX_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Most values of a file, each alias counted as what it stands for: 500 bytes of aliases can stand for 10^9 values."""

# What other tools call a setting; the error about such a name gives ours.
OTHER_WORDS = {
    "batch_size": "prompts_per_step",
    "per_device_train_batch_size": "prompts_per_step",
    "betas": "adam_beta1",
    "epochs": "num_train_epochs",
    "gamma": "kl_discount_factor",
    "group_size": "num_generations",
    "gradient_accumulation_steps": "micro_batch_tokens",
    "gradient_clipping": "max_grad_norm",
    "limit": "n_questions",
    "lora_alpha": "alpha",
    "lora_r": "r",
    "lora_rank": "r",
    "rank": "r",
    "lr": "learning_rate",
    "lr_scheduler": "lr_scheduler_type",
    "max_new_tokens": "max_completion_tokens",
    "max_tokens": "max_completion_tokens",
    "model_name_or_path": "name_or_path",
    "num_samples": "num_generations",
    "steps": "max_steps",
    "train_file": "pairs",
    "warmup": "warmup_steps",
}


def load_settings(
    model_class: type[S],
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    base: Mapping[str, Any] | None = None,
    presets: Mapping[str, Mapping[str, Any]] | None = None,
    preset: str | None = None,
) -> S:
    """The checked settings of a YAML file, with values and a preset under it and dotted overrides over it.

    Args:
        model_class: a `Section`, nested as deep as it likes; unions of sections may have a discriminator.
        path: a YAML file; None starts from the defaults.
        overrides: `section.name=value` each, the value read as YAML: `lora=null`, `data.pairs=[a.jsonl, b.jsonl]`.
        base: values under the file, nested or by dotted name.
        presets: nested values by name; the file's own `preset: NAME`, or `preset`, lays one of them under the file.
        preset: wins over the file's own.

    Raises:
        ConfigError: with every fault at once, each with file:line (or the override), the dotted name, the value,
            what is expected, and the nearest valid name.
    """
    faults: list[Fault] = []
    tree = Entry({}, "defaults")
    if path is not None:
        tree = _read_file(Path(path), faults)
    for text in overrides:
        if (entry := _read_override(text, faults)) is not None:
            tree = entry.over(tree)
    if presets is not None:
        tree = _with_preset(tree, presets, preset, faults)
    for name, value in (base or {}).items():
        tree = tree.over(_nested(name.split("."), _from_plain(value, "given")))
    settings = _validate(model_class, tree, faults)
    if faults or settings is None:
        source = f"of {path} " if path is not None else ""
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        lines = "".join(f"\n  {fault.text}" for fault in sorted(faults, key=lambda fault: _line_number(fault, path)))
        raise ConfigError(f"The settings {source}have {count}; nothing was started:{lines}")
    return settings


def load_config(
    path: str | Path | None = None, overrides: Sequence[str] = (), preset: str | None = None
) -> TrainConfig:
    """The checked settings of a training run; see `load_settings`.

    Args:
        preset: name of a preset of `opct.config.presets`; wins over the file's own `preset:`.

    Raises:
        ConfigError: with every fault at once.
    """
    layers = {name: found.settings for name, found in PRESETS.items()}
    return load_settings(TrainConfig, path, overrides, presets=layers, preset=preset)


def dump_config(settings: BaseModel) -> str:
    """The settings as YAML that `load_settings` reads back to equal ones."""
    values = settings.model_dump(mode="json")
    return yaml.dump(values, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=100)


def read_yaml(path: Path) -> Any:
    """The plain values of a YAML mapping, unchecked but bounded: for settings that another version may have written.

    Raises:
        ConfigError: there is no such file, it is not a YAML mapping in UTF-8, or it is too large.
    """
    return _read_file(path, []).plain()


def config_schema() -> dict[str, Any]:
    """JSON schema of a training config, `preset` included: point an editor at it for completion and checks."""
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


# ------------------------------------------------------------------------------------------- values and their places


@dataclass(frozen=True)
class Entry:
    """A value and where it was written. `value` is a scalar, a list of entries or a dict of entries."""

    value: Any
    where: str

    def plain(self) -> Any:
        """The value alone, as dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {key: entry.plain() for key, entry in self.value.items()}
        if isinstance(self.value, list):
            return [entry.plain() for entry in self.value]
        return self.value

    def over(self, under: Entry) -> Entry:
        """This entry laid over another: groups are merged, everything else replaces."""
        if not (isinstance(self.value, dict) and isinstance(under.value, dict)):
            return self
        merged = dict(under.value)
        for key, entry in self.value.items():
            merged[key] = entry.over(merged[key]) if key in merged else entry
        return Entry(merged, self.where)

    def without(self, path: Sequence[str]) -> Entry:
        """The same tree with one key left out, so that its default applies."""
        if not path or not isinstance(self.value, dict) or path[0] not in self.value:
            return self
        kept = dict(self.value)
        child = kept.pop(path[0])
        if len(path) > 1 and isinstance(child.value, dict):
            kept[path[0]] = child.without(path[1:])
        return Entry(kept, self.where)


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the line to show, and the setting that it casts doubt on."""

    text: str
    setting: str


def _line_number(fault: Fault, path: str | Path | None) -> float:
    """Line of the file that a fault is on; what is not in the file comes after it."""
    found = re.match(r":(\d+)", fault.text.removeprefix(str(path)))
    return int(found[1]) if found else float("inf")


def _nested(path: Sequence[str], entry: Entry) -> Entry:
    for part in reversed(path):
        entry = Entry({part: entry}, entry.where)
    return entry


def _from_plain(value: Any, where: str) -> Entry:
    if isinstance(value, Mapping):
        return Entry({key: _from_plain(child, where) for key, child in value.items()}, where)
    if isinstance(value, list | tuple):
        return Entry([_from_plain(child, where) for child in value], where)
    return Entry(value, where)


def _with_preset(
    tree: Entry, presets: Mapping[str, Mapping[str, Any]], preset: str | None, faults: list[Fault]
) -> Entry:
    own = tree.value.get("preset")
    tree = tree.without(["preset"])
    where, name = ("--preset", preset) if preset is not None else (own.where, own.plain()) if own else ("", None)
    if name is None:
        return tree
    if not isinstance(name, str) or name not in presets:
        expected = f"expected one of {', '.join(presets)}{_did_you_mean(str(name), presets)}"
        faults.append(Fault(f"{where}: preset: no preset {name!r}, {expected}", "preset"))
        return tree
    return tree.over(_from_plain(presets[name], f"preset {name}"))


# ------------------------------------------------------------------------------------------------------ reading YAML

# YAML 1.2 core schema. PyYAML implements 1.1, where 5e-6 is text and `no` is false.
_CORE_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)


def _core_resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    table: dict[str, list[tuple[str, re.Pattern[str]]]] = {"": []}
    for tag, pattern, first_characters in _CORE_SCALARS:
        for character in first_characters.replace("\0", ""):
            table.setdefault(character, []).append((tag, re.compile(rf"(?:{pattern})\Z")))
    table[""].append(("tag:yaml.org,2002:null", re.compile(r"\Z")))
    return table


class _CoreLoader(yaml.SafeLoader):
    yaml_implicit_resolvers = _core_resolvers()


class _CoreDumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _core_resolvers()


def _read_file(path: Path, faults: list[Fault]) -> Entry:
    """The YAML file as a tree; faults that leave the rest readable are added to `faults`."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size:,} bytes; settings have at most {MAX_BYTES:,}.")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(f"No config file at {path}: check the path.") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(f"Cannot read the config file {path}: {getattr(error, 'strerror', error)}.") from error
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}.") from error
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):
        return Entry({}, str(path))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:1: a config is `name: value` lines, found a {_kind(node)}.")
    return _TreeBuilder(str(path), faults, lines=True).entry(node, "")


def _read_override(text: str, faults: list[Fault]) -> Entry | None:
    """`section.name=value` as a tree with that one setting, or None and a fault."""
    where = f"override {text}"
    name, equals, raw = text.partition("=")
    name = name.strip()
    parts = name.split(".")
    if not equals or not all(parts):
        faults.append(Fault(f"{where}: an override is `section.name=value`, such as optim.learning_rate=1e-4", ""))
        return None
    if not raw.strip():
        faults.append(Fault(f"{where}: {name}: no value; write `null` for none or '\"\"' for empty text", name))
        return None
    try:
        node = yaml.compose(raw, Loader=_CoreLoader)
    except (yaml.YAMLError, RecursionError) as error:
        problem = getattr(error, "problem", None) or error
        faults.append(Fault(f"{where}: {name}: the value is not valid YAML ({problem}); quote it", name))
        return None
    if node is None:  # only a comment
        faults.append(Fault(f"{where}: {name}: no value; quote it if it starts with #", name))
        return None
    return _nested(parts, _TreeBuilder(where, faults, lines=False).entry(node, name))


class _TreeBuilder:
    """Turns composed YAML nodes into entries. Duplicate keys, odd keys, odd tags and self-references become faults."""

    def __init__(self, source: str, faults: list[Fault], *, lines: bool):
        self._source, self._faults, self._lines = source, faults, lines
        self._parents: list[int] = []
        self._values = 0

    def entry(self, node: yaml.Node, name: str) -> Entry:
        where = self._place(node)
        self._values += 1
        if self._values > MAX_VALUES:
            raise ConfigError(f"{where}: more than {MAX_VALUES:,} values, aliases written out; write fewer.")
        if id(node) in self._parents:
            self._fault(node, name, "an alias that contains itself; write the value out")
            return Entry(None, where)
        self._parents.append(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Entry([self.entry(child, f"{name}.{i}") for i, child in enumerate(node.value)], where)
            if isinstance(node, yaml.MappingNode):
                return Entry(self._group(node, name), where)
            return Entry(self._scalar(node, name), where)
        finally:
            self._parents.pop()

    def _group(self, node: yaml.MappingNode, name: str) -> dict[str, Entry]:
        group: dict[str, Entry] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._fault(key_node, name, f"a name must be text, found a {_kind(key_node)}")
                continue
            key = key_node.value
            full = f"{name}.{key}" if name else key
            if key in group:
                self._fault(key_node, full, f"given twice, first at {group[key].where}: keep one")
                continue
            group[key] = Entry(self.entry(value_node, full).value, self._place(key_node))
        return group

    def _scalar(self, node: yaml.Node, name: str) -> Any:
        text: str = node.value
        kind = node.tag.removeprefix("tag:yaml.org,2002:")
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return text.lower() == "true"
            if kind == "int":
                return int(text)
            if kind == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:  # an explicit tag, such as `!!int abc`, or more digits than Python reads
            self._fault(node, name, f"{_shorten(repr(text))} is not a number")
            return text
        if kind != "str":
            self._fault(node, name, f"the tag {node.tag!r} is not allowed; write text or a number")
        return text

    def _place(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}" if self._lines else self._source

    def _fault(self, node: yaml.Node, name: str, text: str) -> None:
        self._faults.append(Fault(f"{self._place(node)}: {name}: {text}", name))


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "group" if isinstance(node, yaml.MappingNode) else "single value"


# ---------------------------------------------------------------------------------------------------------- checking


def _validate(model_class: type[S], tree: Entry, faults: list[Fault]) -> S | None:
    """The settings, or None with `faults` filled.

    Checks across settings run only on settings that are valid one by one, so faulty ones are then taken out and the
    rest is checked again. A check that speaks of a faulty setting is not reported: it would rest on a default.
    """
    try:
        return _check(model_class, tree)
    except ValidationError as error:
        faults += _faults_of(model_class, error, tree)
        for item in error.errors(include_url=False):
            tree = tree.without(_locate(tree, item["loc"])[0])
    try:
        _check(model_class, tree)
    except ValidationError as error:
        doubtful = {fault.setting for fault in faults if fault.setting}
        later = [fault for fault in _faults_of(model_class, error, tree) if fault not in faults]
        faults += [fault for fault in later if not any(setting in fault.text for setting in doubtful)]
    return None


def _check(model_class: type[S], tree: Entry) -> S:
    # JSON mode: a YAML list may become a tuple, while every other type stays strict.
    return model_class.model_validate_json(json.dumps(tree.plain()))


def _locate(tree: Entry, loc: Sequence[int | str]) -> tuple[list[str], Entry]:
    """The part of a pydantic location that was really written (it also names union members), and its entry."""
    path: list[str] = []
    entry = tree
    for part in loc:
        in_group = isinstance(entry.value, dict) and part in entry.value
        in_list = isinstance(entry.value, list) and isinstance(part, int) and part < len(entry.value)
        if in_group or in_list:
            entry = entry.value[part]
            path.append(str(part))
    return path, entry


def _faults_of(model_class: type[BaseModel], error: ValidationError, tree: Entry) -> Iterator[Fault]:
    known = setting_names(model_class)
    wrong: dict[str, tuple[Entry, list[str]]] = {}
    for item in error.errors(include_url=False):
        path, entry = _locate(tree, item["loc"])
        name = ".".join(path)
        if item["type"] == "extra_forbidden":
            yield from _unknown(path, entry, known)
        elif item["type"] == "missing":
            missing = ".".join([*path, str(item["loc"][-1])])
            yield Fault(f"{entry.where}: {missing}: missing, and it has no default", missing)
        elif item["type"] == "value_error" and (not path or isinstance(entry.value, dict)):
            for line in str(item["ctx"]["error"]).splitlines():
                where = _cross_place(tree, line) or (entry.where if path else "")
                yield Fault(f"{where}: {line}" if where else line, "")
        else:
            wrong.setdefault(name, (entry, []))[1].append(_expected(item, path, known))
    for name, (entry, expected) in wrong.items():
        value = _shorten(json.dumps(entry.plain(), ensure_ascii=False))
        yield Fault(f"{entry.where}: {name}: {value} is not valid, expected {' or '.join(expected)}", name)


def _cross_place(tree: Entry, line: str) -> str:
    """Where the first setting that a check across settings names was written; "" where none of them was."""
    for word in re.findall(r"[a-z_][\w.-]*\w", line):
        path, entry = _locate(tree, word.split("."))
        if ".".join(path) == word and not (isinstance(entry.value, dict) and len(path) == 1):
            return entry.where
    return ""


def _unknown(path: list[str], entry: Entry, known: Sequence[str]) -> Iterator[Fault]:
    if isinstance(entry.value, dict) and entry.value:
        for key, child in entry.value.items():
            yield from _unknown([*path, key], child, known)
        return
    name = ".".join(path)
    right = _nearest(name, known)
    value = _shorten(json.dumps(entry.plain(), ensure_ascii=False))
    hint = f"; did you mean {right}?" if right else f"; there are {', '.join(_siblings(path[:-1], known))}"
    yield Fault(f"{entry.where}: {name}: unknown setting (value {value}){hint}", right or name)


def _siblings(section: Sequence[str], known: Sequence[str]) -> list[str]:
    """Names in a section, those of a section within it as one."""
    prefix = "".join(f"{part}." for part in section)
    inside = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(".")[0] for name in inside or known))


def _expected(item: Any, path: list[str], known: Sequence[str]) -> str:
    if item["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"a group of settings ({', '.join(_siblings(path, known))})"
    if item["type"] == "value_error":
        return str(item["ctx"]["error"])
    text = str(item["msg"])
    for start in ("Input should be ", "Input should have ", "List should have ", "String should have "):
        text = text.removeprefix(start)
    text = text.replace("a valid array", "a list").replace("a valid ", "a ").replace("a integer", "an integer")
    if item["type"] == "list_type":
        return f"{text}, such as [{item['input']}]" if isinstance(item["input"], str) else text
    if item["type"] == "literal_error" and isinstance(item["input"], str):
        return text + _did_you_mean(item["input"], re.findall(r"'([^']*)'", str(item["ctx"]["expected"])))
    if item["type"] == "union_tag_invalid":
        tags = re.findall(r"'([^']*)'", str(item["ctx"]["expected_tags"]))
        name = str(item["ctx"]["discriminator"]).strip("'")
        return f"{name}: one of {', '.join(tags)}{_did_you_mean(str(item['ctx']['tag']), tags)}"
    return text


def _did_you_mean(word: str, options: Iterator[str] | Sequence[str] | Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(word, list(options), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------------------------- names


def setting_names(model_class: type[BaseModel] = TrainConfig) -> list[str]:
    """Every dotted setting name, `seed` and `optim.learning_rate` alike; of a union, those of all its sections."""
    return list(dict.fromkeys(_names(model_class, "")))


def _names(section: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = list(_sections(field.annotation))
        for one in inner:
            yield from _names(one, f"{prefix}{name}.")
        if not inner:
            yield prefix + name


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that a field may hold itself; those within a list or a dict have no dotted name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif getattr(annotation, "__origin__", None) not in (list, dict, tuple):
        for part in get_args(annotation):
            yield from _sections(part)


def nearest_setting(name: str, model_class: type[BaseModel] = TrainConfig) -> str | None:
    """The valid dotted name that `name` most likely means: the same leaf elsewhere, else the most alike; or None."""
    return _nearest(name, setting_names(model_class))


def _nearest(name: str, known: Sequence[str]) -> str | None:
    leaf = name.rpartition(".")[2]
    ours = OTHER_WORDS.get(leaf)
    for candidate in known:
        if ours is not None and candidate.rpartition(".")[2] == ours:
            return candidate

    def likeness(candidate: str) -> float:
        whole = difflib.SequenceMatcher(None, name, candidate).ratio()
        last = difflib.SequenceMatcher(None, leaf, candidate.rpartition(".")[2]).ratio()
        return last + 0.2 * whole  # the leaf decides; the section breaks ties between equal leaves

    best = max(known, key=likeness)
    return best if likeness(best) >= 0.8 else None
