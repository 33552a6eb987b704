"""A YAML file or a dotted override as a tree of values that know where they were written.

Scalars are read as in YAML 1.2 (core schema): `5e-6` is a number, `no` and `on` are text, `true`/`false` are booleans.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from opct.errors import ConfigError

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


class CoreDumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _core_resolvers()


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
    """One thing that is wrong: the line shown, and the setting it casts doubt on."""

    line: str
    setting: str


def read_file(path: Path, faults: list[Fault]) -> Entry:
    """The YAML file as a tree; faults that leave the rest readable are added to `faults`.

    Raises:
        ConfigError: there is no such file, or it is not a YAML mapping in UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8."
        ) from error
    except FileNotFoundError as error:
        raise ConfigError(
            f"No config file at {path}: check the path; `opct train --help` names examples, and "
            "`opct config schema` lists every setting."
        ) from error
    except OSError as error:
        raise ConfigError(f"Cannot read the config file {path}: {error.strerror}.") from error
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML: {error.problem or error.context}.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}.") from error
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value == ""):
        return Entry({}, str(path))
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{path}:1: a config is `name: value` lines, found a {_kind(node)}.")
    return _entry(node, lambda n: f"{path}:{n.start_mark.line + 1}", "", faults)


def read_override(text: str, faults: list[Fault]) -> Entry | None:
    """`section.name=value` as a tree with that one setting, or None and a fault."""
    where = f"override {text}"
    name, equals, raw = text.partition("=")
    parts = name.strip().split(".")
    if not equals or not all(parts):
        faults.append(Fault(f"{where}: an override is `section.name=value`, such as optim.learning_rate=1e-4", ""))
        return None
    if not raw.strip():
        faults.append(Fault(f"{where}: {name.strip()}: no value; write `null` for none or '\"\"' for empty text", name))
        return None
    try:
        node = yaml.compose(raw, Loader=_CoreLoader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        faults.append(Fault(f"{where}: {name.strip()}: the value is not valid YAML ({problem}); quote it", name))
        return None
    if node is None:  # only a comment
        faults.append(Fault(f"{where}: {name.strip()}: no value; quote it if it starts with #", name))
        return None
    entry = _entry(node, lambda _: where, name.strip(), faults)
    for part in reversed(parts):
        entry = Entry({part: entry}, where)
    return entry


def _entry(
    node: yaml.Node,
    place: Callable[[yaml.Node], str],
    name: str,
    faults: list[Fault],
    parents: tuple[int, ...] = (),
) -> Entry:
    """The composed YAML node as entries. Duplicate keys, odd keys, odd tags and self-references become faults."""
    where = place(node)
    if id(node) in parents:
        faults.append(Fault(f"{where}: {name}: an alias that contains itself; write the value out", name))
        return Entry(None, where)
    parents = (*parents, id(node))
    if isinstance(node, yaml.SequenceNode):
        items = [_entry(child, place, f"{name}.{i}", faults, parents) for i, child in enumerate(node.value)]
        return Entry(items, where)
    if not isinstance(node, yaml.MappingNode):
        return Entry(_scalar(node, where, name, faults), where)
    group: dict[str, Entry] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            faults.append(Fault(f"{place(key_node)}: {name}: a name must be text, found a {_kind(key_node)}", name))
            continue
        key = key_node.value
        full = f"{name}.{key}" if name else key
        if key in group:
            faults.append(Fault(f"{place(key_node)}: {full}: given twice, first at {group[key].where}: keep one", full))
            continue
        child = _entry(value_node, place, full, faults, parents)
        group[key] = Entry(child.value, place(key_node))
    return Entry(group, where)


def _scalar(node: yaml.Node, where: str, name: str, faults: list[Fault]) -> Any:
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
    except ValueError:  # only after an explicit tag, such as `!!int abc`
        faults.append(Fault(f"{where}: {name}: {text!r} is not a number", name))
        return text
    if kind != "str":
        faults.append(Fault(f"{where}: {name}: the tag {node.tag!r} is not allowed; write text or a number", name))
    return text


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.SequenceNode):
        return "list"
    return "group" if isinstance(node, yaml.MappingNode) else "single value"


def from_plain(value: Any, where: str) -> Entry:
    """Plain values as a tree that all comes from one place."""
    if isinstance(value, Mapping):
        return Entry({key: from_plain(child, where) for key, child in value.items()}, where)
    if isinstance(value, list | tuple):
        return Entry([from_plain(child, where) for child in value], where)
    return Entry(value, where)
