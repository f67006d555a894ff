"""Run a function as soon as a module has been imported, without importing it.

vLLM's modules for sparse attention take seconds to import, and most processes (the API server,
every model of another kind) never need them: `register()` must not be what imports them.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Hook = Callable[[ModuleType], None]


def when_imported(name: str, hook: Hook) -> None:
    """Call `hook(module)` once `name` has been imported; at once where it has been already.

    An exception of the hook leaves through the import statement.
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        hook(module)
        return
    sys.meta_path.insert(0, _Finder(name, hook))


class _Finder(MetaPathFinder):
    """Finds one module by the other finders, until it has been loaded once.

    To be asked for it is not enough: `importlib.util.find_spec` asks without loading.
    """

    def __init__(self, name: str, hook: Hook) -> None:
        self._name = name
        self._hook = hook
        self._thread = threading.local()

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or getattr(self._thread, "asking", False):
            return None
        self._thread.asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._thread.asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._hook(module)


class _Loader(Loader):
    """Another loader, with a hook after it."""

    def __init__(self, loader: Loader, hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module for its loader (importlib.resources, inspect) gets the real one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._hook(module)
