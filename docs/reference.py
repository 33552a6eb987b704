"""Writes the generated parts of the docs: commands, settings, metrics, families and presets, as the code has them, and
llms.txt, a list of the pages.

    python docs/reference.py

A block stands between `<!-- generated:NAME -->` and `<!-- end -->`; a test holds pages and code equal.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- generated:([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
SETTING = ["setting", "default", ""]


# ------------------------------------------------------------------------------------------------------ settings


def settings(config: Any, title: str = "", skip: Sequence[str] = ()) -> str:
    """Every setting of a pydantic model as Markdown tables, one a section.

    Args:
        skip: sections that have a table of their own.
    """
    fields = {name: field for name, field in config.model_fields.items() if name not in skip}
    sections = {name: section for name, field in fields.items() if (section := _section(field)) is not None}
    own = [_setting(name, field) for name, field in fields.items() if name not in sections]
    parts = [_titled(title, config, own) if title else _table(SETTING, own)]
    for name, section in sections.items():
        if name == "loss":
            parts.append(_loss_settings())
            continue
        rows = [_setting(f"{name}.{inner}", field) for inner, field in section.model_fields.items()]
        parts.append(_titled(f"`{name}`", section, rows))
    return "\n\n".join("\n".join(part) for part in parts)


def _titled(title: str, section: Any, rows: list[tuple[str, str, str]]) -> list[str]:
    return [f"### {title}", "", " ".join((section.__doc__ or "").split()), "", *_table(SETTING, rows)]


def _loss_settings() -> list[str]:
    """The settings of `loss`, each with the methods that have it."""
    from opct.config.methods import LOSSES, LossConfig

    methods: dict[str, list[str]] = {}
    fields: dict[str, Any] = {}
    for method, section in LOSSES.items():
        for name, field in section.model_fields.items():
            methods.setdefault(name, []).append(f"`{method}`")
            fields.setdefault(name, field)
    rows = []
    for name, field in fields.items():
        setting, default, words = _setting(f"loss.{name}", field)
        of = "every method" if len(methods[name]) == len(LOSSES) else ", ".join(methods[name])
        rows.append((setting, default, f"{words} Of {of}."))
    return _titled("`loss`", LossConfig, rows)


def _section(field: Any) -> Any:
    """The config class of a section."""
    from opct.config.section import Section

    options = [t for t in (field.annotation, *get_args(field.annotation)) if isinstance(t, type)]
    return next((t for t in options if issubclass(t, Section)), None)


def _setting(name: str, field: Any) -> tuple[str, str, str]:
    words = [field.description or ""]
    options = _options(field.annotation)
    if options and not all(option in words[0] for option in options):
        words.append("One of " + ", ".join(f"`{option}`" for option in options) + ".")
    default = "" if field.is_required() else f"`{json.dumps(field.default, ensure_ascii=False)}`"
    return f"`{name}`", default, " ".join(words)


def _options(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return [str(option) for option in get_args(annotation)]
    return [option for part in get_args(annotation) if part is not NoneType for option in _options(part)]


def attack_settings() -> str:
    """The settings of `opct attack`, with those of each attacker."""
    from opct.evals.attackers.config import AttackConfig, BestOfN, Grpo, Refine, Transfer

    parts = [settings(AttackConfig, skip=["attacker", "judge"])]
    for attacker in (Transfer, BestOfN, Refine, Grpo):
        rows = [_setting(f"attacker.{name}", field) for name, field in attacker.model_fields.items() if name != "name"]
        name = attacker.model_fields["name"].default
        parts.append("\n".join([f"### `attacker.name={name}`", "", *_table(SETTING, rows)]))
    return "\n\n".join(parts)


# ------------------------------------------------------------------------------------------------------ commands


def commands() -> str:
    """Every command with its help, arguments and options."""
    import typer

    from opct.cli.app import app

    return "\n\n".join(_command(words, command) for words, command in _walk(typer.main.get_command(app), ["opct"]))


def _walk(command: Any, words: list[str]) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, child in inner.items():
        yield from _walk(child, [*words, name])


def _command(words: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name != "argument"]
    text, _, examples = (command.help or "").replace("\b", "").partition("Examples:")
    usage = " ".join([words, *(["[OPTIONS]"] if options else []), *map(_metavar, arguments)])
    lines = [f"## {words}", "", *(" ".join(part.split()) + "\n" for part in text.split("\n\n") if part.strip())]
    shown = [line.strip() for line in examples.splitlines() if line.strip()]
    lines += ["```text", usage, "```", ""]
    if shown:
        lines += ["```bash", *shown, "```", ""]
    rows = [(f"`{_metavar(p)}`", "", p.help or "") for p in arguments]
    rows += [(f"`{max(p.opts, key=len)}`", _default(p), p.help or "") for p in options]
    return "\n".join([*lines, *(_table(["", "default", ""], rows) if rows else [])]).rstrip()


def _metavar(argument: Any) -> str:
    name = (argument.metavar or argument.name.upper()) + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _default(option: Any) -> str:
    flag = getattr(option, "is_flag", False)
    hidden = option.default is None or flag or callable(option.default) or not option.show_default
    return "" if hidden else f"`{option.default}`"


# ------------------------------------------------------------------------------------------------- lists of names


def metrics() -> str:
    """Every metric of a suite of opct, by axis."""
    from opct.evals.metrics import METRICS

    parts = []
    for axis in dict.fromkeys(metric.axis for metric in METRICS):
        rows = [
            (f"`{metric.name}`", metric.better or "", f"{metric.title}: {metric.explanation}.")
            for metric in METRICS
            if metric.axis == axis and not metric.name.startswith("share_at_")
        ]
        parts.append("\n".join([f"## {axis}", "", *_table(["metric", "better", ""], rows)]))
    return "\n\n".join(parts)


def families(axis: str) -> str:
    """The families of one axis."""
    from opct.data.perturb import jailbreak, safety_awareness, sycophancy

    known = {"sycophancy": sycophancy, "jailbreak": jailbreak, "safety-awareness": safety_awareness}[axis].FAMILIES
    rows = [
        (
            f"`{one.name}`",
            one.split.replace("_", " "),
            str(len(one.templates)) if one.templates else "",
            one.description,
        )
        for one in known.values()
    ]
    return "\n".join(_table(["family", "split", "wordings", ""], rows))


def presets() -> str:
    """The presets and their sources."""
    from opct.config.presets import PRESETS

    return "\n".join(_table(["preset", ""], [(f"`{name}`", preset.source) for name, preset in PRESETS.items()]))


# -------------------------------------------------------------------------------------------------- models and cards

QWEN3 = {"model_type": "qwen3", "vocab_size": 151936, "head_dim": 128, "num_key_value_heads": 8}
MODELS: dict[str, dict[str, Any]] = {  # of their config.json
    "SmolLM2-135M": {"model_type": "llama", "vocab_size": 49152, "tie_word_embeddings": True}
    | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30}
    | {"num_attention_heads": 9, "num_key_value_heads": 3},
    "Qwen3-0.6B": QWEN3
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "tie_word_embeddings": True},
    "Qwen3-1.7B": QWEN3
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
    | {"num_attention_heads": 16, "tie_word_embeddings": True},
    "Qwen3-4B": QWEN3
    | {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "tie_word_embeddings": True},
    "Qwen3-8B": QWEN3
    | {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "tie_word_embeddings": False},
    "Llama-3.1-8B": {"model_type": "llama", "vocab_size": 128256, "tie_word_embeddings": False}
    | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8},
    "gpt-oss-20b": {"model_type": "gpt_oss", "vocab_size": 201088, "tie_word_embeddings": False}
    | {"hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "head_dim": 64}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4},
    "Qwen3-30B-A3B": {"model_type": "qwen3_moe", "vocab_size": 151936, "tie_word_embeddings": False}
    | {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "head_dim": 128}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768}
    | {"num_experts": 128, "num_experts_per_tok": 8},
}
WAYS: dict[str, dict[str, Any]] = {
    "LoRA": {},
    "4-bit": {"model": {"quantization": "4bit"}},
    "full": {"lora": None},
}
PROMPT, COMPLETION = 300, 256  # tokens
CARDS_GB = (24, 80)
H100 = {"operations": 0.4 * 990e12, "bytes": 0.6 * 3.35e12}  # a second, in bfloat16; shares that good programs reach


def models_and_cards() -> str:
    """What each model needs, and which cards hold it, by the estimate of `opct train --dry-run`."""
    head = ["model", "weights", *(f"{way}, GB" for way in WAYS), *(f"{gb} GB card" for gb in CARDS_GB)]
    rows = [_model_row(name, values) for name, values in MODELS.items()]
    return "\n".join(_table([*head, "learning rate", "s a step, at least"], rows))


def _model_row(name: str, values: dict[str, Any]) -> list[str]:
    from opct.training.estimate import MemoryEstimate
    from opct.training.setup import learning_rate_for

    estimates = {
        way: MemoryEstimate(**_by_layers(values, partial(_needed, settings)))
        for way, settings in WAYS.items()
        if (way, name) != ("4-bit", "gpt-oss-20b")  # its file is quantized in another way, and made whole
    }
    fits = []
    for free in (0.95e9 * gb for gb in CARDS_GB):
        ways = [way for way, one in estimates.items() if one.fitted(free).peak <= free]
        fits.append(", ".join(ways) or "none")
    sizes = _by_layers(values, _sizes)
    rate = learning_rate_for(sizes["weights"], lora=True)
    shown = [f"{estimates[way].peak / 1e9:.3g}" if way in estimates else "" for way in WAYS]
    return [name, f"{sizes['weights'] / 1e9:.3g}B", *shown, *fits, f"{rate:g}", f"{_step_s(**sizes):.2g}"]


def _by_layers(values: dict[str, Any], measure: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """What `measure` says of the model, from models of one and of two of its layers: all of it is linear in them."""
    from transformers import AutoConfig

    made = []
    for n in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            AutoConfig.for_model(**values | {"num_hidden_layers": n}).save_pretrained(folder)
            made.append(measure(folder))
    one, two = made
    return {key: one[key] + (values["num_hidden_layers"] - 1) * (two[key] - one[key]) for key in one}


def _needed(settings: dict[str, Any], folder: str) -> dict[str, Any]:
    from opct.config.schema import MICRO_BATCH_TOKENS, TrainConfig
    from opct.data.pairs import ContrastivePair
    from opct.data.render import RenderedPair
    from opct.training.estimate import estimate_memory

    prompt = ({"role": "user", "content": "?"},)
    pairs = [RenderedPair(ContrastivePair("1", "", "", prompt, prompt), [0] * PROMPT, [0] * PROMPT)]
    model = {"name_or_path": folder, "dtype": "bfloat16", "device": "cpu"} | settings.get("model", {})
    rollout = {"max_completion_tokens": COMPLETION, "engine": "in_process"}
    config = TrainConfig.model_validate(settings | {"rollout": rollout, "model": model})
    return asdict(estimate_memory(config, pairs, MICRO_BATCH_TOKENS))


def _sizes(folder: str) -> dict[str, Any]:
    """Weights: all, those of the output head, those that a token's matrix products have."""
    from opct.config.schema import ModelConfig
    from opct.models.loading import empty_model

    model: Any = empty_model(ModelConfig(name_or_path=folder))
    text, weights = model.config.get_text_config(), sum(p.numel() for p in model.parameters())
    experts = sum(p.numel() for name, p in model.named_parameters() if ".experts." in name)
    n_experts = getattr(text, "num_experts", None) or getattr(text, "num_local_experts", None) or 1
    idle = experts * (1 - text.num_experts_per_tok / n_experts) if experts else 0
    head = text.vocab_size * text.hidden_size
    return {"weights": weights, "head": head, "body": weights - idle - head * (1 if text.tie_word_embeddings else 2)}


