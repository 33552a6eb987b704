"""`opct export`: the trained weights of a run as an adapter, a merged model or a GGUF file, with a model card."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from opct.config.loader import load_run_config
from opct.config.schema import flat_settings
from opct.errors import ConfigError, ModelError
from opct.models import export as weights
from opct.runs.checkpoints import weight_hashes
from opct.runs.io import atomic_write
from opct.runs.run_dir import RunDir


@dataclass(frozen=True)
class ExportResult:
    """What was written.

    Attributes:
        path: the folder or the GGUF file; None if it was only pushed.
        url: of the repository on the hub; None if nothing was pushed.
        difference: of a merged model from the evaluated one; None for an adapter, whose weights are copied.
        base_folder: the base model of an adapter, if it is a folder of this machine and not on the hub.
    """

    path: Path | None
    url: str | None = None
    difference: weights.Difference | None = None
    base_folder: str | None = None


def export(
    run: str | Path,
    *,
    adapter: str | Path | None = None,
    merged: str | Path | None = None,
    gguf: str | Path | None = None,
    quantize: str | None = None,
    push: str | None = None,
    private: bool = False,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    overwrite: bool = False,
    trust_remote_code: bool = False,
) -> ExportResult:
    """Write the weights of a run's newest checkpoint, or of a named one, for other programs.

    Args:
        run: a run directory, or one of its `checkpoints/step-*`.
        adapter: write the PEFT adapter into this folder.
        merged: write the whole model into this folder; it is loaded again and compared with the evaluated one.
        gguf: write a GGUF file, with llama.cpp's converter; `quantize` is a type of its llama-quantize.
        push: upload what was written to this repository of the hub; alone, the adapter, or the fully trained model.
        private: a new repository can be seen by its owner only.
        dtype: of the merged weights; by default that of the base model's files.
        overwrite: an earlier export, or files of the repository, may be replaced.
        trust_remote_code: run code that comes with the base model; the run's own setting does not count.

    Raises:
        ConfigError: options that exclude each other.
        ModelError: the weights cannot be exported as asked, or the hub refused them. No file is half written.
    """
    targets = [Path(path) for path in (adapter, merged, gguf) if path is not None]
    if len(targets) > 1 or not (targets or push):
        raise ConfigError("Name one of adapter (--adapter), merged (--merged) and gguf (--gguf), or push (--push).")
    for given, needed, name in ((quantize, gguf, "quantize"), (private or None, push, "private")):
        if given is not None and needed is None:
            raise ConfigError(f"{name} is for --{'gguf' if name == 'quantize' else 'push'} only: leave it out.")
    if push and gguf is not None:
        raise ConfigError("A GGUF file is not pushed: leave --push out, and upload it with `hf upload`.")
    trained = weights.find_trained(run, trust_remote_code=trust_remote_code)
    is_adapter = adapter is not None or (merged is None and gguf is None and trained.is_adapter)
    if dtype is not None and is_adapter:
        raise ConfigError("An adapter is exported in its own dtype: leave --dtype out, or use --merged.")
    if gguf is not None:
        weights.llama_cpp(quantize)
    base_folder = base if is_adapter and Path(base := weights.base_of(trained.base)[0]).exists() else None
    if push and base_folder:
        raise ModelError(
            f"The base of {trained.folder}, {trained.base.name_or_path}, is not on the hub, so nobody could load the "
            "adapter from there: push the whole model (--merged FOLDER --push NAME)."
        )
    if push:
        weights.hub_token(push)

    def write(folder: Path) -> weights.Difference | None:
        difference = None
        if is_adapter:
            weights.write_adapter(trained, folder)
        else:
            difference = weights.write_merged(trained, folder, dtype)
        place = push or f"path/to/{targets[0].resolve().name}"
        atomic_write(folder / "README.md", _card(trained, is_adapter, place, difference))
        return difference

    if not targets:
        with tempfile.TemporaryDirectory(prefix="opct-export-") as folder:
            difference = write(Path(folder) / "model")
            url = weights.push(Path(folder) / "model", str(push), private=private, overwrite=overwrite)
        return ExportResult(None, url, difference)
    with weights.replacing(targets[0], trained.base, overwrite=overwrite) as temporary:
        if gguf is None:
            difference = write(temporary)
        else:
            with tempfile.TemporaryDirectory(prefix=".opct-export-", dir=temporary.parent) as folder:
                difference = write(Path(folder) / "model")
                weights.write_gguf(Path(folder) / "model", temporary, quantize)
    pushed = weights.push(targets[0], push, private=private, overwrite=overwrite) if push else None
    return ExportResult(targets[0], pushed, difference, base_folder)


def _card(trained: weights.Trained, is_adapter: bool, place: str, difference: weights.Difference | None) -> str:
    """The model card of the exported weights, with the run's evaluation if it is of these weights."""
    from opct.reports.card import Exported, model_card_text, new_stamp
    from opct.reports.compare import compare
    from opct.reports.load import EvaluatedRun, load_run

    folder = RunDir(trained.folder)
    config = load_run_config(folder.config_path)
    results = folder.read_results() if folder.results_path.is_file() else None
    evaluated = None if results is None else (results["run"].get("weights") or {}).get("sha256")
    # by hash: a run trained further since would get the numbers of its earlier weights
    if evaluated == weight_hashes(trained.weights.parent):
        run = load_run(trained.folder)
    else:
        name, values = config.model.name_or_path, flat_settings(config.model_dump())
        run = EvaluatedRun(trained.folder.name, config.method, name, config.method, config.seed, config_values=values)
    check = "" if difference is None else f"The written weights were loaded and checked: {difference}."
    # of sources on the hub, which are written `hf:owner/name:config/split@revision`
    ids = (re.match(r"hf:([^:@]+)", source) for source in (*config.data.pairs, *config.data.anchors))
    datasets = tuple(dict.fromkeys(match[1] for match in ids if match))
    about = Exported(is_adapter, place, check, weights.license_of(trained.base), datasets)
    return model_card_text(compare([run]), run.warnings, new_stamp(), exported=about)
