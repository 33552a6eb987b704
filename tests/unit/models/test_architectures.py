"""Models that people have, each as a tiny random one: the table of docs/reference/models.md, row by row."""

import math
import re
from pathlib import Path

import pytest
import torch

from opct.models.export import find_trained, write_merged
from opct.models.from_run import load_policy
from opct.models.inference.token_sampling import Sampling
from opct.models.loading import model_class
from opct.runs.io import read_jsonl
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.tiny import kl_to_base, tiny_family, tiny_tokenizer
from tests.unit.training.conftest import NO_VALIDATION

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "models.md"
WINDOW, HEADS = {"sliding_window": 8}, {"head_dim": 8}  # a window shorter than the prompts
BOTH = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
GEMMA = HEADS | BOTH | {"query_pre_attn_scalar": 8}
PER_LAYER = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 400, "num_kv_shared_layers": 0}
GEMMA3N = (
    HEADS | BOTH | PER_LAYER | {"laurel_rank": 4, "altup_num_inputs": 2, "activation_sparsity_pattern": [0.5, 0.0]}
)
GEMMA4 = HEADS | BOTH | PER_LAYER | {"global_head_dim": 8}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, **EXPERTS}
NOISE = {"router_jitter_noise": 0.1, "attention_dropout": 0.1}
DELTA = {
    **{"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
    **{"layer_types": ["linear_attention", "full_attention"]},
}
MAMBA = {
    **{"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_expand": 2},
    **{"mamba_d_conv": 4, "mamba_chunk_size": 8},
}
GRANITE = MAMBA | LOCAL | {"logits_scaling": 8.0}
MAMBA2 = {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8, "chunk_size": 8}
NEMOTRON = {"layers_block_type": ["mamba", "moe", "attention", "mlp"], "num_hidden_layers": 4, "initializer_range": 0.1}
PICTURES = {
    **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 8, "patch_size": 4},
}
BLOCKS = {
    **{"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4},
    **{"deepstack_visual_indexes": [0], "num_position_embeddings": 16},
}


def both(text: dict, pictures: dict, **settings) -> dict:
    """A model that takes pictures too, around one of text."""
    return {"text_config": text, "vision_config": pictures, **settings}


MODELS = {
    "qwen3": {**HEADS, "tie_word_embeddings": True},
    "llama": {"tie_word_embeddings": False},
    "gpt_oss": HEADS | BOTH | LOCAL,
    "nemotron_h": HEADS | MAMBA2 | ROUTED | NEMOTRON | {"moe_shared_expert_intermediate_size": 16},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3_moe": HEADS | EXPERTS | {"num_experts": 4},
    "qwen3_next": HEADS | EXPERTS | DELTA | {"num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_5": both(HEADS | DELTA, BLOCKS),
    "qwen3_vl": both(HEADS, BLOCKS),
    "gemma2": GEMMA,
    "gemma3_text": GEMMA | {"final_logit_softcapping": 30.0},
    "gemma3": both(GEMMA, PICTURES, mm_tokens_per_image=1),
    "gemma3n_text": GEMMA3N,
    "gemma4_text": GEMMA4,
    "gemma4": both(
        GEMMA4 | {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16},
        PICTURES | {"num_key_value_heads": 2, "head_dim": 8, "position_embedding_size": 64},
        audio_config=None,
    ),
    "mistral": HEADS | WINDOW,
    "ministral3": HEADS,
    "mistral3": both(HEADS | {"model_type": "ministral3"}, PICTURES | HEADS | {"model_type": "pixtral"}),
    "mixtral": LOCAL | NOISE,
    "phi3": {"pad_token_id": 0, "resid_pdrop": 0.1, "embd_pdrop": 0.1},
    "phimoe": LOCAL | {"input_jitter_noise": 0.1, "attention_dropout": 0.1},
    "olmo2": {},
    "olmo3": BOTH,
    "smollm3": {"pad_token_id": 0},
    "smolvlm": both({"model_type": "llama"}, PICTURES, scale_factor=2),
    "lfm2": {"layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    "granitemoehybrid": GRANITE | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16},
    "falcon_h1": HEADS | MAMBA | {"mamba_d_ssm": 64},
    "glm4": {**HEADS, "pad_token_id": 0},
    "glm4_moe": HEADS | ROUTED | {"first_k_dense_replace": 1},
    "exaone4": HEADS | BOTH,
    "ernie4_5": HEADS,
    "seed_oss": {**HEADS, "attention_dropout": 0.1, "residual_dropout": 0.1},
    "minimax_m2": HEADS | LOCAL | {"rotary_dim": 4, "router_jitter_noise": 0.1},
    "apertus": {},
    "cohere2": BOTH,
}
"""Settings of a tiny model by `model_type`."""
PLAIN = {"norms": "norms run as in", "adapter": "layers of the adapter run", "prompts": "prompts that begin alike"}
"""What may be computed plainly, by its column of the page, as a run says it."""
NOT_TEXT = re.compile(r"vision|visual|audio|connector|projector|router|\.experts\.")
"""Places that no adapter reaches unless it is asked to."""


def rows_of_page() -> dict[str, list[str]]:
    """The cells of the page's table by `model_type`."""
    lines = re.findall(r"^\| .*`(\w+)` *\|(.*)\|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in lines}


def test_the_page_has_the_models_that_are_tested():
    assert list(rows_of_page()) == list(MODELS)


def save_model(name: str, folder: Path) -> None:
    """A tiny random model of a family, as it is released: with what takes pictures, where it has that."""
    from transformers import AutoModelForImageTextToText

    torch.manual_seed(0)
    own = tiny_family(name, **MODELS[name])
    takes_pictures = type(own) in AutoModelForImageTextToText._model_mapping
    kind = AutoModelForImageTextToText if takes_pictures else model_class(own)
    kind.from_config(own).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_resumes_samples_and_is_measured_and_exported(name: str, make_config, tmp_path: Path):
    """One step and, resumed, another. Its samples and scores are those of the exported model in plain transformers, to
    rounding; in the first step, identity pairs have no loss. What is computed plainly is what its row of the page says.
    """
    from transformers import AutoConfig

    folder, merged = tmp_path / "model", tmp_path / "merged"
    save_model(name, folder)
    config = make_config(
        max_steps=1,
        model={"name_or_path": str(folder)},
        optim={"learning_rate": 0.02, "prompts_per_step": 2, "micro_batch_tokens": 2000},
        rollout={"max_completion_tokens": 3},
        data=NO_VALIDATION | {"anchor_fraction": 0.5},
    )
    train(config)
    assert train(config.model_copy(update={"max_steps": 2}), resume=True).step == 2
    run = RunDir(config.output_dir)
    first = read_jsonl(run.metrics_path)[0]
    assert first["train/kl_identity"] == pytest.approx(0, abs=1e-5)
    assert first["train/kl"] > 0 < first["train/grad_norm"] < math.inf
    assert abs(first["rollout/mismatch_kl"]) < 1e-4
    said = "\n".join(run.read_manifest()["slow_paths"])
    assert [words in said for words in PLAIN.values()] == [cell == "plain" for cell in rows_of_page()[name][:3]]

    policy = load_policy(str(run.path))
    reached = [place for place, _ in policy.model.named_parameters() if ".lora_" in place]
    assert reached
    assert not [place for place in reached if NOT_TEXT.search(place)]
    assert write_merged(find_trained(run.path), merged).largest < 1e-3
    exported = model_class(AutoConfig.from_pretrained(merged)).from_pretrained(merged).eval()
    long, short = list(range(5, 25)), list(range(40, 47))
    drawn = [c for group in policy.sample([long, short], [[0, 1], [2]], Sampling(5)) for c in group]
    [[greedy]] = policy.sample([long], [[0]], Sampling(5, temperature=0.0))
    asked, answers = [long, long, short, long], [*drawn, greedy]
    scored = policy.log_probs(asked, [answer.token_ids for answer in answers])
    for prompt, answer, found in zip(asked, answers, scored, strict=True):
        with torch.no_grad():
            logits = exported(torch.tensor([[*prompt, *answer.token_ids]])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[range(len(answer.token_ids)), list(answer.token_ids)]
        torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert logits.argmax(-1).tolist() == list(greedy.token_ids)
    assert max(kl_to_base(policy)) > 0
