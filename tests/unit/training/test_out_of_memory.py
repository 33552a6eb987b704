"""Too little memory is one error that says for what, and which settings help."""

import pytest
import torch

from opct.errors import OutOfMemory
from opct.models import policy
from opct.models.policy import Policy
from opct.runs.run_dir import RunDir
from opct.training.dry_run import make_plan
from opct.training.trainer import train
from tests.refusals import refused

SHORT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
OF_A_CPU = RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


def fails(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.mark.parametrize("error", [SHORT, OF_A_CPU], ids=["accelerator", "cpu"])
@pytest.mark.parametrize(
    ("kind", "name", "helps"),
    [
        (policy, "sample", "rollout.engine"),
        (Policy, "_score_rows", "model.quantization"),
        (Policy, "score", "optim.micro_batch_tokens"),
    ],
    ids=["rollout", "validation", "loss"],
)
def test_where_it_is_short_says_what_helps(make_config, monkeypatch, kind, name, helps, error):
    config = make_config(data={} if name == "_score_rows" else {"validation_size": 0})
    monkeypatch.setattr(kind, name, fails(error))
    with refused(OutOfMemory, helps, str(error).partition(".")[0]):
        train(config)
    if name != "_score_rows":  # a plan does not validate
        with refused(OutOfMemory, helps):
            make_plan(config)


def test_short_in_the_backward_pass_of_a_later_step_leaves_the_last_checkpoint(make_config, monkeypatch):
    config, backward = make_config(save_steps=1), torch.Tensor.backward
    seen = []

    def short(self, *arguments, **keywords):
        seen.append(1)
        return fails(SHORT)() if len(seen) > 2 else backward(self, *arguments, **keywords)

    monkeypatch.setattr(torch.Tensor, "backward", short)
    with refused(OutOfMemory, "optim.micro_batch_tokens"):
        train(config)
    monkeypatch.undo()
    last = RunDir(config.output_dir).checkpoints()[-1][0]
    assert last == 2
    assert train(config, resume=True).step == 4


def test_another_error_is_no_shortage(make_config, monkeypatch):
    monkeypatch.setattr(policy, "sample", fails(RuntimeError("a shape")))
    with pytest.raises(RuntimeError, match="a shape"):
        train(make_config())
