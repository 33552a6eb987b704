"""Everything that vLLM is called with exists in the oldest and in the newest version that pyproject.toml allows.

Their wheels are read, not imported: they need a GPU. OPCT_VLLM_WHEELS names a folder with them (make test-vllm).
"""

import ast
import os
import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from opct.config.schema import LoraSettings
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm import local, server
from tests.conftest import REPOSITORY

FOLDER = Path(os.environ.get("OPCT_VLLM_WHEELS", "/nonexistent"))
WHEELS = sorted(FOLDER.glob("vllm-*.whl"))
SERVER = ast.parse(Path(server.__file__).read_text(encoding="utf-8"))


@pytest.fixture(params=WHEELS or [None], ids=lambda wheel: "none" if wheel is None else wheel.name.split("-")[1])
def wheel(request):
    if request.param is None:
        pytest.skip("OPCT_VLLM_WHEELS names no folder with wheels of vLLM: make test-vllm")
    with zipfile.ZipFile(request.param) as opened:
        yield opened


def class_of(wheel: zipfile.ZipFile, path: str, name: str) -> ast.ClassDef:
    tree = ast.parse(wheel.read(path))
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)


def fields(of: ast.ClassDef) -> set[str]:
    return {n.target.id for n in of.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def parameters(of: ast.ClassDef, method: str) -> set[str]:
    found = next(n for n in of.body if isinstance(n, ast.FunctionDef) and n.name == method)
    return {argument.arg for argument in (*found.args.args, *found.args.kwonlyargs)}


def keywords(call: str) -> set[str]:
    """What our server gives that function by name."""
    calls = [node for node in ast.walk(SERVER) if isinstance(node, ast.Call)]
    named = [c for c in calls if getattr(c.func, "attr", getattr(c.func, "id", "")) == call]
    assert named
    return {str(keyword.arg) for c in named for keyword in c.keywords if keyword.arg is not None}


def test_the_wheels_are_the_oldest_and_the_newest_that_are_allowed(wheel):
    """The newest is whatever the index has: if it is beyond the bound, the bound can move once this test passes."""
    [bound] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]["vllm"]
    oldest, above = (tuple(map(int, v.split("."))) for v in re.match(r"vllm>=([\d.]+),<([\d.]+)", bound).groups())
    versions = [tuple(map(int, path.name.split("-")[1].split(".")))[:2] for path in WHEELS]
    assert min(versions) == oldest
    assert (max(versions)[0], max(versions)[1] + 1) == above


def test_the_engine_takes_our_arguments(wheel, make_config):
    config = make_config(rollout={"engine": "vllm"}, vllm={"max_num_seqs": 8})
    given = local._arguments(Policy.load(config.model, lora=LoraSettings()), config, 99)
    assert set(given) <= fields(class_of(wheel, "vllm/engine/arg_utils.py", "EngineArgs"))
    ranks, mode = (
        wheel.read(f"vllm/config/{name}.py").decode().partition(f"\n{literal} = Literal[")[2].partition("]")[0]
        for name, literal in (("lora", "MaxLoRARanks"), ("model", "LogprobsMode"))
    )
    assert tuple(map(int, ranks.split(","))) == local.RANKS
    assert given["logprobs_mode"] in mode


def test_requests_and_adapters_have_our_fields(wheel):
    settings = {*local.request_settings(Sampling(6), [2]), "n", "seed", "prompt_logprobs"}
    assert settings <= fields(class_of(wheel, "vllm/sampling_params.py", "SamplingParams"))
    assert keywords("LoRARequest") <= fields(class_of(wheel, "vllm/lora/request.py", "LoRARequest"))


def test_the_engine_has_our_calls_and_answers(wheel):
    llm = class_of(wheel, "vllm/entrypoints/llm.py", "LLM")
    for method in ("generate", "sleep", "wake_up"):
        assert keywords(method) <= parameters(llm, method)
    engine = class_of(wheel, "vllm/v1/engine/llm_engine.py", "LLMEngine")
    assert parameters(engine, "add_lora") == {"self", "lora_request"}
    assert parameters(engine, "remove_lora") == {"self", "lora_id"}
    assert {"token_ids", "logprobs"} <= fields(class_of(wheel, "vllm/outputs.py", "CompletionOutput"))
    assert {"outputs", "prompt_logprobs"} <= parameters(class_of(wheel, "vllm/outputs.py", "RequestOutput"), "__init__")
    assert "logprob" in fields(class_of(wheel, "vllm/logprobs.py", "Logprob"))


def test_the_environment_variables_are_vllms(wheel):
    source = wheel.read("vllm/envs.py").decode()
    names = [*local.QUIET, "VLLM_ENABLE_V1_MULTIPROCESSING"]
    assert all(f'"{name}": lambda' in source for name in names if name.startswith("VLLM_"))
