"""Completion tokens per second: the sampler of `opct` against `generate` of transformers, and vLLM where there is one.

    python -m benchmarks.sampler --out runs/sampler --repeats 3
    OPCT_VLLM_PYTHON=/path/to/python python -m benchmarks.sampler ...

Prompts of 64 tokens, all different; 64 new tokens in every row, at 8, 32 and 128 rows; and `ragged`, where a row ends
at its stop token (256 tokens at most), so that rows leave one by one. Temperature 1, nothing cut off.
For `generate` both the growing and the static cache are measured; vLLM runs eagerly, from the interpreter that
$OPCT_VLLM_PYTHON names. A process each, in turn, the first call of a process left out.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.cells import CellFailed, family_peak_gb, is_worker, run_cell, serve
from benchmarks.tables import markdown, ratios, spread
from benchmarks.workloads import add_options, products_dtype

ENGINES = ("opct", "hf-dynamic", "hf-static", "vllm")
CASES = {"8": (8, 64, True), "32": (32, 64, True), "128": (128, 64, True), "ragged": (128, 256, False)}
PROMPT_TOKENS = 64
CALLS = 2  # in a process, after one that is a warm-up


def prompts_of(tokenizer: Any, rows: int) -> list[list[int]]:
    """Token ids of `rows` different prompts."""
    from benchmarks.workloads import exact_prompt
    from opct.data.render import Renderer

    renderer = Renderer(tokenizer)
    return [renderer.render(exact_prompt(renderer, PROMPT_TOKENS, f"sampler/{i}")) for i in range(rows)]


def timed(sample: Any) -> dict[str, Any]:
    """Seconds and completion tokens of each call but the first; `sample(seed)` returns the lengths of its rows."""
    seconds, tokens, lengths = [], [], []
    for seed in range(CALLS + 1):
        started = time.perf_counter()
        lengths = sample(seed)
        seconds.append(time.perf_counter() - started)
        tokens.append(sum(lengths))
    return {"seconds": seconds[1:], "tokens": tokens[1:], "shortest": min(lengths), "longest": max(lengths)}


def ours(cell: dict[str, Any]) -> dict[str, Any]:
    """`Policy.sample`, every prompt by itself."""
    from opct.config.schema import ModelConfig
    from opct.models.inference.sampler import Sampling, sample_seed
    from opct.models.policy import Policy

    policy = Policy.load(ModelConfig(name_or_path=cell["model"], dtype=cell["dtype"], device="cpu"))
    if cell["forced"]:
        policy.backbone.stop_ids = frozenset({-1})  # no token is: none ends before the limit
    prompts, limit = prompts_of(policy.tokenizer, cell["rows"]), cell["new_tokens"]

    def sample(seed: int) -> list[int]:
        seeds = [[sample_seed(seed, row)] for row in range(len(prompts))]
        room = len(prompts) * (PROMPT_TOKENS + limit)
        groups = policy.sample(prompts, seeds, Sampling(limit), batch_tokens=room)
        return [len(completion.token_ids) for group in groups for completion in group]

    return timed(sample)


def transformers(cell: dict[str, Any]) -> dict[str, Any]:
    """`generate`, with the cache that the engine's name ends with."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    from opct.models.loading import resolve_model

    source = resolve_model(cell["model"])
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, cell["dtype"])).eval()
    ids = torch.tensor(prompts_of(tokenizer, cell["rows"]))
    config = GenerationConfig(
        max_new_tokens=cell["new_tokens"],
        min_new_tokens=cell["new_tokens"] if cell["forced"] else None,
        do_sample=True,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        cache_implementation="static" if cell["engine"] == "hf-static" else None,
        disable_compile=True,
    )

    def sample(seed: int) -> list[int]:
        torch.manual_seed(seed)
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
        new = out[:, PROMPT_TOKENS:]
        ended = (new == tokenizer.eos_token_id).int()
        first = torch.where(ended.any(1), ended.argmax(1) + 1, new.shape[1])
        return first.tolist()

    return timed(sample)


