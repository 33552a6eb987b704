"""Every installation that the docs name resolves to versions that work together; needs uv and the network."""

import re
import shutil
import subprocess

import pytest

from tests.conftest import REPOSITORY

UV = shutil.which("uv")
NAMED = re.compile(r"^pip install ((?:-c \S+ )?'?\..*?)(?: --extra-index-url \S+)?(?: +#.*)?$", re.MULTILINE)
AT_LEAST = {"vllm": (0, 24), "verl": (0, 9), "transformers": (5, 0), "peft": (0, 19)}
"""An older version is what a resolver takes where the newer ones do not fit together."""


def named() -> list[str]:
    """What `pip install` gets in the docs, each once."""
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    texts = (re.sub(r" *\\\n *", " ", page.read_text(encoding="utf-8")) for page in pages)
    return list(dict.fromkeys(command for text in texts for command in NAMED.findall(text)))


def test_the_docs_name_installations():
    assert {"-c constraints.txt .", "."} < set(named())


@pytest.mark.skipif(UV is None, reason="uv is not installed: make test-newest")
@pytest.mark.parametrize("command", named())
def test_an_installation_of_the_docs_resolves(command, tmp_path):
    words = [word.strip("'") for word in command.split()]
    constraints = ["-c", str(REPOSITORY / words[1])] if words[0] == "-c" else []
    wanted = [re.sub(r"^\.", str(REPOSITORY), word) for word in words[2 if constraints else 0 :]]
    (tmp_path / "in.txt").write_text("\n".join(wanted))
    platform = ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_28"]
    made = subprocess.run(
        [UV, "pip", "compile", "-q", "--no-annotate", *platform, *constraints, str(tmp_path / "in.txt")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    versions = dict(re.findall(r"^([\w-]+)==([\d.]+)", made.stdout, re.MULTILINE))
    assert {"torch", "transformers", "peft"} <= set(versions)
    for name, least in AT_LEAST.items():
        if name in versions:
            assert tuple(map(int, versions[name].split(".")[:2])) >= least, (name, versions[name])
