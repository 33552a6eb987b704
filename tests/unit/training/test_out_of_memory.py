"""Too little memory is one line that says for what, and which settings help in their order; what was saved stays."""

import shutil

import pytest
import torch
import transformers

from opct.config.loader import dump_config
from opct.errors import OutOfMemory
from opct.models import policy
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.trainer import train
from tests.progress import Noted
from tests.refusals import refused
from tests.unit.cli.running import run
from tests.unit.training.conftest import NO_VALIDATION, weights

LIMIT = 500  # prompt tokens of a micro-batch, one for each completion
SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
ERRORS = {
    "library": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    "cpu": RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
}
SAMPLING = "rollout.engine", "rollout.batch_tokens", "rollout.num_generations", "model.quantization"
TRAINING = "optim.micro_batch_tokens", "optim.gradient_checkpointing", "model.quantization"
SMALLER = ("model.quantization",)
PLACES = {  # what needs it: the call that fails, when, what helps, the steps saved, whether a dry run does it too
    "weights": (transformers.PreTrainedModel, "from_pretrained", lambda: True, SMALLER, [], True),
    "rollout": (policy, "sample", lambda: True, SAMPLING, [1], True),
    "teacher": (Policy, "score", lambda: not torch.is_grad_enabled(), TRAINING, [1], True),
    "policy": (Policy, "score", torch.is_grad_enabled, TRAINING, [1], True),
    "backward": (torch.Tensor, "backward", lambda: True, TRAINING, [1], True),
    "update": (torch.optim.AdamW, "step", lambda: True, TRAINING, [1], False),
    "validation": (Policy, "_score_rows", lambda: True, SMALLER, [1], False),
}


def fail(monkeypatch, kind, name: str, is_now, error=SHORT) -> None:
    """Let this call raise `error` where `is_now()`."""
    original = getattr(kind, name)

    def called(*arguments, **keywords):
        if is_now():
            raise error
        return original(*arguments, **keywords)

    monkeypatch.setattr(kind, name, called)


@pytest.mark.parametrize("place", PLACES)
def test_where_it_is_short_is_a_line_with_what_helps_and_the_steps_before_are_saved(
    make_config, tmp_path, monkeypatch, capsys, place
):
    kind, name, condition, helps, saved, is_probed = PLACES[place]
    data = {} if place == "validation" else NO_VALIDATION
    config = make_config(max_steps=2, save_steps=1, data=data)
    file, folder = tmp_path / "config.yaml", RunDir(config.output_dir)
    file.write_text(dump_config(config))

    def said(*options: str) -> str:
        assert run("train", file, *options) == 1
        captured = capsys.readouterr()
        [line] = [line for line in captured.err.splitlines() if "ut of memory" in line]
        assert "Traceback" not in captured.out + captured.err
        places = [line.index(help) for help in helps]
        assert places == sorted(places)
        return line

    with monkeypatch.context() as patch:
        fail(patch, kind, name, lambda: condition() and [step for step, _ in folder.checkpoints()] >= saved)
        assert said()
        is_trained = place == "validation"  # the step that could not be measured is saved, too
        assert [step for step, _ in folder.checkpoints()] == saved + [2] * is_trained
        if is_probed:
            fail(patch, kind, name, condition)
            assert said("--dry-run")
    assert run("train", file, *(["--resume"] if saved else [])) == 0
    assert folder.checkpoints()[-1][0] == 2


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_every_allocator_is_known(make_config, monkeypatch, error):
    fail(monkeypatch, Policy, "score", torch.is_grad_enabled, error)
    with refused(OutOfMemory, "optim.micro_batch_tokens", str(error).partition(".")[0]):
        train(make_config(data=NO_VALIDATION))


def test_another_error_is_no_shortage(make_config, monkeypatch):
    fail(monkeypatch, policy, "sample", lambda: True, RuntimeError("a shape"))
    with pytest.raises(RuntimeError, match="a shape"):
        train(make_config())


def test_auto_halves_the_micro_batch_in_the_first_step_and_keeps_it(make_config, monkeypatch, tmp_path):
    """The run is that of the number which fits, bit for bit; a resumed run has it too, whatever is free then."""
    batches, original = [], Policy.score

    def short(self, prompts, completions):
        if torch.is_grad_enabled():
            batches.append(sum(map(len, prompts)))
            if batches[-1] > LIMIT:
                raise SHORT
        return original(self, prompts, completions)

    def made(tokens, name: str):
        optim = {"micro_batch_tokens": tokens, "prompts_per_step": 10}
        return make_config(optim=optim, data=NO_VALIDATION, save_steps=1, max_steps=2, output_dir=str(tmp_path / name))

    auto, noted = made("auto", "auto"), Noted()
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "score", short)
        train(auto, progress=noted)
    run_dir = RunDir(auto.output_dir)
    tokens = run_dir.read_manifest()["micro_batch_tokens"]
    assert tokens == 192
    assert [line for line in noted.lines if f" {tokens} tokens" in line]
    given = made(tokens, "given")
    train(given)
    assert weights(auto) == weights(given)
    # the last step again
    batches.clear()
    [last] = [folder for step, folder in run_dir.checkpoints() if step == 2]
    monkeypatch.setattr(Policy, "score", short)
    shutil.rmtree(last)
    train(auto, resume=True)
    assert max(batches) <= LIMIT
    assert weights(auto) == weights(given)


def test_a_number_that_was_given_and_a_later_step_are_not_halved(make_config, monkeypatch):
    for tokens, is_now in ((768, lambda folder: True), ("auto", lambda folder: folder.checkpoints())):
        config = make_config(optim={"micro_batch_tokens": tokens}, data=NO_VALIDATION, save_steps=1)
        with monkeypatch.context() as patch, refused(OutOfMemory, "optim.micro_batch_tokens"):
            fail(patch, Policy, "score", lambda: torch.is_grad_enabled() and is_now(RunDir(config.output_dir)))  # noqa: B023
            train(config, overwrite=True)
