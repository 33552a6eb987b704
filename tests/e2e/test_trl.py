"""`OPCTTrainer`: TRL's own trainer on a tiny model; loss and gradient are those of `opct.train`, sharded ones too."""

import logging
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, TrainerCallback

from opct.data.export import export_pairs
from opct.data.pairs import ContrastivePair, user_prompt, write_pairs
from opct.errors import ConfigError, DataError
from opct.methods.opct import OPCT
from opct.methods.rollouts import step_weights
from opct.training.accumulate import accumulate
from opct.training.setup import build_setup
from tests import oracles
from tests.e2e.cli import done
from tests.processes import end_ranks, start_ranks
from tests.refusals import refused
from tests.tiny import CONTEXT, move, open_pairs, tiny_anchors, tiny_pairs

trl = pytest.importorskip("trl", reason="TRL is not installed: pip install -e '.[trl]'")

from opct.integrations.trl import OPCTTrainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")  # of Transformers 5 to TRL
LORA = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}


class Gradients(TrainerCallback):
    """What a callback sees: the weights' gradients before the first update, and the logs."""

    def __init__(self) -> None:
        self.gradients: dict[str, torch.Tensor] = {}
        self.logs: list[dict[str, Any]] = []

    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        if not self.gradients:
            named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
            self.gradients = {name: weight.grad.detach().clone() for name, weight in named.items()}

    def on_log(self, args, state, control, *, logs, **kwargs):
        self.logs.append(dict(logs))


def make_trainer(folder: Path, model: Any, pairs: Any, lora: dict | None = None, **changes: Any):
    settings = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "max_steps": 1}
    settings |= {"max_completion_length": 6, "learning_rate": 0.01, "lr_scheduler_type": "constant"}
    settings |= {"max_grad_norm": 0.0, "logging_steps": 1, "shuffle_dataset": False, "bf16": False, "use_cpu": True}
    settings |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "dataloader_pin_memory": False}
    asked = {"eval_dataset": changes.pop("eval_dataset", None)}
    args = trl.DistillationConfig(str(folder), **settings | changes)
    if os.environ.get("ACCELERATE_USE_FSDP"):  # accelerate shards on no CPU: it is told that these are accelerators
        from accelerate import PartialState
        from accelerate.utils import DistributedType

        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU
    seen = Gradients()
    peft_config = LoraConfig(**lora) if lora else None
    model = str(model) if isinstance(model, Path) else model
    return OPCTTrainer(model, args, pairs, peft_config=peft_config, callbacks=[seen], **asked), seen


@pytest.mark.parametrize("lora", [None, LORA], ids=["every weight", "adapter"])
def test_a_step_is_that_of_opct_train(make_config, tiny_folder, tmp_path, lora):
    """Same weights, prompts and completions: loss and gradient to 1e-5, in two micro-batches with checkpointing."""
    ours = lora and {"r": 4, "alpha": 8, "target_modules": lora["target_modules"]}
    config = make_config(lora=ours, rollout={"num_generations": 1}, optim={"learning_rate": 1e-3})
    setup = build_setup(config)
    method = OPCT(setup.policy, setup.teacher, config)
    if lora:
        move(setup.policy)
    rollouts = method.collect(setup.data.batch(1), 1)
    weights = {name: weight.detach().clone() for name, weight in setup.policy.trainable_parameters().items()}
    loss, _ = accumulate(method, rollouts, step_weights(rollouts, "token_mean"), 10**6)
    expected = oracles.gradients(setup.policy)
    trainer, seen = make_trainer(tmp_path / "trl", tiny_folder, [r.pair for r in rollouts], lora)
    trainer.model.load_state_dict(weights, strict=False)
    asked = {tuple(r.prompt_ids): r.ids for r in rollouts}
    trainer._generate_single_turn = lambda prompts, *_: [asked[tuple(ids)] for ids in prompts]
    trainer.train()
    assert loss > 0.01
    assert seen.logs[0]["loss"] == pytest.approx(loss, rel=1e-5)
    assert oracles.largest_difference(seen.gradients, expected) < 1e-5


