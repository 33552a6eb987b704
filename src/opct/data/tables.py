"""Rows of local files (JSON lines, JSON, CSV, TSV, also gzipped; Parquet), hub data sets or Python data; columns.

Every row comes with its place (`file:line`). A row that cannot be read is a `RowFault`, so that `parse_rows` collects
every fault of a file, and `refuse` reports them at once. A key whose value is null or NaN is left out, as Arrow and
pandas write these where a key is missing; only a message keeps `"content": null`.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import datetime
import gzip
import json
import logging
import re
import socket
import urllib.request
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from opct.errors import DataError, LibraryErrors, first_of, shown_faults, unknown
from opct.runs import io

log = logging.getLogger(__name__)

HUB = "hf:"
FORMATS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
MAX_ROWS = 10**6
EMBEDDED = Path(__file__).parent / "builtin"
"""The folder of what is embedded: questions, behaviors, hazards, requests, wording."""

T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Row = tuple[str, Any]
"""(place, a mapping or a `RowFault`)"""
Fault = tuple[str, str]
"""(place, what is wrong and what to do)"""
Source = str | Path | Iterable[Any]
"""A file, a folder of `datasets`, hf:owner/name, or rows in Python: a list, a DataFrame, a `datasets.Dataset`."""
Columns = Mapping[str, str | Sequence[str]]
"""Role -> name of its column, or of several."""
SEVERAL = ("wrong", "choices")
"""Roles that may have several columns (`wrong_1`, `option_a`, ...)."""


class RowFault(Exception):
    """One or several faults of a row."""


# -------------------------------------------------------------------------------------------------------------- faults


def parse_rows(rows: Iterable[Row], parse: Callable[[Any], T]) -> tuple[list[tuple[str, T]], list[Fault]]:
    """(place and value of each row that `parse` takes, the faults of the others, which it raises as `RowFault`)."""
    parsed: list[tuple[str, T]] = []
    faults: list[Fault] = []
    for where, row in rows:
        try:
            if isinstance(row, RowFault):
                raise row
            parsed.append((where, parse(row)))
        except RowFault as error:
            # `args`, not str(error): a row with three faults is three lines
            faults += [(where, fault) for fault in error.args]
    return parsed, faults


def validate_row(row: Any, model: type[Model]) -> Model:
    """The row as `model`. Raises RowFault with every fault of the row."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise RowFault(*(_fault_text(one, model) for one in error.errors(include_url=False))) from error


def _fault_text(fault: Any, model: type[BaseModel]) -> str:
    place = ".".join(map(str, fault["loc"]))
    if fault["type"] == "missing":
        return f"`{place}` is missing"
    if fault["type"] == "extra_forbidden":
        names = ", ".join(field.alias or name for name, field in model.model_fields.items())
        return f"unknown key `{place}`: the keys are {names}"
    return f"`{place}`: {fault['msg'].removeprefix('Value error, ')}, found {str(fault['input'])[:60]!r}"


def duplicate_ids(places: Iterable[tuple[str, str]]) -> list[Fault]:
    """A fault for each (place, id) whose id stood before."""
    first: dict[str, str] = {}
    return [
        (where, f"duplicate id {name!r}, first at {first[name]}: ids must differ")
        for where, name in places
        # the place, not the id, is compared: the first row of an id is none of its repeats
        if first.setdefault(name, where) != where
    ]


def warn_of_repeats(source: str | Path, places: Sequence[str], what: str) -> None:
    """Warn of rows that are left out, since they repeat an earlier one; `what` they are, in the plural."""
    if places:
        log.warning("%s: repeated %s dropped: %d (%s)", source, what, len(places), first_of(places))


