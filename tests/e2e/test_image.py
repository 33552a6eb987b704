"""The image is built and runs; needs docker, the network and some gigabytes."""

import os
import subprocess

import pytest

from tests.conftest import REPOSITORY

pytestmark = [
    pytest.mark.skipif(os.environ.get("OPCT_DOCKER") != "1", reason="OPCT_DOCKER=1 builds the image, for minutes"),
    pytest.mark.timeout(3600),
]


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_image_is_built_and_its_user_runs_the_demo():
    docker("build", "--tag", "opct-test", ".")
    assert docker("run", "--rm", "--entrypoint", "id", "opct-test", "-un").strip() == "opct"
    assert docker("run", "--rm", "opct-test", "--version").startswith("opct 0.")
    assert "with pressure" in docker("run", "--rm", "opct-test", "demo")