@pytest.mark.parametrize("lora", [None, LORA], ids=["every weight", "adapter"])
def test_what_it_saves_is_evaluated(tiny_folder, tmp_path, lora):
    """Sampled by TRL, saved as a checkpoint, loaded by `opct eval`; the teacher is still the base."""
    steps = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    trainer, seen = make_trainer(tmp_path / "trl", tiny_folder, tiny_pairs(4), lora, **steps)
    trainer.train()
    assert [row["completions/max_length"] for row in seen.logs[:2]] == [6, 6]
    assert all(name.split(".lora_")[0].endswith(("q_proj", "down_proj")) for name in seen.gradients if lora)
    if not lora:
        base = load_file(tiny_folder / "model.safetensors")
        assert all(torch.equal(base[name], w) for name, w in trainer.teacher_model.state_dict().items() if name in base)
    checkpoint = tmp_path / "trl" / "checkpoint-2"
    size = ("n_questions=1", "max_completion_tokens=4", "families=suggested_answer", "--dtype", "float32")
    done("eval", checkpoint, *size, "--suite", "sycophancy_short", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "results.json").is_file()


def test_it_reads_pairs_of_every_shape(tiny_folder, tmp_path):
    datasets = pytest.importorskip("datasets", reason="the datasets package is not installed")
    pairs = [*tiny_pairs(2), *tiny_anchors(1)]
    write_pairs(tmp_path / "pairs.jsonl", pairs)
    export_pairs(pairs, "trl", tmp_path / "trl.jsonl")
    exported = datasets.load_dataset("json", data_files=str(tmp_path / "trl.jsonl"), cache_dir=str(tmp_path / "cache"))
    texts = [{side: getattr(pair, side)[0]["content"] for side in ("prompt", "teacher_prompt")} for pair in pairs]
    for source in (pairs, str(tmp_path / "pairs.jsonl"), exported["train"], texts):
        trainer, _ = make_trainer(tmp_path / "out", tiny_folder, source)
        rows = [(row["prompt"], row["teacher_prompt"]) for row in trainer.train_dataset]
        assert rows == [(list(pair.prompt), list(pair.teacher_prompt)) for pair in pairs]


def test_it_evaluates_pairs_and_several_sets(tiny_folder, tmp_path):
    pairs = tiny_pairs(4)
    sets = {"one": pairs[:2], "two": pairs[2:]}
    trainer, _ = make_trainer(tmp_path, tiny_folder, pairs, eval_dataset=sets)
    texts = [{side: getattr(pair, side)[0]["content"] for side in ("prompt", "teacher_prompt")} for pair in pairs[:2]]
    for asked, names in ((None, "one_ two_"), ("one", ""), (pairs[:2], ""), (texts, ""), ({"three": texts}, "three_")):
        found = trainer.evaluate(asked)
        assert all(found[f"eval_{name}loss"] > 0 for name in names.split(" "))


def test_no_prompt_is_cut(tiny_folder, tmp_path, caplog):
    """A token more than fits is left out and named; what fits, longer than TRL's other trainers allow, stays whole."""
    [pair] = tiny_pairs(1)
    trainer, _ = make_trainer(tmp_path, tiny_folder, [pair])
    frame = len(trainer._renderer.render(user_prompt(".."))) - 2
    n = CONTEXT - 6 - frame  # dots, each a token
    long, longer = (ContrastivePair(f"long/{n}", "a", "b", user_prompt("." * n), pair.prompt) for n in (n, n + 1))
    with caplog.at_level(logging.WARNING):
        trainer, _ = make_trainer(tmp_path, tiny_folder, [pair, long, longer, *open_pairs(1)])
    [told] = [record.getMessage() for record in caplog.records if record.name == "opct.integrations.trl"]
    assert all(part in told for part in ("2 pair(s)", f"{longer.id}: {CONTEXT + 1} of {CONTEXT}", "product/0"))
    prompts = trainer._tokenize_prompts([row["prompt"] for row in trainer.train_dataset])[0]
    assert [len(ids) for ids in prompts][1:] == [CONTEXT - 6]
    with refused(DataError, longer.id, "product/0"):
        make_trainer(tmp_path, tiny_folder, [longer, *open_pairs(1)])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"modules_to_save": ["lm_head"]}, "output head"),
        ({"init_lora_weights": "pissa"}, "pissa"),
        ({"init_lora_weights": "olora"}, "olora"),
    ],
)
def test_an_adapter_that_would_change_its_teacher_is_refused(tiny_folder, tmp_path, changes, named):
    with refused(ConfigError, "peft_config", named):
        make_trainer(tmp_path, tiny_folder, tiny_pairs(2), LORA | changes)


