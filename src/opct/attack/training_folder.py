"""The folder of an attacker that is trained.

identity.json           attacker, target, judge and rules; a resume must match them
attacker/               its run; private, for its rollouts are prompts
training_pairs.jsonl    what it is trained on; private
training_steps.jsonl    what each step of its training showed, without texts
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from opct.runs.io import read_json, read_jsonl, write_json


class TrainingFolder:
    """Paths of the folder, which exists from the beginning of a training on."""

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self.identity_path = self.path / "identity.json"
        self.attacker_path = self.path / "attacker"
        self.pairs_path = self.path / "training_pairs.jsonl"
        self.steps_path = self.path / "training_steps.jsonl"

    @property
    def is_begun(self) -> bool:
        return self.identity_path.is_file()

    @property
    def identity(self) -> dict[str, Any]:
        return read_json(self.identity_path, hint="Restore it, or start over with --overwrite.")

    def begin(self, identity: Mapping[str, Any]) -> None:
        # never overwritten: a resume is compared with what the training began as
        if not self.is_begun:
            self.path.mkdir(parents=True, mode=0o700, exist_ok=True)
            write_json(self.identity_path, identity)

    def clear(self) -> None:
        if self.is_begun:
            shutil.rmtree(self.path)

    def clear_unless_played(self) -> None:
        """Remove a training that put no prompt to the target, so that it can simply be started again."""
        # a step is noted before its first query, so an empty file means that no query was spent
        if self.is_begun and not read_jsonl(self.steps_path):
            self.clear()
