"""The shape of the package: imports go down, files and functions stay small, the public API is what it says."""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "opct"
FILES = sorted(SOURCE.rglob("*.py"))
ROOT_MODULES = {"__init__", "__main__", "errors", "losses", "distributed", "api"}
PURE = list((SOURCE / "evals" / "graders").glob("*.py"))
PURE += [SOURCE / "evals" / "stats.py", SOURCE / "losses.py", SOURCE / "data" / "words.py"]
MOST_FUNCTION_LINES = 60


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def test_imports_go_down_only():
    """The contracts of [tool.importlinter]."""
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.skip("import-linter is not installed: pip install -e '.[dev]'")
    done = subprocess.run(
        [program, "--no-cache"], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr


def test_no_modules_import_each_other_in_a_circle():
    grimp = pytest.importorskip("grimp")
    graph = grimp.build_graph("opct", cache_dir=None)
    TopologicalSorter({name: graph.find_modules_directly_imported_by(name) for name in graph.modules}).prepare()


def test_at_most_six_modules_at_the_root():
    assert sorted(p.stem for p in SOURCE.glob("*.py")) == sorted(ROOT_MODULES)


def test_evaluation_and_training_do_not_know_each_other():
    assert not [p for p in (SOURCE / "training").rglob("*.py") if "opct.evals" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", PURE, ids=name_of)
def test_graders_statistics_and_losses_import_nothing_of_ours_but_errors(path: Path):
    imported = re.findall(r"^\s*(?:from|import) (opct[\w.]*)", path.read_text(encoding="utf-8"), re.M)
    assert not [
        name for name in imported if not name.startswith(("opct.errors", "opct.evals.graders", "opct.data.words"))
    ]


def test_functions_are_short():
    """Signature and code, the docstring aside."""
    long = []
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                head = node.body[0]
                docstring = head.end_lineno - head.lineno + 1 if ast.get_docstring(node, clean=False) else 0
                lines = node.end_lineno - node.lineno + 1 - docstring
                if lines > MOST_FUNCTION_LINES:
                    long.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_the_public_api_is_what_is_importable():
    import opct

    for name in opct.__all__:
        value = getattr(opct, name)
        home = importlib.import_module(opct._HOMES[name])
        assert value is (home if name == "losses" else getattr(home, name))
    assert set(opct.__all__) <= set(dir(opct))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        opct.nothing  # noqa: B018


def test_the_public_api_is_what_a_type_checker_sees():
    """The imports under TYPE_CHECKING name the same things, from the same places."""
    import opct

    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    homes = {name: ("opct" if name == "losses" else home) for name, home in opct._HOMES.items()}
    assert seen == homes


def test_no_public_name_is_that_of_a_package():
    """Importing `opct.reports` would put a module in the place of a function of that name."""
    import opct

    assert not (set(opct.__all__) - {"losses"}) & {path.stem for path in SOURCE.iterdir()}