def test_weights_of_the_base_that_are_trained_beside_an_adapter_are_refused(tiny_folder, tmp_path):
    """As where norms are set free; a copy of a norm that PEFT makes is none of the teacher's."""
    make_trainer(tmp_path, tiny_folder, tiny_pairs(2), LORA | {"modules_to_save": ["norm"]})
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_folder), LoraConfig(**LORA))
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with refused(ConfigError, "model.norm.weight"):
        make_trainer(tmp_path, model, tiny_pairs(2))


SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP"}
SHARDED |= {"FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true"}


def train_two_steps(folder: Path, model: Path, n: int) -> None:
    """In each of n processes: two steps on completions that follow from the prompts, then one of sampled ones."""
    warnings.simplefilter("ignore")  # as above
    os.environ |= SHARDED if n > 1 else {}
    steps = {"gradient_accumulation_steps": 2 // n, "max_steps": 3, "save_strategy": "steps", "save_steps": 2}
    trainer, seen = make_trainer(folder, model, tiny_pairs(4), **steps)
    sample, counts = trainer._generate_single_turn, []

    def given(prompts, *others):
        if trainer.state.global_step < 2:
            return [[5 + sum(ids) % 200, *range(10, 11 + sum(ids) % 4)] for ids in prompts]
        if trainer.accelerator.process_index:  # ends at once, while the other process samples on
            trainer.generation_config.eos_token_id = list(range(trainer.model.config.vocab_size))
        completions = sample(prompts, *others)
        counts.append([len(ids) for ids in completions])
        return completions

    trainer._generate_single_turn = given
    trainer.train()
    both = (trainer.model, trainer.teacher_model)
    sharded = [all(type(weight).__name__ == "DTensor" for weight in m.model.layers.parameters()) for m in both]
    found = {"losses": [row["loss"] for row in seen.logs[:2]], "lengths": counts, "sharded": sharded}
    torch.save(found, folder / f"of-{n}-{trainer.accelerator.process_index}.pt")


def test_two_processes_that_share_the_weights_make_the_step_of_one(tiny_folder, tmp_path):
    """FSDP2 by accelerate on two CPU processes: losses and saved weights to 1e-4; sampling ends together."""
    for n in (1, 2):
        (tmp_path / str(n)).mkdir()
        log = tmp_path / f"log-{n}.txt"
        ranks = start_ranks(n, log, train_two_steps, tmp_path / str(n), tiny_folder, n)
        assert end_ranks(ranks) == [0] * n, log.read_text()
    [one], two = ([torch.load(file) for file in sorted((tmp_path / str(n)).glob("*.pt"))] for n in (1, 2))
    assert [found["sharded"] for found in two] == [[True, True]] * 2
    assert [found["lengths"] for found in two] == [[[6, 6]], [[1, 1]]]
    assert two[0]["losses"] == pytest.approx(one["losses"], rel=1e-4)
    saved = [AutoModelForCausalLM.from_pretrained(tmp_path / name / "checkpoint-2").state_dict() for name in "12"]
    assert oracles.largest_difference(saved[1], saved[0]) < 1e-4
