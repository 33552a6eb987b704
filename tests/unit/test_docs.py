"""The docs name what there is: every setting, command, option, file, family and suite. So they cannot rot unseen."""

import functools
import importlib.util
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from opct.config.schema import TrainConfig
from opct.config.section import setting_names
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def text(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


@functools.cache
def commands() -> dict:
    """The click command of every command that does something, by its words."""
    import typer

    from opct.cli.app import app

    def walk(command, words):
        inner = getattr(command, "commands", None)
        if inner is None:
            yield " ".join(words), command
            return
        for name, child in inner.items():
            yield from walk(child, [*words, name])

    return dict(walk(typer.main.get_command(app), ["opct"]))


def test_the_generated_blocks_are_those_of_the_code():
    spec = importlib.util.spec_from_file_location("reference", DOCS / "reference.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.pages()
    for page, made in pages.items():
        assert made == page.read_text(encoding="utf-8"), f"{page.name}: run `python docs/reference.py`"
    settings = text("reference/settings.md")
    assert all(f"| `{name}` |" in settings for name in setting_names(TrainConfig))
    commands_page = text("reference/cli.md")
    assert all(f"## {words}\n" in commands_page for words in commands())


def written_commands():
    """(where, words) of each `opct ...` in bash blocks, in the examples and in the first lines of the configs."""
    for page in PAGES:
        for block in re.findall(r"^```bash.*\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            yield from _commands_in(page, block)
    for words, command in commands().items():
        yield from _commands_in(Path(f"{words} --help"), re.sub(r"^ +", "", command.help or "", flags=re.MULTILINE))
    for folder in ("examples", "configs"):
        for file in sorted((REPOSITORY / folder).rglob("*.*")):
            said = re.sub(r"^#+ ?", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
            yield from _commands_in(file, said)


def _commands_in(file: Path, script: str):
    for line in re.sub(r"\\\n\s*", " ", script).splitlines():
        plain = re.split(r" #|[|>;&]", line)[0]
        found = re.match(r"\s*(?:\S*(?:torchrun|python|accelerate launch)\b.* -m )?opct (.+)", plain)
        if found:
            yield file.name, shlex.split(found[1])


def parsed(words: list[str]):
    """The click context of a command, its words parsed and nothing run."""
    known = commands()
    for n in (1, 2, 3):
        command = known.get(" ".join(["opct", *words[:n]]))
        if command is not None:
            return command.make_context(" ".join(words[:n]), words[n:])
    raise AssertionError(f"opct {' '.join(words)}: no such command")


def test_every_command_in_the_docs_parses_and_spares_what_it_reads():
    seen = list(written_commands())
    assert len(seen) > 25
    for where, words in seen:
        try:
            values = parsed(words).params
        except Exception as error:
            raise AssertionError(f"{where}: opct {' '.join(words)}: {error}") from error
        out = values.pop("out", None)
        read = {
            str(one) for value in values.values() for one in (value if isinstance(value, list | tuple) else [value])
        }
        assert out is None or str(out) not in read, f"{where}: opct {' '.join(words)} writes onto what it reads"


def test_every_command_named_in_a_sentence_is_there():
    """Its words and options; arguments may be left out there."""
    known = {words: {o for p in command.params for o in p.opts} for words, command in commands().items()}
    groups = {" ".join(words.split(" ")[:n]) for words in known for n in (1, 2, 3)}
    for page in PAGES:
        for span in re.findall(r"`((?:[^`\n]* -m )?opct [^`\n]+)`", page.read_text(encoding="utf-8")):
            words = ["opct", *span.partition("opct ")[2].split(" ")]
            name = max((" ".join(words[:n]) for n in (1, 2, 3, 4) if " ".join(words[:n]) in groups), key=len)
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            of_all = {"--help", "--version", "--install-completion", "--show-completion"}
            assert name != "opct" or words[1].startswith("-"), f"{page.name}: {span}"
            unknown = options - known.get(name, set()) - of_all
            assert not unknown, f"{page.name}: {span}: no option {', '.join(sorted(unknown))}"


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("language", ["python", "json"])
def test_code_in_the_docs_is_code(language: str):
    for page in PAGES:
        blocks = rf"^```{language}\n(.*?)^```"
        for block in re.findall(blocks, page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
            json.loads(block) if language == "json" else compile(block, str(page), "exec")


def test_the_launchers_examples_start_the_command():
    """They parse as shell and YAML, and torchrun takes what they give it, with numbers for their variables."""
    import yaml
    from torch.distributed.run import get_args_parser

    slurm, sky = (REPOSITORY / "examples" / name for name in ("slurm.sbatch", "skypilot.yaml"))
    task = yaml.safe_load(sky.read_text(encoding="utf-8"))
    scripts = (slurm.read_text(encoding="utf-8"), task["run"])
    for script in (*scripts, task["setup"]):
        subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)
    for script in scripts:
        # written before anything else of a run
        assert re.search(r'\[ -e "?\$run/manifest\.json"? \]; then resume', script)
        lines = re.sub(r"\\\n\s*", " ", script).splitlines()
        [line] = [line for line in lines if re.search(r"torchrun +-", line)]
        words = shlex.split(re.sub(r"\$\([^)]*\)|\$\w+", "2", line.partition("torchrun ")[2]))
        parsed = get_args_parser().parse_args(words)
        assert (parsed.module, parsed.training_script, parsed.training_script_args[0]) == (True, "opct", "train")
        assert parsed.nnodes == parsed.nproc_per_node == "2"
