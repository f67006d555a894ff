"""compat's table of vLLM's names: complete, true of this release, and able to fail."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import glm5_kernel
import pytest
from glm5_kernel.compat import names, versions
from glm5_kernel.compat.names import Need

from tests.vllm.cuda.conftest import REGISTRATION, RELEASE

NEEDS = list(dict.fromkeys((*names.ATTENTION, *names.INDEXER)))
PACKAGE = Path(glm5_kernel.__file__).parent
PARTS = ("compat", "attention", "indexer")


def test_this_release_has_them_all() -> None:
    assert names.missing(NEEDS) == []


def test_it_is_a_release_that_serves() -> None:
    assert versions.KNOWN[RELEASE] == "sparse"
    assert {part.state for part in REGISTRATION.parts} == {"registered"}


@pytest.mark.parametrize("need", NEEDS, ids=str)
def test_a_name_that_is_gone_is_reported(need: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module(need.module)
    owner: object = module
    *path, last = need.name.split(".")
    for part in path:
        owner = getattr(owner, part)
    if not hasattr(type(owner), "__members__"):
        conceal(owner, last, monkeypatch)
        assert names.missing([need]) == [f"{need} is gone"]
    else:  # a member of an Enum cannot be taken away
        renamed = Need(need.module, f"{need.name}_", need.parameters)
        assert names.missing([renamed]) == [f"{renamed} is gone"]


def conceal(owner: object, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take an attribute away, wherever in a class's ancestry it is."""
    for place in owner.__mro__ if isinstance(owner, type) else (owner,):
        if name in vars(place) and place is not object:
            monkeypatch.delattr(place, name)
    if hasattr(owner, name):  # `__init__`, which object has too
        pytest.skip(f"every class has {name}")


@pytest.mark.parametrize("need", [need for need in NEEDS if need.parameters], ids=str)
def test_another_signature_is_reported(need: Need, monkeypatch: pytest.MonkeyPatch) -> None:
    owner: object = importlib.import_module(need.module)
    *path, last = need.name.split(".")
    for part in path:
        owner = getattr(owner, part)

    def another(self: object, something: int) -> None: ...

    monkeypatch.setattr(owner, last, another)
    (problem,) = names.missing([need])
    assert problem == f"{need} takes no {', '.join(sorted(need.parameters))}"


def test_a_module_that_is_gone_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    need = Need("vllm.not_there", "anything")
    (problem,) = names.missing([need])
    assert problem == "vllm.not_there does not import (No module named 'vllm.not_there')"
    monkeypatch.setitem(sys.modules, "vllm.v1.worker.workspace", None)
    assert len(names.missing([Need("vllm.v1.worker.workspace", "current_workspace_manager")])) == 1


def test_what_is_not_callable_takes_no_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("glm5_test_module")
    module.value = 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert names.missing([Need(module.__name__, "value", ("x",))]) == [
        "glm5_test_module.value takes no x"
    ]


def imported(path: Path) -> Iterator[tuple[str, str]]:
    """What a file imports of vLLM: module and name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            yield from ((str(node.module), alias.name) for alias in node.names)


FILES = sorted(path for part in PARTS for path in (PACKAGE / part).glob("*.py"))
IMPORTED = {
    (module, name, path.relative_to(PACKAGE).as_posix())
    for path in (*FILES, PACKAGE / "plugin.py")
    for module, name in imported(path)
}
PUBLIC = {
    # modules as a whole, whose names are listed one by one
    ("vllm", "_custom_ops"),
    ("vllm", "envs"),
    ("vllm.platforms", "current_platform"),
    ("vllm.utils", "deep_gemm"),
    ("vllm.model_executor.layers", "sparse_attn_indexer"),
    ("vllm.v1.attention.backends.mla", "indexer"),
}


def test_imports_are_found() -> None:
    assert len(IMPORTED) >= 15


@pytest.mark.parametrize(("module", "name", "file"), sorted(IMPORTED))
def test_every_import_is_in_the_table(module: str, name: str, file: str) -> None:
    if (module, name) in PUBLIC:
        return
    every = (*NEEDS, *names.SPARSE_MLA, *names.SPARSE_MLA_BEFORE_026)
    listed = {(need.module, need.name.split(".")[0]) for need in every}
    assert (module, name) in listed, f"{file} imports {module}.{name}, which names.py does not list"


def test_only_these_parts_reach_into_vllm() -> None:
    others = {
        path.relative_to(PACKAGE).parts[0] for path in PACKAGE.rglob("*.py") for _ in imported(path)
    }
    assert others <= {*PARTS, "plugin.py", "doctor", "gguf"}


def test_the_loader_of_gguf_has_its_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    # vLLM's modules of quantisation ask the stubbed extension when they are imported.
    for kind in ("fp8", "block_fp8"):
        asked = f"vllm._custom_ops.cutlass_scaled_mm_supports_{kind}"
        monkeypatch.setattr(asked, lambda _capability: False)
    assert names.missing(names.GGUF) == []
