"""As in vLLM."""

from types import SimpleNamespace


class LoRARequest(SimpleNamespace):
    pass