def vllm(cell: dict[str, Any]) -> dict[str, Any]:
    """vLLM in its own interpreter, which needs nothing of ours: prompts and model come with the cell."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", cores)  # by default it leaves one to its server
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    from vllm import LLM, SamplingParams

    longest = PROMPT_TOKENS + cell["new_tokens"]
    llm = LLM(
        model=cell["folder"],
        dtype=cell["dtype"],
        enforce_eager=True,
        max_model_len=longest,
        max_num_seqs=cell["rows"],
        enable_prefix_caching=False,
    )
    prompts = [{"prompt_token_ids": ids} for ids in cell["prompts"]]

    def sample(seed: int) -> list[int]:
        params = [
            SamplingParams(
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                max_tokens=cell["new_tokens"],
                ignore_eos=cell["forced"],
                seed=1000 * seed + row,
                detokenize=False,
            )
            for row in range(len(prompts))
        ]
        return [len(out.outputs[0].token_ids) for out in llm.generate(prompts, params, use_tqdm=False)]

    return timed(sample) | {"peak_gb": family_peak_gb()}  # its engine is a process of its own


def work(cell: dict[str, Any]) -> dict[str, Any]:
    """In the process of a cell: time its engine, and refuse rows of another length than was forced."""
    engines = {"opct": ours, "vllm": vllm}
    found = engines.get(cell["engine"], transformers)(cell)
    if cell["forced"] and {found["shortest"], found["longest"]} != {cell["new_tokens"]}:
        raise SystemExit(f"rows have {found['shortest']} to {found['longest']} tokens, not {cell['new_tokens']}")
    return found


def prompts(cell: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own, so that the one that starts the others stays small: what vLLM is given."""
    from opct.config.schema import ModelConfig
    from opct.models.loading import load_tokenizer, resolve_model

    tokenizer = load_tokenizer(ModelConfig(name_or_path=cell["model"]))
    return {"folder": resolve_model(cell["model"]), "prompts": prompts_of(tokenizer, cell["rows"])}


def rate(result: dict[str, Any]) -> float:
    """Completion tokens per second over the calls of a process."""
    return sum(result["tokens"]) / sum(result["seconds"])


def collect(out: Path) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, float]]:
    """Tokens per second by case, engine and repetition; and by engine the most memory. In the order of the options."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    memory: dict[str, float] = {}
    for path in sorted(out.glob("*/*-[0-9]*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        cell = record["cell"]
        found.setdefault(cell["case"], {}).setdefault(cell["engine"], {})[cell["rep"]] = rate(record["result"])
        memory[cell["engine"]] = max(memory.get(cell["engine"], 0.0), record["result"]["peak_gb"])
    return {c: found[c] for c in CASES if c in found}, {name: memory[name] for name in ENGINES if name in memory}


def table(out: Path) -> str:
    """Tokens per second of each engine and case, and how many times as many as `generate`'s better cache."""
    cases, memory = collect(out)
    rows = []
    for engine in memory:
        cells = []
        for engines in cases.values():
            reps = engines.get(engine, {})
            times = ratios(reps, best_of_transformers(engines))
            text = spread(list(reps.values())).text(0) if reps else "-"
            cells.append(text if times is None else f"{text}; {times.middle:.2f}x")
        rows.append([engine, *cells, f"{memory[engine]:.1f}"])
    titles = [case if case == "ragged" else f"{case} rows" for case in cases]
    return markdown(["tokens/s; times `generate`", *titles, "peak GB"], rows)


def best_of_transformers(engines: dict[str, dict[int, float]]) -> dict[int, float]:
    """The repetitions of the cache with the higher median; none where neither was measured."""
    own = [reps for name, reps in engines.items() if name.startswith("hf-")]
    return max(own, key=lambda reps: spread(list(reps.values())).middle, default={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, "runs/sampler")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=1800)
    parser.add_argument("--table", action="store_true", help="print the table of what is there, and measure nothing")
    args = parser.parse_args()
    dtype = products_dtype(args.dtype)
    process = {"limit_s": args.limit_s, "threads": args.threads}
    vllm_python, failed = os.environ.get("OPCT_VLLM_PYTHON"), 0
    engines = [engine for engine in args.engines if engine != "vllm" or vllm_python]
    if "vllm" in args.engines and not vllm_python and not args.table:
        print("vLLM is left out: OPCT_VLLM_PYTHON names no interpreter that has it")
    for rep in range(0 if args.table else args.repeats):
        for case in args.cases:
            rows, new_tokens, forced = CASES[case]
            for engine in engines:
                cell: dict[str, Any] = {"engine": engine, "case": case, "rows": rows, "new_tokens": new_tokens}
                cell |= {"forced": forced, "model": args.model, "rep": rep, "dtype": dtype}
                own, python = {}, None
                if engine == "vllm":
                    path = args.out / f"prompts-{rows}.json"
                    given = run_cell(path, {"model": args.model, "rows": rows}, "benchmarks.sampler", **process)
                    own, python = {key: given[key] for key in ("folder", "prompts")}, vllm_python
                path = args.out / case / f"{engine}-{rep}.json"
                # vLLM divides the cores among its processes by itself: told to use them all, they spin on each other
                threads = None if engine == "vllm" else args.threads
                how = process | {"python": python, "threads": threads}
                try:
                    result = run_cell(path, cell | own, "benchmarks.sampler", **how)
                except CellFailed as error:
                    failed += 1
                    print(f"  {error}", flush=True)
                    continue
                print(f"  {case} {engine} {rep}: {rate(result):.0f} tokens/s, {result['peak_gb']:.1f} GB", flush=True)
    print(table(args.out))
    if failed:
        raise SystemExit(f"{failed} cells failed: start again to measure these")


if __name__ == "__main__":
    serve(lambda cell: work(cell) if "engine" in cell else prompts(cell)) if is_worker() else main()
