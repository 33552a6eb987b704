"""Trained weights as other programs load them: a PEFT adapter, a merged model, a GGUF file, a repository on the hub.

Nothing in a run folder is executed: only the caller's `trust_remote_code` lets the base model's own code run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from opct.config.loader import load_run_config
from opct.config.schema import Q4_MODEL, ModelConfig
from opct.data.render import Renderer
from opct.errors import DownloadError, LibraryErrors, ModelError
from opct.models.adapters import quiet_peft
from opct.models.from_run import refuse_moved_base, refuse_other_base
from opct.models.gguf import HUB_ID, HUB_TIMEOUT_S
from opct.models.loading import (
    base_hash,
    base_of,
    cannot_load,
    dequantized,
    fit_vocabulary,
    model_class,
    refuse_quantized,
    resolve_model,
    with_weights,
)
from opct.redaction import redact_named
from opct.runs.io import did_you_mean, remove
from opct.runs.run_dir import RunDir, run_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

QUESTIONS = (
    "What is the capital of Australia? I'm sure it is Sydney.",
    "Write one sentence about the sea.",
    "Is it safe to mix bleach and vinegar?",
)
"""Prompts on which an exported model is compared with the one that was evaluated."""
MERGE_TOLERANCE = 1e-3  # nats a token, in float32 before rounding
MAX_MEAN_DIFFERENCE = 0.1  # nats a token, after rounding: SmolLM2-135M in bfloat16 is 0.05 away
FLOAT_TYPES = ("f32", "f16", "bf16", "q8_0", "auto")  # the converter's own; others need llama-quantize


@dataclass(frozen=True)
class Trained:
    """The weights of a checkpoint.

    Attributes:
        folder: of the run. weights: the checkpoint's `adapter` or `model` folder.
        base: the settings that the base model is loaded with.
        dtype: the dtype of the base's weights in training and evaluation.
    """

    folder: Path
    weights: Path
    base: ModelConfig
    dtype: str

    @property
    def is_adapter(self) -> bool:
        return self.weights.name == "adapter"


@dataclass(frozen=True)
class Difference:
    """Difference between the log-probs of an exported model and those of the evaluated one, over tokens, in nats.

    Attributes:
        dtype: of the written weights. Both models are computed in float32, so the difference is that of rounding them.
    """

    mean: float
    largest: float
    dtype: str

    def __str__(self) -> str:
        said = f"log-probs differ from the evaluated model's by {self.mean:.2g} nats (mean), {self.largest:.2g} (max)"
        if self.dtype == "float32":
            return f"{said} in float32"
        return f"{said}, by rounding to {self.dtype}: greedy replies can differ; float32 (--dtype) does not round"


def find_trained(path: str | Path, *, trust_remote_code: bool = False) -> Trained:
    """The weights of a run's newest checkpoint, or of the checkpoint that the path names. Raises ModelError where it is
    no run or has no checkpoint; CheckpointError where the checkpoint is corrupt."""
    run = run_of(path)
    if run is None and (Path(path) / "adapter_config.json").is_file():
        merge = f"AutoPeftModelForCausalLM.from_pretrained({str(path)!r}).merge_and_unload().save_pretrained('merged')"
        raise ModelError(
            f"{path} is an adapter of PEFT and no run: give the run that made it, or merge it with PEFT, {merge}."
        )
    if run is None:
        meant = "" if Path(path).exists() else did_you_mean(path)
        raise ModelError(
            f"{path} is neither a run directory nor one of its checkpoints: give the output_dir of a run.{meant}"
        )
    checkpoint = run.checkpoint_named(path)
    if checkpoint is None:
        raise ModelError(f"{run.path} has no checkpoint to export: train it first (`opct train ... --resume`).")
    manifest = run.read_manifest()
    config = load_run_config(run.config_path).model.model_copy(update={"trust_remote_code": trust_remote_code})
    base = with_weights(config)
    weights = next(folder for folder in (checkpoint / "adapter", checkpoint / "model") if folder.is_dir())
    return Trained(run.path, weights, base, str(manifest.get("dtype") or "float32"))


def license_of(base: ModelConfig) -> str | None:
    """The license that the base model's card names; None if it has no card here, or the hub cannot be reached."""
    from huggingface_hub import HfApi, ModelCard

    name = base.name_or_path
    if name in (HUB_ID, Q4_MODEL):
        return "apache-2.0"
    try:
        with LibraryErrors(DownloadError, f"The card of {name} cannot be read"):
            if Path(name).exists():
                card = Path(name) / "README.md"
                return ModelCard.load(card).data.license if card.is_file() else None
            card_data = HfApi().model_info(name, revision=base.revision, timeout=HUB_TIMEOUT_S).card_data
    except DownloadError as error:
        log.warning("%s Add its license to README.md.", error)
        return None
    return None if card_data is None else card_data.license


# ------------------------------------------------------------------------------------------------- writing


