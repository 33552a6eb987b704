"""The docs name what there is: every setting, command, option, file, family and suite. So they cannot rot unseen."""

import functools
import importlib.util
import json
import re
import shlex

from opct.config.schema import TrainConfig
from opct.config.section import setting_names
from opct.evals.graders.versions import AGREEMENT
from tests.conftest import REPOSITORY

DOCS = REPOSITORY / "docs"
PAGES = {
    path: path.read_text(encoding="utf-8")
    for path in (REPOSITORY / "README.md", REPOSITORY / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")))
}


WIDE = {"several-gpus.md", "verl.md", "vllm.md", "one-gpu.md", "python.md", "speed.md"}
"""Pages whose code may be wider than `COLUMNS`, until they are rewritten."""
COLUMNS = 80
"""What a block shows on a screen of 1,280 pixels; what is longer is cut."""


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


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
    for page, made in module.pages().items():
        assert made == page.read_text(encoding="utf-8"), f"{page.name}: run `python docs/reference.py`"
    settings, of_commands = (PAGES[DOCS / "reference" / name] for name in ("settings.md", "cli.md"))
    assert all(f"| `{name}` |" in settings for name in setting_names(TrainConfig))
    assert all(f"## {words}\n" in of_commands for words in commands())


def written_commands():
    """(where, words) of each `opct ...` in bash blocks, in the help, in the examples and in the configs."""
    texts = [(page.name, block) for page, text in PAGES.items() for block in blocks(text, "bash.*")]
    texts += [(f"{words} --help", command.help or "") for words, command in commands().items()]
    for folder in ("examples", "configs"):
        for file in sorted((REPOSITORY / folder).rglob("*.*")):
            texts.append((file.name, re.sub(r"^#+ ?", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)))
    for where, text in texts:
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            plain = re.split(r" #|[|>;&]", line)[0]
            found = re.match(r"\s*(?:\S*(?:torchrun|python|accelerate launch)\b.* -m )?opct (.+)", plain)
            if found:
                yield where, shlex.split(found[1])


def parsed(words: list[str]):
    """The click context of a command, its words parsed and nothing run."""
    for n in (1, 2, 3):
        command = commands().get(" ".join(["opct", *words[:n]]))
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
        read = [one for value in values.values() for one in (value if isinstance(value, list | tuple) else [value])]
        assert out is None or str(out) not in map(str, read), f"{where}: opct {' '.join(words)} writes onto its input"


def test_every_command_named_in_a_sentence_is_there():
    """Its words and options; arguments may be left out there."""
    known = {words: {o for p in command.params for o in p.opts} for words, command in commands().items()}
    groups = {" ".join(words.split(" ")[:n]) for words in known for n in (1, 2, 3, 4)}
    of_all = {"--help", "--version", "--install-completion", "--show-completion"}
    for page, text in PAGES.items():
        for span in re.findall(r"`((?:[^`\n]* -m )?opct [^`\n]+)`", text):
            words = ["opct", *span.partition("opct ")[2].split(" ")]
            name = max((" ".join(words[:n]) for n in (1, 2, 3, 4) if " ".join(words[:n]) in groups), key=len)
            assert name != "opct" or words[1].startswith("-"), f"{page.name}: {span}"
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= known.get(name, set()) | of_all, f"{page.name}: {span}"


def test_links_lead_somewhere_and_code_is_code():
    for page, text in PAGES.items():
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name}: {target}"
        for block in blocks(text, "json"):
            json.loads(block)
        for block in blocks(text, "python"):
            compile(block, str(page), "exec")


def test_code_in_the_docs_is_not_cut():
    """But for rows of a CSV, which cannot be wrapped, and for decisions, which are as they were made."""
    wide = []
    for page, text in PAGES.items():
        if DOCS in page.parents and page.name not in WIDE and page.parent.name != "decisions":
            for language, block in re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
                wide += [
                    f"{page.name}: {line}" for line in block.splitlines() if len(line) > COLUMNS and language != "csv"
                ]
    assert not wide, "\n".join(wide)


def test_the_table_of_graders_has_the_agreement_that_reports_print():
    text = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    for suite, known in AGREEMENT.items():
        [row] = re.findall(rf"^\| `{suite}` \| {known.version} \|.*$", text, re.MULTILINE)
        numbers = f"{known.missed} of {known.events}", f"| {known.n} |", f"{known.kappa:.3f}".strip("0")
        assert [number for number in numbers if number not in row] == []


def test_every_front_says_what_opct_does_in_the_same_words():
    tagline = re.search(r"^site_description: (.+)\.$", (REPOSITORY / "mkdocs.yml").read_text(), re.MULTILINE)[1]
    fronts = ("README.md", "pyproject.toml", "CITATION.cff", "docs/index.md", "docs/llms.txt", "src/opct/cli/app.py")
    assert [front for front in fronts if tagline not in (REPOSITORY / front).read_text(encoding="utf-8")] == []
