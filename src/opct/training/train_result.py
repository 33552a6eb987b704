"""How a run of training ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class TrainResult:
    """How a run ended."""

    run_dir: Path
    status: str
    step: int
    total_steps: int
    metrics: dict[str, float] = field(default_factory=dict)
    best_step: int | None = None

    def render(self) -> str:
        """The result in a few lines for a terminal."""
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        lines = [f"{self.status} after step {self.step} of {self.total_steps}: {numbers}"]
        if self.best_step is not None:
            lines.append(f"lowest validation KL after step {self.best_step}")
        lines.append(f"run: {self.run_dir}")
        if self.status == "interrupted":
            lines.append("everything is saved; go on with --resume")
        else:
            lines.append(f"next: opct eval {self.run_dir}")
        return "\n".join(lines)
