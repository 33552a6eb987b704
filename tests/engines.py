"""An engine backend without vLLM: a policy of its own that loads each published adapter from its folder."""

from collections.abc import Callable, Sequence
from pathlib import Path

from opct.config.schema import ModelConfig
from opct.models.inference.sampler import Sampling
from opct.models.policy import Policy
from opct.models.vllm.engine import Sample
from tests.tiny import CONTEXT


class PolicyBackend:
    """Serves a model folder and the adapters beside it, as vLLM does; `events` is what it was asked."""

    name = "the test's engine"
    max_model_len = CONTEXT
    stale = False  # goes on with the first adapter, whatever is loaded

    def __init__(self, config: ModelConfig):
        self._model = config
        self._base = Policy.load(config)
        self.served: dict[str, Policy] = {}
        self.events: list[tuple] = []

    def load_adapter(self, name: str, folder: Path) -> None:
        self.events.append(("load", name, sorted(path.name for path in folder.iterdir())))
        former = next(iter(self.served.values()), None)
        fresh = Policy.load(self._model, adapter=folder)
        self.served[name] = former if self.stale and former is not None else fresh

    def unload_adapter(self, name: str) -> None:
        self.events.append(("unload", name))
        del self.served[name]

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[range],
        sampling: Sampling,
        adapter: str | None,
        on_done: Callable[[int], None],
    ) -> list[list[Sample]]:
        self.events.append(("draw", adapter, len(prompts)))
        policy = self._base if adapter is None else self.served[adapter]
        groups = policy.sample(prompts, [list(own) for own in seeds], sampling, on_done=on_done)
        return [[(list(c.token_ids), list(c.logprobs)) for c in own] for own in groups]

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        self.events.append(("score", len(sequences)))
        rows = self._base.log_probs([ids[:1] for ids in sequences], [ids[1:] for ids in sequences])
        return [row.tolist() for row in rows]

    def sleep(self) -> None:
        self.events.append(("sleep",))

    def close(self) -> None:
        self.events.append(("close",))

    def asked(self, kind: str) -> list[tuple]:
        """The events of one kind, without it."""
        return [tuple(rest) for name, *rest in self.events if name == kind]
