"""Functions that run once a module has been imported, without importing it."""

from __future__ import annotations

import importlib
import importlib.resources
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from glm5_kernel.compat.hooks import when_imported

PACKAGE = "glm5_hook_test"


@pytest.fixture(autouse=True)
def _a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").write_text("value = 1\n")
    (folder / "part.py").write_text(f"from {PACKAGE} import value\nname = 'part'\n")
    (folder / "broken.py").write_text("raise ImportError('cannot be imported')\n")
    (folder / "other.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def hooked(name: str) -> list[ModuleType]:
    seen: list[ModuleType] = []
    when_imported(f"{PACKAGE}.{name}" if name else PACKAGE, seen.append)
    return seen


def load(name: str) -> ModuleType:
    return importlib.import_module(f"{PACKAGE}.{name}" if name else PACKAGE)


def test_nothing_is_imported() -> None:
    assert hooked("part") == []
    assert f"{PACKAGE}.part" not in sys.modules
    assert PACKAGE not in sys.modules


def test_a_module_that_is_there_already() -> None:
    module = load("part")
    before = list(sys.meta_path)
    assert hooked("part") == [module]
    assert sys.meta_path == before


@pytest.mark.parametrize("name", ["", "part"])
def test_a_module_that_comes_later(name: str) -> None:
    seen = hooked(name)
    module = load(name)
    assert seen == [module]
    assert module is sys.modules[module.__name__]
    load(name)
    assert len(seen) == 1


def test_it_runs_when_the_module_is_whole() -> None:
    names: list[str] = []
    when_imported(f"{PACKAGE}.part", lambda module: names.append(module.name))
    load("part")
    assert names == ["part"]


def test_other_modules_do_not_matter() -> None:
    seen = hooked("part")
    load("other")
    assert seen == []
    load("part")
    assert len(seen) == 1


def test_several_hooks_of_one_module_all_run() -> None:
    first, second, other = hooked("part"), hooked("part"), hooked("other")
    module = load("part")
    assert (first, second, other) == ([module], [module], [])


def test_no_trace_is_left() -> None:
    before = list(sys.meta_path)
    plain = type(load("other").__loader__)
    hooked("part")
    assert sys.meta_path != before
    module = load("part")
    assert sys.meta_path == before
    assert type(module.__loader__) is plain
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert importlib.resources.files(PACKAGE).joinpath("part.py").is_file()


def test_a_module_can_be_loaded_again() -> None:
    seen = hooked("part")
    assert importlib.reload(load("part")).name == "part"
    assert len(seen) == 1


def test_an_error_of_the_module_is_its_own() -> None:
    seen = hooked("broken")
    with pytest.raises(ImportError, match="cannot be imported"):
        load("broken")
    assert seen == []
    assert f"{PACKAGE}.broken" not in sys.modules


def test_an_import_that_succeeds_in_the_end(tmp_path: Path) -> None:
    seen = hooked("broken")
    with pytest.raises(ImportError, match="cannot be imported"):
        load("broken")
    (tmp_path / PACKAGE / "broken.py").write_text("repaired = True\n")
    importlib.invalidate_caches()
    module = load("broken")
    assert seen == [module]


def test_a_module_that_does_not_exist() -> None:
    seen = hooked("nowhere")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{PACKAGE}.nowhere'"):
        load("nowhere")
    assert seen == []


def test_an_error_of_the_hook_leaves_through_the_import() -> None:
    def fail(_module: ModuleType) -> None:
        raise RuntimeError("the hook failed")

    when_imported(f"{PACKAGE}.part", fail)
    with pytest.raises(RuntimeError, match="the hook failed"):
        load("part")
    # The next import tries again, without the hook: vLLM as it is.
    assert load("part").name == "part"


def test_a_hook_that_imports_more_hooked_modules() -> None:
    seen = hooked("other")
    when_imported(f"{PACKAGE}.part", lambda _module: load("other").seen.append(1))
    load("part")
    assert [module.seen for module in seen] == [[1]]


def test_asking_whether_it_exists_does_not_spend_the_hook() -> None:
    seen = hooked("part")
    assert importlib.util.find_spec(f"{PACKAGE}.part") is not None
    module = load("part")
    assert seen == [module]


def test_threads_that_import_together() -> None:
    for _ in range(20):
        seen = hooked("part")
        barrier = threading.Barrier(4)

        def together(barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            load("part")

        threads = [threading.Thread(target=together) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 1
        del sys.modules[f"{PACKAGE}.part"]