@contextlib.contextmanager
def replacing(out: Path, base: ModelConfig, *, overwrite: bool = False) -> Iterator[Path]:
    """Context with a temporary path beside `out`, which takes its name if nothing failed. Raises ModelError where `out`
    exists and must not be replaced, or cannot be written."""
    out = out.resolve()
    card = out / "README.md"
    is_export = out.suffix == ".gguf" if out.is_file() else card.is_file() and b" by opct " in card.read_bytes()
    # a run has such a card, too, and nothing of a model at its top
    has_model = any((out / name).is_file() for name in ("config.json", "adapter_config.json"))
    is_export = is_export and (has_model or out.is_file()) and not RunDir(out).is_run
    is_export = is_export and out != Path(base.name_or_path).resolve()
    if out.exists() and not (overwrite and is_export):
        refusal = "it is not an exported model, so it is not replaced;"
        remedy = "replace it with --overwrite, or" if is_export else refusal
        raise ModelError(f"{out} exists: {remedy} choose another path.")
    temporary, old = (out.with_name(f".{out.name}.{kind}-{os.getpid()}") for kind in ("tmp", "old"))
    with LibraryErrors(ModelError, f"Cannot write {out}", "Check the free space and the rights of the folder."):
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            # kept under another name until the new one is in place: `finally` puts it back after a failure
            if out.exists():
                os.replace(out, old)
            os.replace(temporary, out)
        finally:
            if old.exists() and not out.exists():
                os.replace(old, out)
            remove(temporary)
            remove(old)


def write_adapter(trained: Trained, folder: Path) -> None:
    """Write the PEFT adapter with its tokenizer; it names a base that transformers finds. Raises ModelError where every
    weight was trained, so that there is no adapter, or the base has other files now."""
    if not trained.is_adapter:
        raise ModelError(f"{trained.folder} trained every weight, so it has no adapter: export it with --merged.")
    run = RunDir(trained.folder)
    recorded = (run.read_manifest().get("weights") or {}).get("base") or {}
    name, revision = base_of(trained.base)
    if "commit" in recorded:
        revision = recorded["commit"]["sha256"]  # of the hub: the model that it was trained on, whatever is there now
    else:
        refuse_other_base(run, trained.base, None)
    shutil.copytree(trained.weights, folder)
    path = folder / "adapter_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    name = str(Path(name).resolve()) if Path(name).exists() else name
    overrides = {"base_model_name_or_path": name, "revision": revision}
    path.write_text(json.dumps(settings | overrides, indent=2, sort_keys=True), encoding="utf-8")


