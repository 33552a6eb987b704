"""The wheel and the source archive hold what they should, and the wheel runs without a clone; needs uv and PyPI."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from opct.config.packaged import PACKAGED
from tests.conftest import REPOSITORY

UV = shutil.which("uv")
pytestmark = pytest.mark.skipif(UV is None, reason="uv is not installed: make test-newest")


def ran(*command: object, **options) -> str:
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=280, check=False, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with both; the wheel is made from the source archive, as an installer makes it."""
    folder = tmp_path_factory.mktemp("dist")
    ran(UV, "build", "--quiet", "--no-python-downloads", "--python", sys.executable, "--out-dir", folder, REPOSITORY)
    return folder


def test_both_are_accepted_by_twine_and_hold_what_they_should(built):
    ran(UV, "tool", "run", "--no-python-downloads", "twine", "check", "--strict", *built.glob("opct-*"))
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"opct/configs/{path.name}" for path in PACKAGED.values()} <= names
    assert {name.rpartition("/")[2] for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"opct"}
    with tarfile.open(source) as archive:
        roots = {Path(name).parts[1] for name in archive.getnames()}
    assert {"src", "tests", "configs", "docs", "README.md", "NOTICE", "Dockerfile", ".github"} <= roots


def test_the_wheel_runs_without_a_clone(built, tmp_path):
    """With the libraries of this environment, since those of its own would be gigabytes."""
    [wheel] = built.glob("*.whl")
    ran(UV, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", tmp_path / "site", wheel)
    paths = {"PYTHONPATH": str(tmp_path / "site")}

    def opct(*words: object) -> str:
        return ran(sys.executable, "-m", "opct", *words, cwd=tmp_path, env=os.environ | paths)

    where = ran(sys.executable, "-c", "import opct; print(opct.__file__)", cwd=tmp_path, env=os.environ | paths)
    assert Path(where.strip()).is_relative_to(tmp_path)  # and not a clone that is installed here
    assert opct("--version").startswith("opct 0.")
    assert [line.split()[0] for line in opct("configs").splitlines()] == list(PACKAGED)
    opct("init", "--from", "sycophancy")
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "Is it Sydney?", "teacher_prompt": "What is the capital?"}\n')
    assert "1 pair" in opct("data", "check", "pairs.jsonl")