def refuse(source: str | Path, faults: Sequence[Fault]) -> None:
    """Raise DataError with every fault at once, if there are any: one line a kind with the first places of it."""
    if not faults:
        return
    kinds: dict[str, list[Fault]] = {}
    for where, fault in faults:
        # without names, numbers and values: what is left says the kind, else 1000 faulty rows would be 1000 lines
        kinds.setdefault(re.sub(r"'[^']*'|\"[^\"]*\"|\d+|found .*", "", fault), []).append((where, fault))
    lines = []
    for (where, fault), *others in kinds.values():
        more = first_of([place for place, _ in others])
        lines.append(f"{where}: {fault}" + (f" (and {len(others)} more like it: {more})" if others else ""))
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
    raise DataError(f"{source}: {count}:", shown_faults(lines))


# --------------------------------------------------------------------------------------------------------- local files


def source_name(source: Source) -> str:
    """The source as messages name it."""
    return str(source) if isinstance(source, str | Path) else "the given rows"


def read_rows(
    source: Source,
    what: str = "row",
    *,
    split: str = "train",
    pinned: bool = True,
    default_format: str | None = None,
    keyed_by: str | None = None,
    known: Collection[str] = (),
) -> list[Row]:
    """Every row of a local file, of a folder saved by `datasets`, of a hub data set, or of data in Python.

    A JSON list may hold texts; each is a row with the column `text`. A JSON object may hold the list under any key.

    Args:
        source: a path, `hf:owner/name[:[config/]split][@revision]`, a list of rows, a DataFrame or a `Dataset`.
        what: what a row is, for messages.
        split: of a data set, where the source names none.
        pinned: refuse a hub data set without a revision, which may change under its name.
        default_format: of a file whose name does not tell.
        keyed_by: read a JSON object of objects too, one row an entry, with its key in this column.
        known: columns by `column_key`, of which a row has at least one; tells a JSON object that is the only row of a
            file from one that holds the list of rows.

    Raises:
        DataError: the source is missing, of an unknown format, or not readable.
    """
    rows: Iterable[Row]
    if not isinstance(source, str | Path):
        rows = _given_rows(source)
    elif str(source).startswith(HUB) or (path := Path(source)).is_dir() or path.suffix.lower() == ".parquet":
        rows = _dataset_rows(str(source), split, what, pinned=pinned)
    else:
        kind = file_format(path) or default_format
        if kind is None:
            formats = ", ".join((*FORMATS, ".parquet"))
            more = "(text also with .gz); export a spreadsheet as CSV UTF-8."
            raise DataError(f"{path}: cannot tell the format from the name: use one of {formats} {more}")
        text = read_text(path, what)
        if kind in (".csv", ".tsv"):
            rows = _table_rows(path, text, is_tsv=kind == ".tsv")
        elif _is_json_lines(text, is_named_so=kind != ".json", known=known):
            rows = _jsonl_rows(path, text)
        else:
            rows = _json_rows(path, text, what, keyed_by, known)
    return [(where, _filled_row(row)) for where, row in rows]


def _filled_row(row: Any) -> Any:
    try:
        return _filled(row)
    except RowFault as fault:
        return fault


def _filled(value: Any) -> Any:
    """The value without the keys that have none; the content of a message may be null: a turn that is sampled."""
    if isinstance(value, RowFault):
        raise value
    if isinstance(value, Mapping):
        # a null content is a turn to be sampled: dropped, the message would be refused as one without content
        nullable_keys = {"content"} if "role" in value else {"value"} if "from" in value else set()
        return {key: _filled(entry) for key, entry in value.items() if not _is_missing(entry) or key in nullable_keys}
    if isinstance(value, list | tuple):
        return [_filled(entry) for entry in value]
    return _filled(value.tolist()) if hasattr(value, "tolist") else value  # numpy's arrays and numbers


def _is_missing(value: Any) -> bool:
    is_nan = isinstance(value, float) and value != value
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")  # pandas' own, which has no truth


def file_format(path: Path) -> str | None:
    """The ending that says how to read a file, without .gz; None if it is not one of `FORMATS`."""
    endings = [suffix.lower() for suffix in path.suffixes]
    # a slice: a name without an ending has no last one
    if endings[-1:] == [".gz"]:
        endings.pop()
    return endings[-1] if endings and endings[-1] in FORMATS else None