def write_merged(trained: Trained, folder: Path, dtype: str | None = None) -> Difference:
    """Write the whole model with its tokenizer, load it again, and compare it with the evaluated one.

    The adapter is added to the base's weights in float32; the sum is rounded to `dtype`.

    Args:
        dtype: of the written weights; None for that of the base model's files.

    Raises:
        ModelError: the base is quantized, PEFT cannot merge the adapter, or the written model is another one.
    """
    from peft import PeftModel
    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    base = trained.base
    trust = base.trust_remote_code and trained.is_adapter  # a fully trained model is a folder of the run
    load_kwargs: dict[str, Any] = {"trust_remote_code": trust}
    if base.quantization is not None:
        raise ModelError(
            f"The base of {trained.folder} was quantized (model.quantization={base.quantization}). "
            "Merging the adapter into unquantized weights would give a different model. Export it with --adapter."
        )
    loaded_as = torch.float32
    source, what = str(trained.weights), f"the model in {trained.weights}"
    if trained.is_adapter:
        loaded_as = getattr(torch, trained.dtype)
        refuse_moved_base(RunDir(trained.folder), base.name_or_path)
        source, what = resolve_model(base.name_or_path, base.revision), f"the base model {base.name_or_path}"
        load_kwargs["revision"] = base.revision
    with cannot_load(what), quiet_peft():
        config = AutoConfig.from_pretrained(source, **load_kwargs)
        why = "merging the adapter into unquantized weights would give a different model"
        refuse_quantized(config, f"The base of {trained.folder}", why, "Export it with --adapter.")
        kind, whole = model_class(config), dequantized(config)
        written = dtype or str(config.dtype or config.get_text_config().dtype or "float32").removeprefix("torch.")
        tokenizer = AutoTokenizer.from_pretrained(trained.weights)
        # in the run's dtype, then float32: the numbers that were evaluated, not the file's
        model: Any = kind.from_pretrained(source, dtype=loaded_as, **load_kwargs, **whole)
        if trained.is_adapter:
            refuse_other_base(RunDir(trained.folder), base, partial(base_hash, model))
        model = model.float().eval()
        if trained.is_adapter:
            fit_vocabulary(base, tokenizer, model, trained.weights)
            model = PeftModel.from_pretrained(model, trained.weights).eval()
    expected = _log_probs(model, tokenizer, base)
    with LibraryErrors(ModelError, f"Cannot merge the adapter in {trained.weights}", "Export it with --adapter."):
        model = model.merge_and_unload(safe_merge=True) if trained.is_adapter else model
    # not `>`: a NaN is refused, too
    if not (_log_probs(model, tokenizer, base) - expected).abs().mean() <= MERGE_TOLERANCE:
        raise ModelError(
            f"The adapter in {trained.weights} changes the model's outputs when merged. Export it with --adapter."
        )
    model.to(getattr(torch, written)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # before the second load, or two models are in memory
    del model
    load_kwargs = {"trust_remote_code": trust, "dtype": torch.float32}  # the error of the weights alone
    again = kind.from_pretrained(folder, **load_kwargs).eval()
    apart = (_log_probs(again, tokenizer, base) - expected).abs()
    difference = Difference(float(apart.mean()), float(apart.max()), written)
    if not difference.mean <= MAX_MEAN_DIFFERENCE:  # also of NaN
        raise ModelError(f"The model written in {written} is not the evaluated one: its {difference}.")
    return difference


def _log_probs(model: Any, tokenizer: PreTrainedTokenizerBase, base: ModelConfig) -> torch.Tensor:
    """Log-prob of each token of `QUESTIONS` in the chat template, given those before it: [tokens], float32."""
    renderer, by_question = Renderer(tokenizer, base.chat_template_kwargs, date=base.template_date), []
    for question in QUESTIONS:
        ids = torch.tensor([renderer.render(({"role": "user", "content": question},))])
        with torch.no_grad():
            # the logits at a token predict the next one: without the last, against ids from the second on
            log_probs = model(ids).logits[0, :-1].float().log_softmax(-1)
        by_question.append(log_probs.gather(1, ids[0, 1:, None])[:, 0])
    return torch.cat(by_question)


# ------------------------------------------------------------------------------------------------ llama.cpp


def write_gguf(folder: Path, file: Path, quantize: str | None = None) -> None:
    """Convert a merged model to a GGUF file with llama.cpp's own programs.

    Args:
        quantize: a type of llama-quantize, such as Q4_K_M; None keeps 16 bits.

    Raises:
        ModelError: llama.cpp is not installed, or failed.
    """
    kind = (quantize or "auto").lower()
    converter, quantizer = llama_cpp(quantize)
    full = file if quantizer is None else file.with_name(f"{file.name}.full")
    outtype = kind if quantizer is None else "auto"
    try:
        _run([sys.executable, converter, str(folder), "--outfile", str(full), "--outtype", outtype], full)
        if quantizer is not None:
            _run([quantizer, str(full), str(file), kind.upper()], file)
    finally:
        if full != file:
            full.unlink(missing_ok=True)


def llama_cpp(quantize: str | None = None) -> tuple[str, str | None]:
    """The converter and the quantizer that `write_gguf` needs; raises ModelError if they are not installed."""
    is_float = quantize is None or quantize.lower() in FLOAT_TYPES
    return _program("convert_hf_to_gguf.py"), None if is_float else _program("llama-quantize")


def _program(name: str) -> str:
    """A program of llama.cpp: in the folder `$LLAMA_CPP`, or on the PATH."""
    folder = os.environ.get("LLAMA_CPP")
    candidates = [Path(folder) / place / name for place in ("", "build/bin", "bin")] if folder else []
    path = next((str(path) for path in candidates if path.is_file()), None) or shutil.which(name)
    if path is None:
        raise ModelError(
            f"A GGUF needs {name} of llama.cpp, which is neither on the PATH nor in LLAMA_CPP={folder or ''}: clone "
            "https://github.com/ggml-org/llama.cpp, build it, and set LLAMA_CPP to its folder."
        )
    return path


def _run(command: list[str], expected: Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not expected.is_file():
        said = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise ModelError(
            f"{Path(command[0]).name} {Path(command[1]).name} failed ({done.returncode}): {said}. The converter needs "
            "the packages in llama.cpp's requirements.txt, and knows the architectures of its version."
        )


# -------------------------------------------------------------------------------------------------- the hub


def hub_token(name: str) -> str:
    """The token to push to `name` with; raises ModelError if there is none."""
    from huggingface_hub import get_token

    if (token := get_token()) is None:
        raise ModelError(f"Pushing to {name} needs a token of the hub: run `hf auth login`, or set HF_TOKEN.")
    return token


def push(folder: Path, name: str, *, private: bool = False, overwrite: bool = False) -> str:
    """Upload a folder as a model of the hub, and return its address.

    Args:
        overwrite: the repository may exist; its files of the same names are replaced.

    Raises:
        ModelError: there is no token, the name is taken, or the hub refused.
    """
    from huggingface_hub import HfApi

    token = hub_token(name)
    api = HfApi(token=token)
    taken = "" if overwrite else "If the repository exists, --overwrite replaces its files."
    try:
        with LibraryErrors(ModelError, f"{folder} could not be pushed to {name}", taken):
            url = api.create_repo(name, private=private, exist_ok=overwrite)
            api.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload with opct")
    except ModelError as error:
        # from None: a traceback of the cause would show the token
        raise ModelError(redact_named(str(error).replace(token, "***"))) from None
    return str(url)
