"""Adapters: which weights they reach, what they replace, and whether all of a file was loaded."""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from opct.bounds import try_in_bounds
from opct.config.schema import LoraSettings
from opct.errors import LibraryErrors, ModelError, first_of, shorten, unknown
from opct.runs.io import read_json

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel
    from transformers import PreTrainedModel

TRAINED_ADAPTER = "default"  # PEFT's own name for the first adapter
TEACHER_ADAPTER = "teacher"
ALL_LINEAR = "all-linear"
PREFIX = "base_model.model."
"""What PEFT writes before the name of a weight."""
ADDED_NAMES = ("base_layer", "original_module", "token_adapter")
"""What PEFT puts into the name of a weight of the model."""
WHOLE_COPY = ".modules_to_save."
"""What PEFT puts into the name of a copy of a whole module."""
KINDS = "Those load that change layers, such as LORA, IA3, LOHA, LOKR, OFT, VERA and LN_TUNING."
MOVES_THE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""What the `init_lora_weights` begin with by which PEFT takes from the model's weights what the adapter adds."""
MERGE = "Merge it into its base with PEFT (merge_and_unload), save that, and give the folder as model.name_or_path."
"""The remedy where an adapter cannot be kept apart from its base."""
CANNOT_BE_USED = {
    "ADALORA": f"whose ranks PEFT changes in its own training, which is not run here. {MERGE}",
    "LILY": f"which weighs its parts by the mean of all tokens of a batch, so one reply would change another. {KINDS}",
}
"""Kinds that load and cannot be trained or evaluated here: why, and the remedy."""


@contextlib.contextmanager
def quiet_peft() -> Iterator[None]:
    """Context in which PEFT's warnings of unmatched names and missing weights are errors, and others are hidden."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`", category=FutureWarning)
        warnings.filterwarnings(
            "error",
            message="The following .*_pattern keys|You have passed exclude_modules|Found missing adapter keys"
            "|target_parameters=.* no parameter was matched",
        )
        warnings.filterwarnings("ignore", message="The following .*_pattern keys.*gate_up_proj")  # fused experts
        yield


# --------------------------------------------------------------------------------------- weights of model and adapter


def _wrappers(model: Any) -> set[str]:
    """Names of the modules that PEFT has put around modules of the model."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return {name for name, m in model.named_modules() if isinstance(m, BaseTunerLayer | AuxiliaryTrainingWrapper)}


def _is_added(name: str, wrappers: set[str]) -> bool:
    """Whether a weight or module belongs to an adapter: the name below its innermost wrapper is none of the model."""
    below = _below(name, wrappers)
    return bool(below) and below[0] not in ADDED_NAMES


def _below(name: str, wrappers: set[str]) -> list[str]:
    """The parts of a name below its innermost wrapper; none where there is no wrapper."""
    parts = name.split(".")
    ends = [i for i in range(len(parts)) if ".".join(parts[:i]) in wrappers]
    return parts[ends[-1] :] if ends else []


def split_weights(model: Any) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.nn.Parameter]]:
    """The parameters of the model, by their names without an adapter, and those that an adapter adds, by name."""
    wrappers = _wrappers(model)
    base, added = {}, {}
    for name, parameter in model.named_parameters():
        if _is_added(name, wrappers):
            added[name] = parameter
        else:
            base[bare_name(name)] = parameter
    return base, added


def active_weights(model: Any) -> dict[str, torch.nn.Parameter]:
    """The parameters that adapters add, by name, without those of an adapter that is not active."""
    _, added = split_weights(model)
    if not added:
        return added
    wrappers, others = _wrappers(model), set(model.peft_config).difference(model.active_adapters)
    # below the wrapper alone: a module of the model may have an adapter's name
    return {name: p for name, p in added.items() if others.isdisjoint(_below(name, wrappers))}


def moved_base(model: PeftModel) -> str | None:
    """The `init_lora_weights` of an adapter without which the model is not its base; None where there is none."""
    inits = (getattr(config, "init_lora_weights", None) for config in model.peft_config.values())
    return next(filter(_moves_base, inits), None)


def _moves_base(init: Any) -> bool:
    return isinstance(init, str) and init.lower().startswith(MOVES_THE_BASE)