def file_stem(path: str | Path) -> str:
    """The file name without its endings: `facts.jsonl.gz` -> `facts`."""
    return Path(path).name.split(".")[0] or Path(path).name


MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte order mark -> encoding of the file that begins with it."""


def read_text(path: Path, what: str) -> str:
    """The text of a file in UTF-8, or in UTF-16 with a byte order mark; unzipped if its name ends in .gz. Raises
    DataError where it is missing, not readable, not a whole gzip file, or not text; with every line that is not
    UTF-8."""
    try:
        data = io.read_bytes(path)
        if path.suffix.lower() == ".gz":
            with gzip.open(BytesIO(data)) as file:
                # + 1: what is longer is refused below, and is not unpacked any further
                data = file.read(io.MAX_FILE_BYTES + 1)
            if len(data) > io.MAX_FILE_BYTES:
                raise ValueError(f"unpacked it has more than {io.MAX_FILE_BYTES:,} bytes")
        # utf-8-sig drops the mark: left in, it would be part of the first column's name
        text = data.decode(next((name for mark, name in MARKS.items() if data.startswith(mark)), "utf-8"))
    except UnicodeDecodeError as error:
        # with zero bytes it is no text in another encoding but a spreadsheet: its lines would all be faults
        if b"\0" not in data:
            refuse(path, list(_encoding_faults(path, data)))
        raise DataError(f"{path}: {NO_TEXT}") from error
    # before OSError, of which BadGzipFile is one: its message would name the rights
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}): fetch it again, or unpack it.") from error
    except FileNotFoundError as error:
        raise DataError(f"No {what} file at {path}: check the path.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot read {path}: {io.reason(error)}. Check its rights, or give another file.") from error
    if "\0" in text:
        raise DataError(f"{path}: {NO_TEXT}")
    return text


NO_TEXT = "it is not UTF-8 text (it holds zero bytes): export a spreadsheet as CSV UTF-8, save a text as UTF-8."


def _encoding_faults(path: Path, data: bytes) -> Iterator[Fault]:
    """A fault for each line that is not UTF-8: the encoding cannot be told, and a guess may change letters."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            near = line[max(error.start - 20, 0) : error.start + 20].decode("cp1252", "replace").strip()
            remedy = "in Excel, save as 'CSV UTF-8'; elsewhere choose the encoding UTF-8"
            yield f"{path}:{number}", f"not UTF-8 text: {remedy}; read as Windows-1252, found {near!r}"


def parse_json(text: str, model: Any = Any) -> Any:
    """The value of a JSON text; see `opct.runs.io.parse_json` for its bounds. Raises RowFault where it is not JSON, or
    does not fit the model."""
    try:
        return io.parse_json(text, model)
    except ValueError as fault:
        raise RowFault(str(fault)) from fault


def _json_value(text: str) -> Any:
    """The value of a JSON text, with a `RowFault` in the place of an object that has a key twice; raised where it is
    not JSON."""
    parse_json(text)  # bounds depth and numbers, which the standard library does not
    return json.loads(text, object_pairs_hook=_json_object)


def _json_object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | RowFault:
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            # returned, not raised: the other rows of the file are still read, and their faults reported with this one
            return RowFault(f"the key {key!r} stands twice in an object: keep one of the two")
        members[key] = value
    return members


def _is_json_lines(text: str, *, is_named_so: bool, known: Collection[str]) -> bool:
    """True if a JSON file holds one object a line, whatever its name says.

    Args:
        is_named_so: the name says that it does; a line that is not JSON is then a faulty row.
    """
    first, _, rest = text.lstrip().partition("\n")
    try:
        value = _json_value(first)
    except RowFault:
        return is_named_so and not first.startswith("[") and first.strip() != "{"
    # the first line is a whole value and more follows: a .json file of one object a line
    if rest.strip():
        return is_named_so or isinstance(value, dict | RowFault)
    return is_named_so and not isinstance(value, list) and not (known and _lists_in(value, known))


