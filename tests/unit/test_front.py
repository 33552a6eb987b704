"""The files in front of the package agree with it: the workflow, the image, the pinned versions, the notices."""

import json
import re
import shutil
import subprocess
import tomllib

import pytest
import yaml

from tests.conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
UV = shutil.which("uv")


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


def test_the_workflow_and_the_container_run_what_is_there_with_actions_of_a_major_version():
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    created = json.loads(read(".devcontainer/devcontainer.json"))["postCreateCommand"]
    ran = " ".join([created, *(step.get("run", "") for step in steps)])
    assert ".ci/run" in ran
    for path in re.findall(r"(?:\.ci|tests)/\S+", ran):
        assert (REPOSITORY / path).exists(), path
    targets = re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE)
    assert {word for call in re.findall(r"make ((?:[a-z]+ )+)", ran) for word in call.split()} <= set(targets)
    classifiers = " ".join(PROJECT["project"]["classifiers"])
    assert all(f":: {version}" in classifiers for version in jobs["tests"]["strategy"]["matrix"]["python"])


def test_issue_forms_are_complete():
    """An id that is given twice, or a required key that is missing, hides the form without a word."""
    forms = [path for path in (REPOSITORY / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert {form.stem for form in forms} == {"bug", "question"}
    for form in map(yaml.safe_load, (path.read_text(encoding="utf-8") for path in forms)):
        assert {"name", "description", "body"} <= form.keys()
        fields = [item for item in form["body"] if item["type"] != "markdown"]
        assert len({item["id"] for item in fields}) == len(fields)
        assert all(item["attributes"]["label"] for item in fields)
        assert any("`opct env`" in item["attributes"]["label"] for item in fields)


def test_the_image_copies_what_is_there_and_what_its_context_has():
    lines = re.sub(r"\\\n\s*", " ", read("Dockerfile")).splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    copied = [name for step in steps if step[0] == "COPY" for name in step[1:-1]]
    ignored, *kept = [line for line in read(".dockerignore").splitlines() if not line.startswith("**")]
    assert ignored == "*"
    assert sorted(copied) == sorted(line.removeprefix("!") for line in kept)
    assert all((REPOSITORY / name).exists() for name in copied)
    needed = [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]]  # the build reads them
    assert set(needed) <= set(copied)
    assert [step[1] for step in steps if step[0] == "USER"] == ["1000"]  # a number: clusters refuse names
    assert json.loads(lines[[line.split(" ")[0] for line in lines].index("ENTRYPOINT")].partition(" ")[2]) == ["opct"]


def test_the_lock_file_has_the_versions_of_the_constraints():
    """Extras that want other versions (vllm, verl) have them beside these."""
    locked = {}
    for package in tomllib.loads(read("uv.lock"))["package"]:
        locked.setdefault(package["name"], set()).add(package.get("version"))
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", read("constraints.txt"), re.MULTILINE))
    names = {name: re.sub(r"[_.]+", "-", name).lower() for name in pins}
    assert {name: version for name, version in pins.items() if version not in locked.get(names[name], ())} == {}


@pytest.mark.skipif(UV is None, reason="uv is not installed: make test-newest")
def test_the_lock_file_is_that_of_the_project(tmp_path):
    """Without the network: `uv lock` makes it anew."""
    command = [UV, "lock", "--check", "--offline", "--no-python-downloads", "--cache-dir", tmp_path]
    made = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert made.returncode == 0, made.stderr


def test_what_others_wrote_has_its_notice():
    """Texts of others are files of text; data and wordings of ours are tables, JSON and YAML."""
    notice, texts = read("NOTICE"), sorted((REPOSITORY / "src").rglob("*.txt"))
    named = re.findall(r"^(src/\S+)\n    The", notice, re.MULTILINE)
    assert named == [path.relative_to(REPOSITORY).as_posix() for path in texts]
    assert notice.count("Permission is hereby granted") == notice.count("    Copyright (c) ") == len(texts)


def test_the_citation_has_the_version_of_the_package():
    assert yaml.safe_load(read("CITATION.cff"))["version"] == PROJECT["project"]["version"]


def test_every_example_is_in_the_list():
    there = {path.name for path in (REPOSITORY / "examples").iterdir() if path.is_file()} - {"README.md"}
    assert set(re.findall(r"^\| \[([\w.]+)\]\(\1\)", read("examples/README.md"), re.MULTILINE)) == there
