"""Folders of glm5_deploy build on each other in one direction (docs/architecture.md)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import glm5_deploy
import pytest

PACKAGE = Path(glm5_deploy.__file__).parent
LAYERS = (
    {"__init__", "errors"},
    {"local_command", "kernel_package", "kernel_wheel", "onhost"},
    {"config", "hosts"},
    {"locks", "report", "logs"},
    {"stages", "kernel_doctor", "package_index", "rehearsal"},
    {"memory", "smoke"},
    {"run", "status"},
    {"bench", "demo"},
    {"cli", "__main__"},
)
"""From the bottom up; what stands in one row may know each other."""

RANK = {name: number for number, names in enumerate(LAYERS) for name in names}
PARTS = sorted({path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py")})


def imported(tree: ast.AST) -> Iterator[str]:
    """Parts that run-time imports name, wherever they stand; not those for type checkers alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "glm5_deploy":
            yield from (name.name for name in node.names if not name.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glm5_deploy."):
            yield (node.module or "").split(".")[1]
        yield from imported(node)


@pytest.mark.parametrize("part", PARTS)
def test_nothing_knows_what_builds_on_it(part: str) -> None:
    name = part.removesuffix(".py")
    assert name in RANK, f"say in LAYERS what {name} builds on"
    files = [PACKAGE / part] if part.endswith(".py") else sorted((PACKAGE / part).rglob("*.py"))
    upwards = [
        f"{path.relative_to(PACKAGE)} imports {other}"
        for path in files
        for other in imported(ast.parse(path.read_text(encoding="utf-8")))
        if RANK[other] > RANK[name]
    ]
    assert upwards == []