def _lists_in(document: Any, known: Collection[str]) -> list[str]:
    """The keys of lists of objects in an object that is no row itself."""
    if not isinstance(document, dict) or any(column_key(key) in known for key in document):
        return []
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    return [key for key, value in lists.items() if any(isinstance(item, Mapping | RowFault) for item in value)]


def _jsonl_rows(path: Path, text: str) -> Iterator[Row]:
    # not splitlines: a string in JSON may hold U+2028, at which it would break the row
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield f"{path}:{number}", _json_row(_json_value(line))
            except RowFault as fault:
                yield f"{path}:{number}", RowFault(str(fault).replace(" at line 1 column", " at column"))


def _json_rows(path: Path, text: str, what: str, keyed_by: str | None, known: Collection[str]) -> list[Row]:
    try:
        rows = _json_value(text)
        if isinstance(rows, RowFault):
            raise rows
    except RowFault as fault:
        raise DataError(f"{path}: {fault}.") from fault
    # exactly one: of two lists ("train", "test") neither may be dropped in silence
    if len(keys := _lists_in(rows, known)) == 1:
        rows = rows[keys[0]]
    elif isinstance(rows, dict) and keyed_by:
        return [(f"{path} {key[:50]!r}", _json_row(row, keyed_by, key)) for key, row in rows.items()]
    elif isinstance(rows, dict) and any(column_key(key) in known for key in rows):
        rows = [rows]
    if not isinstance(rows, list):
        shape = f"not one with the keys {', '.join(rows)[:60]}" if isinstance(rows, dict) else type(rows).__name__
        raise DataError(f"{path} must hold a list of objects, one a {what}, or an object with one such list, {shape}.")
    rows = [{"text": row} if isinstance(row, str) else row for row in rows]
    return [(f"{path} row {number}", _json_row(row)) for number, row in enumerate(rows, start=1)]


def _json_row(row: Any, key_column: str | None = None, key: str = "") -> Any:
    if isinstance(row, RowFault):
        return row
    if not isinstance(row, Mapping):
        return RowFault(f"expected a JSON object, found {type(row).__name__}")
    if named := [key for key in row if not isinstance(key, str)]:
        more = " (Python's csv.DictReader gives None to cells that the header has no name for)" if None in named else ""
        return RowFault(f"a column is named {named[0]!r}, which is no text{more}: rename it")
    # the row's value of that column wins over its key
    return row if key_column is None else {key_column: key, **row}


