"""`register()`: what vLLM calls in every process that it starts.

Nothing heavy is imported here. The parts wait until vLLM imports the module that they concern, so
a process that serves another kind of model pays for a look at the version and a few hooks.
"""

from __future__ import annotations

import importlib.util
import logging
import threading
from types import ModuleType

from glm5_kernel.compat.hooks import when_imported
from glm5_kernel.compat.refusal import refuse_models
from glm5_kernel.compat.versions import Found, find_vllm, refusal
from glm5_kernel.registration import Name, Part, Registration, State
from glm5_kernel.settings import Settings, read_settings

logger = logging.getLogger("vllm.glm5_kernel")

_lock = threading.Lock()
_done: Registration | None = None


def register() -> Registration:
    """Register what this vLLM can use; a second call changes nothing."""
    global _done
    with _lock:
        if _done is None:
            _done = _register(find_vllm(), read_settings())
            _log(_done)
        return _done


def _register(found: Found | None, settings: Settings) -> Registration:
    if found is None:
        return _nothing(None, "there is no vLLM")
    if found.support is None:
        return _nothing(found.version, refusal(found))
    if found.support == "load-only":
        return _load_only(found.version, settings)
    refuse_models(settings.problems)
    parts = (_attention(settings), _indexer(settings), _gguf(settings))
    done = ", ".join(f"{part.name} {part.state}" for part in parts)
    return Registration(found.version, f"vLLM {found.version}: {done}", parts)


def _load_only(version: str, settings: Settings) -> Registration:
    from glm5_kernel.gguf.cpu.install import PLATFORM, install_dense

    message = f"vLLM {version} has no sparse attention: attention and indexer stay out"
    refuse_models({part: why for part, why in settings.problems.items() if part == "gguf"})
    when_imported(PLATFORM, install_dense)
    gguf = _gguf(settings)
    left_out: tuple[Name, ...] = ("attention", "indexer")
    parts = tuple(_meaningless(name, settings) or Part(name, "stock", message) for name in left_out)
    return Registration(version, f"{message}; gguf {gguf.state}", (*parts, gguf))


def _nothing(version: str | None, message: str) -> Registration:
    state: State = "refused"
    names: tuple[Name, ...] = ("attention", "indexer", "gguf")
    return Registration(version, message, tuple(Part(name, state, message) for name in names))


def _log(registration: Registration) -> None:
    refused = all(part.state == "refused" for part in registration.parts)
    logger.log(logging.ERROR if refused else logging.DEBUG, "glm5_kernel: %s", registration.message)


def _meaningless(name: Name, settings: Settings) -> Part | None:
    """The part where its variable means nothing: vLLM goes on as if it were not there."""
    problem = settings.problems.get(name)
    return None if problem is None else Part(name, "refused", problem)


def _attention(settings: Settings) -> Part:
    if part := _meaningless("attention", settings):
        return part
    when_imported("vllm.v1.attention.backends.registry", _register_backend)
    if settings.attention == "stock":
        reason = "GLM5_ATTENTION=stock: only --attention-backend CUSTOM chooses it"
        return Part("attention", "registered", reason)

    def select(module: ModuleType) -> None:
        _select_automatically(module, settings)

    when_imported("vllm.v1.attention.selector", select)
    reason = "chosen on capability 12.x, where no stock backend is valid, and by CUSTOM"
    return Part("attention", "registered", reason)


def _register_backend(registry: ModuleType) -> None:
    from glm5_kernel.attention import CLASS_PATH

    registry.register_backend(registry.AttentionBackendEnum.CUSTOM, CLASS_PATH)


def _select_automatically(_selector: ModuleType, settings: Settings) -> None:
    from vllm.platforms import current_platform

    from glm5_kernel.attention.selection import install

    if current_platform.is_cuda():
        install(type(current_platform), settings)


def _indexer(settings: Settings) -> Part:
    if part := _meaningless("indexer", settings):
        return part
    if settings.indexer == "stock":
        return Part("indexer", "off", "GLM5_INDEXER=stock")
    from glm5_kernel.indexer.install import replace_layer, split_graphs

    when_imported("vllm.config.compilation", split_graphs)
    when_imported("vllm.model_executor.layers.sparse_attn_indexer", replace_layer)
    if settings.indexer == "triton":
        return Part("indexer", "registered", "GLM5_INDEXER=triton")
    reason = "chosen on capability 12.x and where DeepGEMM fails its self-test"
    return Part("indexer", "registered", reason)


def _gguf(settings: Settings) -> Part:
    from glm5_kernel.gguf.cpu.install import install_operations, needs_operations
    from glm5_kernel.gguf.install import PLUGIN, TRIGGER, install_loader

    if settings.gguf == "stock":
        return Part("gguf", "stock", "GLM5_GGUF=stock")
    if importlib.util.find_spec(PLUGIN) is None:
        absent = Part("gguf", "stock", "vllm-gguf-plugin is not installed")
        return _meaningless("gguf", settings) or absent
    when_imported(TRIGGER, install_loader)
    if needs_operations():
        install_operations()
    # Other models in GGUF may need what has been put in place; those of ours are refused.
    return _meaningless("gguf", settings) or Part(
        "gguf", "registered", "loads GLM-5 and DeepSeek-V3; other models are the plugin's"
    )