def brings_embeddings(model: PeftModel) -> bool:
    """Whether a loaded adapter came with embeddings or an output head that are not those of its base."""
    bare: Any = model.get_base_model()
    tables = bare.get_input_embeddings(), bare.get_output_embeddings()
    names = {f"{name}.weight" for name, module in bare.named_modules() if module in tables}
    return not names.isdisjoint(getattr(model, "replaced_weights", {}))


def bare_name(name: str) -> str:
    """Name of a weight in the model without an adapter, from its name in a PEFT model or in the file of an adapter."""
    return ".".join(part for part in name.removeprefix(PREFIX).split(".") if part not in ADDED_NAMES)


def fingerprint(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Type, shape, and a hash of sums of the bytes of a tensor, laid out as a table, by row and by column: a fifth of
    the time of a hash of all, and weights that only change places are seen."""
    flat = tensor.detach().contiguous().flatten()
    wide = flat.numel() * flat.element_size() % 8 == 0
    numbers = flat.view(torch.int64 if wide else torch.uint8)
    table = numbers.view(-1, next(width for width in (1024, 32, 1) if numbers.numel() % width == 0))
    # sums may wrap around: they are compared, never read as numbers
    sums = torch.cat([table.sum(0, dtype=torch.int64), table.sum(1, dtype=torch.int64)])
    return tensor.dtype, tensor.shape, hashlib.sha256(sums.cpu().numpy().tobytes()).hexdigest()


@contextlib.contextmanager
def replace_weights(model: Any, others: Mapping[str, torch.nn.Parameter]) -> Iterator[None]:
    """Context with other parameters in the place of these, by the names of `split_weights`."""
    base, _ = split_weights(model)
    # by identity: a tied weight is in two modules, and must be replaced in both
    by_id = {id(base[name]): other for name, other in others.items()}
    places = [
        (module._parameters, key, parameter, by_id[id(parameter)])
        for module in model.modules()
        for key, parameter in module._parameters.items()
        if id(parameter) in by_id
    ]
    try:
        for of, key, _, other in places:
            of[key] = other
        yield
    finally:
        for of, key, parameter, _ in places:
            of[key] = parameter


def taking_off(model: PreTrainedModel) -> Callable[[], None]:
    """What puts a model back as it is now, whatever an adapter does to it; all of one or, after an error, a part."""
    modules = dict(model.named_modules(remove_duplicate=False))
    biases = {name: p.detach().clone() for name, p in model.named_parameters() if name.endswith("bias")}

    def take_off() -> None:
        for name, module in modules.items():
            parent, _, child = name.rpartition(".")
            if name:
                modules[parent]._modules[child] = module
        for name, bias in biases.items():  # PEFT loads and trains them in place
            model.get_parameter(name).data = bias
        vars(model).pop("peft_config", None)

    return take_off


# -------------------------------------------------------------------------------------------------- a fresh adapter


def fresh_adapter(model: PreTrainedModel, lora: LoraSettings, seed: int) -> PeftModel:
    """The model with an adapter of these settings that changes nothing yet. Raises ModelError where they do not fit
    it."""
    from peft import LoraConfig, get_peft_model

    named_alike = lora.model_dump(exclude={"alpha", "dropout"})
    _try_patterns(model, named_alike, "a pattern in lora")
    settings = LoraConfig(lora_alpha=lora.alpha, lora_dropout=lora.dropout, task_type="CAUSAL_LM", **named_alike)
    with quiet_peft(), LibraryErrors(ModelError, "The settings of lora do not fit this model"):
        # before the seed: it runs the model, which must not move the draws of A
        settings.target_modules = _targets(model, settings)
        _refuse_unknown(model, lora)
        torch.manual_seed(seed)  # the initial A matrices
        adapted = get_peft_model(model, settings)
        widen_trained(adapted)
        return adapted


def _refuse_unknown(model: Any, lora: LoraSettings) -> None:
    """Raise ModelError for a name in a list of names that nothing in the model has: PEFT would leave it out."""
    modules = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters(remove_duplicate=False)]  # a tied head has its name
    # names of experts are PEFT's to convert
    fields = {"modules_to_save": modules} | ({} if _experts(model) else {"target_modules": modules})
    for field, there in {**fields, "target_parameters": parameters}.items():
        named = getattr(lora, field)
        for name in named if isinstance(named, list | tuple) else ():
            if not any(
                full == name or full.endswith(f".{name}" if field != "modules_to_save" else name) for full in there
            ):
                raise ModelError(f"lora.{field}: " + unknown("name", name, sorted(set(map(_leaf, there)))))


def _targets(model: Any, settings: LoraConfig) -> Any:
    """The modules to adapt: none that text does not pass, such as those of vision towers.

    `all-linear`: attention, shared and dense layers, without experts, routers and what PEFT refuses.
    """
    from peft.tuners.tuners_utils import check_target_module_exists

    head = model.get_output_embeddings()
    linear = {name: module for name, module in _modules_of_base(model) if _is_linear(module)}
    passed = _passed_by_text(model, linear) | {name for name, module in linear.items() if module is head}
    if settings.target_modules == ALL_LINEAR:
        return _all_linear({name: m for name, m in linear.items() if name in passed and m is not head}, model)
    named = [name for name, _ in model.named_modules() if check_target_module_exists(settings, name)]
    if settings.target_modules and not named and not settings.exclude_modules:
        raise ModelError(
            f"lora.target_modules={settings.target_modules} names no module of this model: "
            "lora.target_modules=all-linear fits any."
        )
    if passed == set(linear):
        return settings.target_modules
    others = {name for name in named if name not in linear and name.startswith(_decoder_prefix(model))}
    return [name for name in named if name in passed | others] or settings.target_modules


@torch.no_grad()
def _passed_by_text(model: Any, linear: dict[str, Any]) -> set[str]:
    """Names of the linear layers that some tokens pass; of a model without memory, those of its decoder."""
    weight = model.get_output_embeddings().weight
    if weight.is_meta:
        return {name for name in linear if name.startswith(_decoder_prefix(model))}
    experts = _experts(model)
    passed = {name for name in linear if _is_inside(name, experts)}  # few tokens reach few of them
    ids = torch.arange(4, device=weight.device)[None] % model.config.get_text_config().vocab_size
    with contextlib.ExitStack() as stack:
        for name, module in linear.items():
            hook = module.register_forward_hook(lambda *_, name=name: passed.add(name))
            stack.callback(hook.remove)
        stack.enter_context(torch.autocast(weight.device.type, weight.dtype, enabled=weight.dtype != torch.float32))
        stack.enter_context(LibraryErrors(ModelError, f"{type(model).__name__} cannot be computed here"))
        model.get_decoder()(input_ids=ids, use_cache=False)
    return passed


def _all_linear(linear: dict[str, Any], model: Any) -> list[str]:
    experts = _experts(model)
    names: list[str] = []
    for name, module in linear.items():
        # a router is beside the experts, and gives a number for each
        beside = {n for path, (n, _) in experts.items() if name.startswith(path.rpartition(".")[0] + ".")}
        is_router = "router" in name or getattr(module, "out_features", None) in beside
        if not is_router and not _is_inside(name, experts):
            names.append(name)
    taken = {leaf: _peft_takes(leaf, model) for leaf in map(_leaf, names)}
    return [name for name in names if taken[_leaf(name)]]


def _peft_takes(leaf: str, model: Any) -> bool:
    """False for a name that PEFT refuses for this model (mixers of Mamba), or takes for that of an expert."""
    from peft import LoraConfig
    from peft.tuners import tuners_utils

    config = LoraConfig(target_modules=[leaf], task_type="CAUSAL_LM")
    try:  # not every version of PEFT has these two
        getattr(tuners_utils, "_check_lora_target_modules_mamba", lambda *_: None)(config, model, leaf)
        with contextlib.suppress(ImportError):
            from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

            convert_peft_config_for_transformers(config, model, None)
    except ValueError:
        return False
    return leaf in (config.target_modules or ())


def _modules_of_base(model: Any) -> Iterator[tuple[str, Any]]:
    """The modules of the model by their names without an adapter."""
    wrappers = _wrappers(model)
    for name, module in model.named_modules():
        if name not in wrappers and not _is_added(name, wrappers):
            yield bare_name(name), module


def _is_linear(module: Any) -> bool:
    from transformers.pytorch_utils import Conv1D

    return isinstance(module, torch.nn.Linear | Conv1D)


def _decoder_prefix(model: Any) -> str:
    """What the names of the text decoder's modules begin with."""
    decoder = model.get_decoder()
    return next((f"{name}." for name, module in model.named_modules() if name and module is decoder), "")


def _experts(model: Any) -> dict[str, tuple[int, list[str]]]:
    """The modules that hold experts: their number, and the names of weights of all of them together, if there are."""
    experts: dict[str, tuple[int, list[str]]] = {}
    for name, module in _modules_of_base(model):
        together = {key: p for key, p in module._parameters.items() if p is not None and p.dim() == 3 and len(p) > 1}
        if isinstance(module, torch.nn.ModuleList) and name.endswith("experts"):
            experts[name] = len(module), []
        elif together and not isinstance(module, torch.nn.modules.conv._ConvNd):
            experts[name] = len(next(iter(together.values()))), list(together)
    return experts


def _is_inside(name: str, paths: Iterable[str]) -> bool:
    return any(name.startswith(f"{path}.") for path in paths)


def _leaf(name: str) -> str:
    """The last part of a name that is no number."""
    return next((part for part in reversed(name.split(".")) if not part.isdigit()), name)


def coverage(model: Any) -> str | None:
    """How many weights of the text decoder have an adapter, of which kinds, and which have none; None without one."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    if not hasattr(model, "peft_config"):
        return None
    bare = model.get_base_model()
    decoder, experts = _decoder_prefix(bare), _experts(bare)
    fused = {f"{path}.{key}": f"{_leaf(path)}.{key}" for path, (_, keys) in experts.items() for key in keys}
    kinds = {name: _leaf(name) for name, module in _modules_of_base(bare) if _is_linear(module)} | fused
    kinds = {name: kind for name, kind in kinds.items() if name.startswith(decoder)}
    adapted = set()
    for name, module in bare.named_modules():
        if isinstance(module, BaseTunerLayer):
            parameter = getattr(module, "parameter_name", "")
            adapted.add(f"{bare_name(name)}.{parameter}" if parameter else bare_name(name))
    inside = adapted & kinds.keys()
    listed = ", ".join(sorted({kinds.get(name, _leaf(name)) for name in adapted}))
    words = [f"adapter on {len(inside)} of {len(kinds)} linear weights: {listed}"]
    with_one = {kinds[name] for name in inside}
    without = {name for name, kind in kinds.items() if kind not in with_one}
    of_experts = {name for name in without if _is_inside(name, experts)}
    if none_on := sorted({kinds[name] for name in without - of_experts}):
        words.append(f"none on {', '.join(none_on)}")
    if of_experts:
        words.append(f"experts are not adapted ({_how_to_adapt(of_experts, fused)})")
    if adapted & set(fused):
        words.append("PEFT builds all adapted experts of a layer anew in every forward, which takes time and memory")
    base, added = split_weights(bare)
    whole = {n for n, p in base.items() if p.requires_grad} | {bare_name(n) for n in added if ".modules_to_save." in n}
    if whole:
        words.append(f"{len(whole)} weights are trained whole")
    return "; ".join(words)


def _how_to_adapt(names: set[str], fused: Mapping[str, str]) -> str:
    """The setting that adapts these experts; names below a layer's number."""
    setting = "target_parameters" if names <= set(fused) else "target_modules"
    shown = {name.split(".")[-1] if setting == "target_modules" else re.split(r"\.\d+\.", name)[-1] for name in names}
    return f"lora.{setting}: [{', '.join(sorted(shown))}] adapts them"


# ------------------------------------------------------------------------------------------------- an adapter's file


class AdapterConfig(TypedDict, total=False):
    """What is read of PEFT's settings of an adapter, and its types; there is more in them."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]
    peft_type: str | None
    base_model_name_or_path: str | None
    revision: str | None
    r: int
    target_modules: str | list[str] | None
    rank_pattern: dict[str, int | list[bool]] | None  # lists in AdaLoRA
    alpha_pattern: dict[str, float] | None


_ADAPTER_CONFIG = TypeAdapter(AdapterConfig)


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """PEFT's settings of the adapter in a folder. Raises ModelError where it is not a JSON object, or a setting is of
    another type."""
    path = folder / "adapter_config.json"
    config: AdapterConfig = read_json(path, _ADAPTER_CONFIG, hint="Fetch the adapter again.", error=ModelError)
    return {**config}


def check_kind(folder: Path) -> None:
    """Raise ModelError for an adapter of a kind that is not computed here as in PEFT; no weight is loaded."""
    from peft.config import PromptLearningConfig
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    config = read_adapter_config(folder)
    kind: Any = config.get("peft_type")
    where, adapter = folder / "adapter_config.json", f"The adapter at {folder}"
    if kind not in PEFT_TYPE_TO_CONFIG_MAPPING:
        raise ModelError(
            f"{where}: peft_type is {shorten(kind)}, which is no kind of adapter that PEFT has here. {KINDS} Write the "
            "kind there, or fetch the adapter again."
        )
    if issubclass(PEFT_TYPE_TO_CONFIG_MAPPING[kind], PromptLearningConfig):
        raise ModelError(f"{adapter} is of kind {kind}, which adds tokens to prompts and changes no layer. {KINDS}")
    if kind in CANNOT_BE_USED:
        raise ModelError(f"{adapter} is of kind {kind}, {CANNOT_BE_USED[kind]}")
    if config.get("alora_invocation_tokens") is not None:
        raise ModelError(
            f"{adapter} is an aLoRA (alora_invocation_tokens in {where}), which acts after these tokens alone, and "
            "here an adapter acts on every token: give a LoRA that was trained without alora_invocation_tokens."
        )
    if config.get("layer_replication"):
        raise ModelError(f"{adapter} repeats layers (layer_replication). {MERGE}")
    if _moves_base(init := config.get("init_lora_weights")):  # before PEFT changes the base in place
        raise ModelError(
            f"{adapter} changes the model itself (init_lora_weights={init!r}), so without it that would not be its "
            f"base. {MERGE}"
        )


def other_base(folder: Path, *bases: str) -> list[str]:
    """A warning if an adapter names another base than this one, which has these names.

    The same weights may have a name on the hub and a folder here, so the last parts of names are compared.
    """
    made_for = read_adapter_config(folder).get("base_model_name_or_path")
    if not made_for or _last_parts(made_for) & set().union(*map(_last_parts, bases)):
        return []
    return [
        f"The adapter at {folder} was made for {made_for} (base_model_name_or_path in its adapter_config.json), and "
        f"model.name_or_path is {bases[0]}: unless these are the same weights, set model.name_or_path to {made_for}."
    ]


def _last_parts(name: str) -> set[str]:
    """The last parts of the names of a model: its own, that of a hub's cache, and what its config.json says."""
    path = Path(name)
    names = [name, str(path.resolve())]
    names += [part.replace("--", "/") for part in path.parts if part.startswith("models--")]
    with contextlib.suppress(ModelError):
        said = read_json(path / "config.json", error=ModelError).get("_name_or_path")
        names.append(str(said or name))
    return {Path(part).name.lower() for part in names}


def _try_patterns(model: PreTrainedModel, settings: Mapping[str, Any], what: str) -> None:
    """Raise ModelError where a regular expression of PEFT's settings does not end on the names of the modules."""
    single = [settings.get(name) for name in ("target_modules", "exclude_modules", "layers_pattern")]
    single += [name for key in ("modules_to_save", "layers_pattern") for name in settings.get(key) or ()]
    keyed = (settings.get(name) for name in ("rank_pattern", "alpha_pattern"))
    patterns = [text for text in single if isinstance(text, str) and text != ALL_LINEAR]
    patterns += [key for pattern in keyed if isinstance(pattern, dict) for key in pattern]
    if patterns:
        names = [name for name, _ in model.named_modules()]
        tried = [*patterns, *(rf"(.*\.)?({text})$" for text in patterns)]  # as PEFT takes names, and keys
        call = lambda: [re.match(text, name) for text in tried for name in names]  # noqa: E731
        try_in_bounds(call, (*patterns, *names), what, ModelError)


def load_adapter(model: PreTrainedModel, folder: Path) -> PeftModel:
    """The model with the adapter of a folder, to be trained; its weights are float32.

    Weights of the model that the adapter replaces, such as biases, are kept in the attribute `replaced_weights`, for
    the model without the adapter.

    Raises:
        ModelError: the folder holds no adapter that fits the model, a part of it was not loaded, or it changes the
            model itself.
    """
    from peft import PeftModel, set_peft_model_state_dict

    _try_patterns(model, read_adapter_config(folder), f"A pattern in {folder / 'adapter_config.json'}")
    before = {name: fingerprint(p) for name, p in split_weights(model)[0].items()}
    with _fits(model, folder):
        weights = _read_weights(folder)
        named = {bare_name(key) for key in weights}
        # clones: PEFT writes an adapter's biases into these tensors
        clones = {name: p.detach().clone() for name, p in model.named_parameters() if name in named}
        with quiet_peft(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found missing adapter keys")  # compared below
            loaded = PeftModel.from_pretrained(model, folder, TRAINED_ADAPTER, is_trainable=True)
        base, _ = split_weights(loaded)
        changed = {name for name, p in base.items() if fingerprint(p) != before.get(name)}
        if lost := sorted(changed - set(clones)) or sorted(set(before) - set(base)):
            raise ModelError(
                f"The adapter at {folder} changes {len(lost)} weights of the model itself ({first_of(lost)}), so "
                f"without the adapter it would not be its base. {MERGE}"
            )
        of_adapter = changed | {name for name, p in base.items() if p.requires_grad}
        originals = {
            name: torch.nn.Parameter(clones.get(name, base[name].detach().clone()), False) for name in of_adapter
        }
        widen_trained(loaded)
        incompatible: Any = set_peft_model_state_dict(loaded, weights, TRAINED_ADAPTER)  # again, not rounded
        # by identity: what layers share, such as VBLoRA's vectors, is in the file under one of its names
        missing, everything = set(incompatible.missing_keys), loaded.named_parameters(remove_duplicate=False)
        filled = {id(p) for name, p in everything if name not in missing}
        lacking = [name for name, p in split_weights(loaded)[1].items() if id(p) not in filled]
        _refuse_parts(folder, incompatible.unexpected_keys, lacking)
    cast("Any", loaded).replaced_weights = originals
    return loaded


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of an adapter's file by name. Raises ModelError where numbers in them are not finite."""
    from peft import load_peft_weights

    weights = load_peft_weights(str(folder), device="cpu")
    # sums: as fast as `isfinite`, without a copy, and for every type
    if broken := [name for name, tensor in weights.items() if not tensor.sum(dtype=torch.float64).isfinite()]:
        file = folder / "adapter_model.safetensors"
        raise ModelError(
            f"{file if file.is_file() else file.with_suffix('.bin')} holds numbers that are NaN or infinite, in "
            f"{len(broken)} of {len(weights)} tensors ({first_of(broken)}): fetch the adapter again, or train it again."
        )
    # with its embeddings PEFT saves the copies of `modules_to_save` under two names, and loads the shorter one
    twice = {name for name in weights if WHOLE_COPY in name and name.replace(WHOLE_COPY, ".") in weights}
    return {name: tensor for name, tensor in weights.items() if name not in twice}


def widen_trained(model: Any) -> None:
    """Make trained weights float32, as PEFT makes LoRA's but not copies of `modules_to_save`."""
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()


def _refuse_parts(folder: Path, unloaded: list[str], lacking: list[str]) -> None:
    """Raise ModelError if an adapter's file and the model's adapter have different weights."""
    faults = []
    if unloaded:
        faults.append(f"{len(unloaded)} weights in its file have no place in the model ({first_of(sorted(unloaded))})")
    if lacking:
        names = first_of(sorted(name.replace(f".{TRAINED_ADAPTER}.", ".") for name in lacking))
        faults.append(f"{len(lacking)} that its adapter_config.json names are not in its file ({names})")
    if faults:
        raise ModelError(
            f"Only a part of the adapter at {folder} would be loaded: {'; '.join(faults)}. Give the model that it was "
            "trained on, fetch it again, or make target_modules and layers_to_transform in its adapter_config.json say "
            "what its file holds, by PEFT's names."
        )


@contextlib.contextmanager
def _fits(model: Any, folder: Path) -> Iterator[None]:
    """Context that says which model an adapter was made for if it cannot be loaded into this one."""
    try:
        with LibraryErrors(ModelError, f"Cannot load the adapter at {folder}"):
            yield
    except ModelError as error:
        said, made_for = str(error), None
        if size := re.search(r"size mismatch for (\S+): .*?\[([\d, ]+)\].*?\[([\d, ]+)\]", said):
            name, of_file, of_model = size.groups()
            said = (
                f"Cannot load the adapter at {folder}: {name} is [{of_file}] in its file, and [{of_model}] fits the "
                "model and the rank in its adapter_config.json (r, rank_pattern): fetch it again, or correct the rank."
            )
        with contextlib.suppress(ModelError):
            made_for = read_adapter_config(folder).get("base_model_name_or_path")
        if made_for and made_for != model.name_or_path:
            said += (
                f" It was made for {made_for} (base_model_name_or_path in its adapter_config.json); this is "
                f"{model.name_or_path}."
            )
        raise ModelError(said) from error
