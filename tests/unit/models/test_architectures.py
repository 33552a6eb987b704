"""Models that people have, each as a tiny random one: the table of docs/reference/models.md, row by row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from opct.config.loader import load_settings
from opct.evals.config import EvalConfig
from opct.evals.run import evaluate
from opct.models.export import find_trained, write_merged
from opct.models.from_run import load_policy
from opct.models.inference.token_sampling import Sampling
from opct.models.loading import quiet_peft
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.tiny import CONTEXT, tiny_tokenizer
from tests.unit.training.conftest import NO_VALIDATION

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"
SIZES = {
    **{"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "max_position_embeddings": CONTEXT, "initializer_range": 0.3},
}
WINDOW, HEADS = {"sliding_window": 8}, {"head_dim": 8}  # a window shorter than the prompts
GEMMA = {"layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 8}
MODELS = {
    "llama": {"tie_word_embeddings": False},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {**HEADS, "tie_word_embeddings": True},
    "gemma3_text": {**HEADS, **WINDOW, **GEMMA, "final_logit_softcapping": 30.0},
    "mistral": {**HEADS, **WINDOW},
    "phi3": {"pad_token_id": 0},
    "olmo2": {},
    "qwen3_moe": {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
}
"""Settings of a tiny model by `model_type`."""
PLAIN = {"norms": "norms run as in", "adapter": "layers of the adapter run", "prompts": "prompts that begin alike"}
"""What may be computed plainly, by its column of the page, as a run says it."""


def rows_of_page() -> dict[str, list[str]]:
    """The cells of the page's table by `model_type`."""
    lines = re.findall(r"^\| .*`(\w+)` *\|(.*)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def test_the_page_has_the_models_that_are_tested():
    assert list(rows_of_page()) == list(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_resumes_samples_and_is_measured_and_exported(name: str, make_config, tmp_path: Path):
    """One step and, resumed, another. Its samples and scores are those of plain transformers, to rounding, also of the
    adapter as PEFT loads and merges it. What is computed plainly is what its row of the page says."""
    from peft import PeftModel
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer, folder = tiny_tokenizer(), tmp_path / "model"
    torch.manual_seed(0)
    special = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id}
    own = AutoConfig.for_model(name, **SIZES | special | MODELS[name])
    AutoModelForCausalLM.from_config(own).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = make_config(
        max_steps=1,
        model={"name_or_path": str(folder)},
        optim={"lr_scheduler_type": "constant", "learning_rate": 0.02},
        data=NO_VALIDATION,
    )
    train(config)
    assert train(config.model_copy(update={"max_steps": 2}), resume=True).step == 2
    run = RunDir(config.output_dir)
    said = "\n".join(run.read_manifest()["slow_paths"])
    assert [words in said for words in PLAIN.values()] == [cell == "plain" for cell in rows_of_page()[name]]

    policy = load_policy(str(run.path))
    with quiet_peft():
        adapter = run.latest_checkpoint() / "adapter"
        exported = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), adapter).eval()
    prompts = [list(range(5, 25)), list(range(40, 47))]
    for prompt, group in zip(prompts, policy.sample(prompts, [[0, 1], [2]], Sampling(8)), strict=True):
        for drawn in group:
            ids = torch.tensor([[*prompt, *drawn.token_ids]])
            with torch.no_grad():
                plain = exported(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected = plain[range(len(drawn.token_ids)), list(drawn.token_ids)]
            torch.testing.assert_close(torch.tensor(drawn.logprobs), expected, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(policy.log_probs([prompt], [drawn.token_ids])[0], expected, atol=1e-4, rtol=1e-4)
    [[greedy]] = policy.sample(prompts[:1], [[0]], Sampling(8, temperature=0.0))
    ids = torch.tensor(prompts[:1])
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    found = exported.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)[0, len(prompts[0]) :]
    assert found.tolist() == list(greedy.token_ids)
    assert write_merged(find_trained(run.path), tmp_path / "merged").largest < 1e-3

    settings = {"suites": ["benign"], "n_benign": 2, "max_benign_tokens": 4, "kl_samples": 2, "browser_questions": 0}
    results = evaluate(policy, load_settings(EvalConfig, base=settings), out_dir=tmp_path / "eval")
    assert next(row["n"] for row in results["rows"] if row["metric"] == "kl_to_base") == 2
