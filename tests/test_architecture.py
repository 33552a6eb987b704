"""The shape of the package: imports go down, functions stay small, the public API is what it says."""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import opct
from tests.conftest import REPOSITORY

SOURCE = REPOSITORY / "src" / "opct"
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


def test_graders_statistics_and_losses_import_nothing_of_ours_but_errors():
    pure = [*(SOURCE / "evals" / "graders").glob("*.py"), SOURCE / "evals" / "stats.py"]
    allowed = ("opct.errors", "opct.evals.graders", "opct.data.words")
    for path in (*pure, SOURCE / "losses.py", SOURCE / "data" / "words.py"):
        imported = re.findall(r"^\s*(?:from|import) (opct[\w.]*)", path.read_text(encoding="utf-8"), re.M)
        assert [name for name in imported if not name.startswith(allowed)] == [], path


def test_functions_are_short():
    """Signature and code, the docstring aside."""
    long = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                head = node.body[0]
                docstring = head.end_lineno - head.lineno + 1 if ast.get_docstring(node, clean=False) else 0
                lines = node.end_lineno - node.lineno + 1 - docstring
                if lines > MOST_FUNCTION_LINES:
                    long.append(f"{name_of(path)}:{node.lineno} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


def test_the_public_api_is_what_is_importable_and_what_a_type_checker_sees():
    """The imports under TYPE_CHECKING name the same things, from the same places. No name is that of a package, which
    would take its place when it is imported."""
    for name in opct.__all__:
        value = getattr(opct, name)
        home = importlib.import_module(opct._HOMES[name])
        assert value is (home if name == "losses" else getattr(home, name))
    assert set(opct.__all__) <= set(dir(opct))
    with pytest.raises(AttributeError):
        opct.nothing  # noqa: B018
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body for alias in node.names}
    assert seen == {name: ("opct" if name == "losses" else home) for name, home in opct._HOMES.items()}
    assert not (set(opct.__all__) - {"losses"}) & {path.stem for path in SOURCE.iterdir()}
