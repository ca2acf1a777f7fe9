"""The arrows between the rooms of the package, read from the source, and an import without side effects."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "jaxgrpo"

BELOW = ("theory", "errors")
SCIENCE = (*BELOW, "simulation", "inference", "logs.run")
# What each room may import besides itself; a room not named here (report, cli, ...) may import everything.
ALLOWED = {
    "theory": (),
    "errors": (),
    "logs": ("theory.hyperparameters", "errors"),
    "simulation": BELOW,
    "inference": (*BELOW, "logs.run"),
    "tuning": SCIENCE,
    "diagnosis": SCIENCE,
    "lab": SCIENCE,
}


def module_name(path: Path, root: Path) -> str:
    """Dotted name inside the package; empty for the package itself."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, name: str, is_package: bool, modules: set[str]) -> list[tuple[int, str]]:
    """Modules of the package that a source file imports, with their lines; "" is the package itself."""
    found = []
    here = name.split(".") if is_package and name else name.split(".")[:-1] if name else []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "jaxgrpo":
                    found.append((node.lineno, alias.name.partition(".")[2]))
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[: len(here) - (node.level - 1)]
                base = [*base, *(node.module.split(".") if node.module else [])]
            elif node.module and node.module.split(".")[0] == "jaxgrpo":
                base = node.module.split(".")[1:]
            else:
                continue
            for alias in node.names:
                longer = ".".join([*base, alias.name])
                found.append((node.lineno, longer if longer in modules else ".".join(base)))
    return found


def violations(name: str, imported: list[tuple[int, str]]) -> list[str]:
    room = name.split(".")[0]
    if room not in ALLOWED:
        return []
    allowed = (room, *ALLOWED[room])
    return [
        f"{name}, line {line}: imports {target or 'jaxgrpo'}"
        for line, target in imported
        if not any(target == permitted or target.startswith(permitted + ".") for permitted in allowed)
    ]


def package_files():
    files = sorted(PACKAGE.rglob("*.py"))
    return {module_name(path, PACKAGE): path for path in files}


def test_the_rooms_exist():
    rooms = {name.split(".")[0] for name in package_files()}
    assert {"theory", "errors", "logs", "inference"} <= rooms


def test_imports_follow_the_arrows():
    files = package_files()
    found = []
    for name, path in files.items():
        if name:
            imported = imports_of(
                path.read_text(encoding="utf-8"), name, path.name == "__init__.py", set(files)
            )
            found += violations(name, imported)
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "source", "bad"),
    [
        ("theory.cycle", "from jaxgrpo.theory.numerics import x", False),
        ("theory.cycle", "from . import numerics", False),
        ("theory.cycle", "import jax", False),
        ("theory.cycle", "from jaxgrpo.logs.run import Run", True),
        ("theory.cycle", "from ..logs import run", True),
        ("theory.cycle", "from jaxgrpo import logs", True),
        ("theory.cycle", "def f():\n    import jaxgrpo", True),
        ("logs.verl", "from jaxgrpo.theory.hyperparameters import Hyperparameters", False),
        ("logs.verl", "from jaxgrpo.theory import hyperparameters", False),
        ("logs.verl", "from jaxgrpo.theory.cycle import cycle_map", True),
        ("inference.fit", "from jaxgrpo.logs.run import Run", False),
        ("inference.fit", "from jaxgrpo.logs.verl import read", True),
        ("simulation.sde", "import jaxgrpo.inference.fit", True),
        ("lab.bandit", "from jaxgrpo.report.plots import plot", True),
        ("cli", "from jaxgrpo.report.plots import plot", False),
    ],
)
def test_the_check_can_fail(name, source, bad):
    modules = {"theory", "theory.numerics", "theory.hyperparameters", "theory.cycle", "logs", "logs.run"}
    assert bool(violations(name, imports_of(source, name, False, modules))) is bad


@pytest.mark.parametrize("path", sorted((PACKAGE / "theory").glob("*.py")), ids=lambda path: path.name)
def test_theory_has_no_input_output_and_no_randomness(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    roots = {
        (alias.name if isinstance(node, ast.Import) else node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert not roots & {"os", "io", "pathlib", "sys", "random", "secrets", "subprocess", "time"}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert not calls & {"open", "print", "input"}
    attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not any(name.startswith(("jax.random", "jr.", "np.random", "numpy.random")) for name in attributes)


def test_no_private_part_of_equinox_is_used():
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "equinox.internal" not in text and "eqx.internal" not in text, path


def test_import_changes_no_global_configuration():
    program = """
import json, os
import numpy as np
import jax
before = dict(jax.config.values)
environment, errors = dict(os.environ), np.geterr()
import jaxgrpo
after = dict(jax.config.values)
def changed(a, b):
    return sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
print(json.dumps({
    "jax": changed(before, after),
    "environment": changed(environment, dict(os.environ)),
    "numpy": errors != np.geterr(),
    "x64": bool(jax.config.jax_enable_x64),
}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    assert json.loads(done.stdout) == {"jax": [], "environment": [], "numpy": False, "x64": False}
