"""What is registered with vLLM, and what is left to vllm-gguf-plugin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import vllm_gguf_plugin
from glm5_kernel.compat import names
from glm5_kernel.gguf.config_parser import CompletingConfigParser
from glm5_kernel.gguf.install import install_loader
from glm5_kernel.gguf.loader import PlannedGGUFLoader
from glm5_kernel.plugin import _gguf
from glm5_kernel.settings import Settings
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader, register_model_loader
from vllm.transformers_utils.config import get_config_parser
from vllm_gguf_plugin.loader import GGUFModelLoader

from tests.vllm.gguf.conftest import REGISTRATION

FORMAT = LoadConfig(load_format="gguf")


def test_ours_is_in_place() -> None:
    assert REGISTRATION.part("gguf").state == "registered"
    assert names.missing(names.GGUF) == []
    assert isinstance(get_model_loader(FORMAT), PlannedGGUFLoader)
    assert isinstance(get_config_parser("gguf"), CompletingConfigParser)


def test_the_plugin_may_register_afterwards() -> None:
    vllm_gguf_plugin.register()
    assert isinstance(get_model_loader(FORMAT), PlannedGGUFLoader)
    assert isinstance(get_config_parser("gguf"), CompletingConfigParser)


def test_switched_off() -> None:
    part = _gguf(Settings(gguf="stock"))
    assert (part.state, part.reason) == ("stock", "GLM5_GGUF=stock")


def test_without_the_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    part = _gguf(Settings())
    assert (part.state, part.reason) == ("stock", "vllm-gguf-plugin is not installed")


def test_a_plugin_that_is_not_as_known(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left as it is, and the log says what is missing."""
    monkeypatch.setattr(names, "missing", lambda _needs: ["vllm_gguf_plugin.x is gone"])
    register_model_loader("gguf")(GGUFModelLoader)
    try:
        install_loader(vllm_gguf_plugin)
        assert type(get_model_loader(FORMAT)) is GGUFModelLoader
    finally:
        register_model_loader("gguf")(PlannedGGUFLoader)
    assert "GGUF is left to vllm-gguf-plugin: vllm_gguf_plugin.x is gone" in caplog.text


def test_other_models_are_the_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(GGUFModelLoader, "load_model", lambda _self, *args: seen.append(args))
    llama = SimpleNamespace(hf_config=SimpleNamespace(model_type="llama"))
    get_model_loader(FORMAT).load_model("config", llama)
    assert seen == [("config", llama, "")]
