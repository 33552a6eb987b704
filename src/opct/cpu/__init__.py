"""What makes a CPU fast: kernels, and prompts that are computed once for all their completions.

`opct.models.loading` installs it, and nothing else imports it (a contract in pyproject.toml). All of it gives the
results of the plain path (`opct.models.plain_path`) to rounding, and leaves a model alone that it does not fit, which
a probe of the model tells. Fused LoRA layers and norms, and shared prompts, are installed on any device.
"""

from opct.cpu.fast_path import install
from opct.cpu.fused_lora import fuse_lora

__all__ = ["fuse_lora", "install"]