def _table_rows(path: Path, text: str, *, is_tsv: bool) -> Iterator[Row]:
    named = re.match(r"sep=(.)[ \t]*(?=\r?\n)", text, re.IGNORECASE)  # a line for Excel alone
    # the line end stays: line numbers count from the file's first line
    text = text[named.end() :] if named else text
    first_line = next((line for line in text.splitlines() if line.strip()), "")
    # else what is most frequent in the header; a semicolon in half of Europe
    delimiter = named[1] if named else "\t" if is_tsv else max(",;\t|", key=first_line.count)
    # newline="": line ends in a cell stay as written; strict: an open quote is an error, no cell up to the file's end
    reader = csv.reader(StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    names: list[str] = []
    start = 1
    try:
        for cells in reader:
            # the line a row begins at: line_num is that of its last line, where a cell holds line ends
            where, start = f"{path}:{start}", reader.line_num + 1
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                names = [name or f"column {number} (no name)" for number, name in enumerate(header, start=1)]
                if repeated := sorted(name for name, count in Counter(header).items() if name and count > 1):
                    raise DataError(f"{where}: several columns are named {', '.join(repeated)}: rename all but one.")
            elif len(cells) != len(header):
                sizes = f"{len(cells)} cells where the header has {len(header)}"
                remedy = f"quote cells that hold {delimiter!r}" if len(cells) > len(header) else "add the missing ones"
                yield where, RowFault(f"{sizes}: {remedy}")
            else:
                filled = zip(header, names, cells, strict=True)
                # a column without a name and without text is the empty one that spreadsheets add at the end
                yield where, {key: cell for name, key, cell in filled if name or cell.strip()}
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: not a readable table: {error}.") from error


# ------------------------------------------------------------------------------------------ data sets, data in Python


def _given_rows(rows: Any) -> list[Row]:
    if isinstance(rows, Mapping):
        names = ", ".join(map(str, list(rows)[:5]))
        raise DataError(f"Rows were expected, found a {type(rows).__name__} of {names}: give one split, or a list.")
    if hasattr(rows, "iterrows"):  # pandas: its JSON has lists for arrays, and null for NaN
        rows = rows.apply(lambda column: column.map(_without_seconds) if column.dtype == object else column)
        try:
            # 15, pandas' maximum: at its 10 a number that is an answer changes
            rows = parse_json(rows.to_json(orient="records", date_format="iso", double_precision=15))
        except ValueError as error:
            raise DataError(f"The DataFrame cannot be read as rows: {error} Rename or convert its columns.") from error
    if hasattr(rows, "with_format"):  # of `datasets`
        rows = _arrow_values(rows)
    # `is_dataclass` is True for the class, too
    objects = (asdict(row) if is_dataclass(row) and not isinstance(row, type) else row for row in rows)
    return [(f"row {number}", _json_row(row)) for number, row in enumerate(objects, start=1)]


def _without_seconds(cell: Any) -> Any:
    """A time of day as it is said: "17:00", where it has no seconds."""
    is_whole = isinstance(cell, datetime.time) and not (cell.second or cell.microsecond)
    return cell.isoformat("minutes") if is_whole else cell


def hub_problem() -> str | None:
    """Why the hub is not asked, or its host cannot be looked up; None if it can, or if a proxy looks it up."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set, so the hub is not asked"
    # behind a proxy the name need not resolve here
    if not {"http", "https", "all"}.isdisjoint(urllib.request.getproxies()):
        return None
    host = urlsplit(constants.ENDPOINT).hostname or ""
    try:
        socket.getaddrinfo(host, 443)
    except OSError as error:
        return f"{host} cannot be reached ({error.strerror})"
    return None


@contextlib.contextmanager
def hub_or_cache() -> Iterator[None]:
    """Context in which the hub's clients read their cache alone if the hub cannot be reached.

    They would try five times for each file.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or hub_problem() is not None
    try:
        yield
    finally:
        # also after an error: else the whole process would stay offline
        constants.HF_HUB_OFFLINE = before


def _dataset_rows(source: str, split: str, what: str, *, pinned: bool) -> Iterator[Row]:
    # the revision first: a branch such as refs/pr/1 has slashes, as "config/split" has
    name, _, revision = source.removeprefix(HUB).partition("@")
    name, _, part = name.partition(":")
    is_on_hub = source.startswith(HUB)
    if not is_on_hub and not Path(source).exists():
        raise DataError(f"No {what} file at {source}: check the path.")
    saved = [Path(source) / name for name in ("state.json", "dataset_dict.json")]
    if Path(source).is_dir() and not any(map(Path.is_file, saved)):  # before datasets is asked for, which does not help
        raise DataError(f"{source} is a folder without a saved dataset: name a file.")
    if is_on_hub and pinned and not revision:
        raise DataError(
            f"{source} has no revision, so its content and splits may change: add the commit, {source}@COMMIT (under "
            f"'History' at huggingface.co/datasets/{name})."
        )
    try:
        import datasets
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise DataError(f"Reading {source} needs the datasets package: pip install 'opct[hub]'.") from error
    remedy = "its name, config, split and revision, and that the hub can be reached" if is_on_hub else "the path"
    with LibraryErrors(DataError, f"Cannot read split {split!r} of the dataset {source}", f"Check {remedy}."):
        if is_on_hub:
            # rpartition: "test" alone is a split, not a config
            config, _, named = part.rpartition("/")
            split = named or split
            with hub_or_cache():
                data = datasets.load_dataset(name, config or None, split=split, revision=revision or None)
        elif Path(source).is_dir():
            data = datasets.load_from_disk(source)
            if isinstance(data, datasets.DatasetDict) and split not in data:
                splits = ", ".join(f"{source}/{name}" for name in data)
                raise DataError(f"{source} has no split {split!r}: name the folder of one, of {splits}.")
            data = data[split] if isinstance(data, datasets.DatasetDict) else data
        else:
            io.check_readable(Path(source))
            data = ParquetFile(source)
        for number, row in enumerate(_arrow_values(data), start=1):
            yield f"{source} row {number}", row


def _arrow_values(data: Any) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file or a data set as Arrow has them, bytes left out.

    Decoded as the columns' metadata say, pictures and sounds would be opened, or fetched, from wherever a row says.
    """
    is_file = hasattr(data, "iter_batches")
    batches = data.iter_batches(1000) if is_file else data.with_format("arrow").iter(batch_size=1000)
    n_rows = n_bytes = 0
    for batch in batches:
        n_rows, n_bytes = n_rows + len(batch), n_bytes + batch.nbytes
        if n_rows > MAX_ROWS or n_bytes > io.MAX_FILE_BYTES:  # a few bytes may stand for millions of rows
            raise DataError(f"At most {MAX_ROWS:,} rows and {io.MAX_FILE_BYTES:,} bytes are read: give a part of them.")
        for row in batch.to_pylist():
            yield {key: _without_seconds(cell) for key, cell in row.items() if not isinstance(cell, bytes)}


# ------------------------------------------------------------------------------------------------------------- columns


def find_columns(
    source: str | Path,
    rows: Sequence[Row],
    chosen: Columns | None,
    guesses: Mapping[str, Sequence[str]],
    required: Iterable[str | Sequence[str]],
    *,
    option: str | None = "--column",
    hint: str = "",
) -> dict[str, tuple[str, ...]]:
    """Role -> columns: those that `chosen` names, else guessed by name. Case, spaces and underscores do not matter.

    Args:
        guesses: role -> usual names in the order of preference.
        required: roles that must be found; of several in one place, one of them.
        option: of the command line that names columns, for messages.
        hint: what the roles of which one is required are, for messages.

    Raises:
        DataError: there is no row, or (all at once) an unknown role or column is named, a required role has no column.
    """
    if not rows:
        raise DataError(f"{source} holds no rows: it needs at least one.")
    names = column_names(rows)
    if not names:  # no row could be read: their faults say why
        refuse(source, [(where, str(row) if isinstance(row, RowFault) else "it has no column") for where, row in rows])
    columns = guess_columns(names, guesses)
    faults = []
    for role, wanted in (chosen or {}).items():
        if role not in guesses:
            faults.append(unknown("role", role, guesses))
            continue
        columns[role] = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        if len(columns[role]) > 1 and role not in SEVERAL:
            faults.append(f"{role} has two columns: {' and '.join(columns[role][:2])}")
        faults += [f"{role}: {unknown('column', name, names)}" for name in columns[role] if name not in names]
        # a named column of wrong answers is meant: guessed choices would be read before it
        if role == "wrong":
            columns.pop("choices", None)
    for wanted in required:
        role, *others = [wanted] if isinstance(wanted, str) else wanted
        if role not in columns and not any(other in columns for other in others):
            usual = f"expected {' or '.join(guesses[role])}"
            named = (
                f"name it, for example {option} {role}=COLUMN (opct eval: columns.{role}=COLUMN; in Python rename it)"
            )
            remedy = named if option else usual
            roles = " or ".join([", ".join([role, *others[:-1]]), *others[-1:]])
            more = f"; {hint}" if others and hint else ""
            # cut: of a file that is no table the first line may be one name of any length
            there = ", ".join(name if len(name) <= 60 else f"{name[:57]}..." for name in names) or "(none)"
            faults.append(f"no {roles} column among {there}: {remedy}{more}")
    if faults:
        raise DataError(f"{source}: the columns are not clear:", tuple(faults))
    if file_format(Path(source)) in (".csv", ".tsv"):
        # columns that are read alone: an error of the spreadsheet elsewhere changes no question
        used = [name for group in columns.values() for name in group]
        refuse(source, [fault for where, row in rows for fault in _spreadsheet_faults(where, row, used)])
    return columns


_SPREADSHEET = {
    # in the language of the program: #REF!, #BEZUG!, #NOMBRE?, #N/A, #NV, Err:502
    re.compile(
        r"#(?:[^\W\d_a-z][^\Wa-z]*|DIV/0)[!?]|#N/?[AV]|Err:\d{3}"
    ): "an error of the spreadsheet: correct it there",
    re.compile(r"-?\d[.,]\d{5}E\+(?:1\d|20)"): "a number without its last digits: format the column as text there",
}
"""What spreadsheets write for an error, and for a number of more than eleven digits -> what to do."""


def _spreadsheet_faults(where: str, row: Any, used: Iterable[str]) -> Iterator[Fault]:
    for name in used:
        cell = str(row.get(name)).strip() if isinstance(row, Mapping) else ""
        for pattern, fault in _SPREADSHEET.items():
            if pattern.fullmatch(cell):
                yield where, f"the cell {cell!r} (column {name!r}) is {fault}, and export again"


def column_names(rows: Iterable[Row]) -> list[str]:
    """The columns of any row, in the order of their first use."""
    return list(dict.fromkeys(key for _, row in rows if isinstance(row, Mapping) for key in row))


def unread_texts(rows: Sequence[Row], used: Collection[str]) -> list[str]:
    """The columns that are not used and hold texts, lists or objects, which may be context of a prompt."""
    read = [row for _, row in rows if isinstance(row, Mapping)]
    unused = [name for name in column_names(rows) if name not in used]
    return [
        name for name in unused if any(isinstance(cell := row.get(name), str | list | dict) and cell for row in read)
    ]


SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Half of a character, which no tokenizer and no file takes."""
_NUMBERED_WRONG = re.compile(r"(wrong|distractor|incorrect|wrong_answer|incorrect_answer)_?[1-9]")


def guess_columns(names: Sequence[str], guesses: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Role -> columns by their usual names; see `find_columns`."""
    # reversed: of two columns with one key the first stays
    by_key = {column_key(name): name for name in reversed(names)}
    columns: dict[str, tuple[str, ...]] = {}
    for role, usual in guesses.items():
        if hits := tuple(by_key[name] for name in usual if name in by_key):
            # all columns of wrong answers, the preferred one of any other role
            columns[role] = hits if role == "wrong" else hits[:1]
    numbered = tuple(name for name in names if _NUMBERED_WRONG.fullmatch(column_key(name)))
    if numbered and "wrong" in guesses:
        columns["wrong"] = (*columns.get("wrong", ()), *numbered)
    for pattern in ("{}", "option_{}", "choice_{}"):
        lettered = [by_key.get(pattern.format(letter.lower())) for letter in LETTERS]
        # up to the first gap; the None at the end stops 26 columns, too
        count = next(i for i, name in enumerate([*lettered, None]) if name is None)
        if count >= 2 and "choices" in guesses and "choices" not in columns:
            columns["choices"] = tuple(name for name in lettered[:count] if name is not None)
    return columns


def known_columns(role: str, guesses: Mapping[str, Sequence[str]], chosen: Columns | None = None) -> set[str]:
    """The usual columns of a role and the named one, by `column_key`."""
    named = (chosen or {}).get(role, ())
    return {column_key(name) for name in (*([named] if isinstance(named, str) else named), *guesses[role])}


def column_key(name: str) -> str:
    """A column's name as names are compared."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_")