def _step_s(weights: float, head: float, body: float) -> float:
    """Seconds of the default step with LoRA on an H100, by the formulas of docs/explanation/costs.md."""
    from opct.config.schema import OptimConfig

    prompts = OptimConfig().prompts_per_step
    completions = prompts * COMPLETION
    tokens = prompts * PROMPT + completions
    reading = 2 * weights * COMPLETION / H100["bytes"]  # all weights in bfloat16, for each token of a row
    sampling = max(2 * (body + head) * completions / H100["operations"], reading)
    rest = 2 * body * prompts * PROMPT + 3 * 2 * body * tokens + 3 * 2 * head * completions
    return sampling + rest / H100["operations"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def _blocks() -> dict[str, Any]:
    from opct.config.judge import JudgeConfig
    from opct.config.schema import TrainConfig
    from opct.evals.config import EvalConfig
    from opct.experiments.config import ExperimentConfig

    return {
        "commands": commands,
        "train-settings": lambda: settings(TrainConfig, "Run"),
        "eval-settings": lambda: settings(EvalConfig, skip=["judge"]),
        "attack-settings": attack_settings,
        "judge-settings": lambda: settings(JudgeConfig),
        "experiment-settings": lambda: settings(ExperimentConfig, skip=["evaluation"]),
        "metrics": metrics,
        "presets": presets,
        "models-and-cards": models_and_cards,
        **{
            f"families-{axis}": lambda axis=axis: families(axis)
            for axis in ("sycophancy", "jailbreak", "safety-awareness")
        },
    }


def llms() -> str:
    """Every page in the site's navigation, for programs that read the docs."""
    import yaml

    site = yaml.safe_load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"))
    lines = ["# opct", "", f"> {site['site_description']}", ""]
    for entry in site["nav"]:
        [(part, pages)] = entry.items()
        lines += [f"## {part}", ""]
        for page in [pages] if isinstance(pages, str) else pages:
            [title, *_] = re.findall(r"^# (.+)", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
            lines.append(f"- [{title}]({page})")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """Every page with such blocks, and llms.txt, as they must be."""
    blocks = _blocks()
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if BLOCK.search(text):
            found[page] = BLOCK.sub(lambda m: f"{m[1]}\n{blocks[m[2]]()}\n\n{m[3]}", text)
    return found | {DOCS / "llms.txt": llms()}


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
