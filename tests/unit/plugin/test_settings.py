"""The three variables, and what becomes of a value that means nothing."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from glm5_kernel import plugin
from glm5_kernel.compat import refusal
from glm5_kernel.compat.versions import Found
from glm5_kernel.registration import Name
from glm5_kernel.settings import SettingError, Settings, read_settings


def test_without_any() -> None:
    assert read_settings({}) == Settings("auto", "auto", "auto")


@pytest.mark.parametrize(
    ("name", "field", "allowed"),
    [
        ("GLM5_ATTENTION", "attention", ("auto", "stock")),
        ("GLM5_INDEXER", "indexer", ("auto", "stock", "triton")),
        ("GLM5_GGUF", "gguf", ("auto", "stock")),
    ],
)
def test_each(name: str, field: str, allowed: tuple[str, ...]) -> None:
    for value in allowed:
        for written in (value, value.upper(), f" {value} "):
            assert getattr(read_settings({name: written}), field) == value
    assert getattr(read_settings({name: ""}), field) == "auto"
    found = read_settings({name: "nonsense"})
    assert found.problems == {field: f"{name}=nonsense: must be one of {', '.join(allowed)}"}
    assert replace(found, problems={}) == Settings()


def test_triton_is_no_choice_of_the_attention() -> None:
    found = read_settings({"GLM5_ATTENTION": "triton", "GLM5_INDEXER": "triton"})
    assert "GLM5_ATTENTION=triton" in found.problems["attention"]
    assert found.indexer == "triton"


def test_a_message_is_one_line() -> None:
    found = read_settings({"GLM5_GGUF": f"a\nb\x1b{'x' * 999}"})
    assert len(found.problems["gguf"].splitlines()) == 1
    assert len(found.problems["gguf"]) < 150


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("GLM5_INDEX", "indexer"),
        ("GLM5_INDEXERS", "indexer"),
        ("GLM5_ATENTION", "attention"),
        ("GLM5_GGUFF", "gguf"),
    ],
)
def test_a_misspelt_name_is_told(name: str, meant: Name) -> None:
    found = read_settings({name: "triton"})
    assert found.problems == {meant: f"{name} is no variable: GLM5_{meant.upper()} is"}


def test_other_names_are_anybodys() -> None:
    assert read_settings({"GLM5_MODEL": "x", "GLM5_TORCH_INDEX": "y", "GLM5": "z"}) == Settings()


class Platform:
    seen: ClassVar[list[object]] = []

    @classmethod
    def check_and_update_config(cls, vllm_config: object) -> None:
        cls.seen.append(vllm_config)


def config(load_format: str = "auto", **hf: object) -> Any:  # noqa: ANN401
    model = SimpleNamespace(**({"model_type": "llama"} | hf))
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=model, hf_text_config=model),
        load_config=SimpleNamespace(load_format=load_format),
    )


DENSE = config()
SPARSE = config(model_type="deepseek_v32", index_topk=2048)
GGUF = config("gguf", model_type="deepseek_v3")
GLM = config("gguf", model_type="glm_moe_dsa", index_topk=2048)
NO_MODEL = SimpleNamespace(model_config=None)


@pytest.mark.parametrize(
    ("part", "refused"),
    [("attention", [SPARSE, GLM]), ("indexer", [SPARSE, GLM]), ("gguf", [GGUF, GLM])],
)
def test_only_a_model_that_needs_the_part_is_refused(
    part: Name,
    refused: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    owner = type("Owner", (Platform,), {"seen": []})
    platform = ModuleType("a_platform")
    platform.Owner = owner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "a_platform", platform)
    monkeypatch.setitem(sys.modules, "glm5_kernel.gguf.prepare", PREPARE)
    monkeypatch.setattr(refusal, "PLATFORMS", {"a_platform": "Owner"})
    monkeypatch.setattr(refusal.names, "missing", lambda _needs: [])
    variable = f"GLM5_{part.upper()}"
    refusal.refuse_models(read_settings({variable: "nonsense"}).problems)
    assert f"{variable}=nonsense: must be one of auto, stock" in caplog.text
    for each in (DENSE, SPARSE, GGUF, GLM, NO_MODEL):
        if each in refused:
            with pytest.raises(SettingError, match=f"^{variable}=nonsense: must be one of"):
                owner.check_and_update_config(each)
        else:
            owner.check_and_update_config(each)
    assert owner.seen == [
        each for each in (DENSE, SPARSE, GGUF, GLM, NO_MODEL) if each not in refused
    ]


PREPARE = ModuleType("glm5_kernel.gguf.prepare")
PREPARE.MODEL_TYPES = ("glm_moe_dsa", "deepseek_v3")  # type: ignore[attr-defined]
"""The real one needs transformers."""


def test_nothing_is_put_in_place_without_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal, "when_imported", lambda *_: pytest.fail("hooked"))
    refusal.refuse_models({})


def test_the_part_is_left_out_and_the_others_are_not() -> None:
    settings = Settings(problems={"indexer": "GLM5_INDEXER=x: must be one of auto"})
    done = plugin._register(Found("0.26.0", "0.26.0"), settings)
    assert {part.name: part.state for part in done.parts} == {
        "attention": "registered",
        "indexer": "refused",
        "gguf": "stock",
    }


@pytest.mark.parametrize("part", ["attention", "indexer", "gguf"])
def test_a_part_that_stays_out_anyway_says_it_too(
    part: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor tells from it, where no model would be refused: on a CPU, without GGUF."""
    monkeypatch.setattr(plugin, "when_imported", lambda *_: None)
    monkeypatch.setattr(plugin, "refuse_models", lambda _problems: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    problem = f"GLM5_{part.upper()}=x: must be one of auto, stock"
    found = Found("0.32.0+cpu", "0.32.0", cpu=True)
    done = plugin._register(found, Settings(problems={part: problem}))
    assert {each.name: each.state for each in done.parts} == {
        name: "refused" if name == part else "stock" for name in ("attention", "indexer", "gguf")
    }
    assert done.part(part).reason == problem


def test_what_other_models_in_gguf_need_is_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU the GGUF plugin itself needs our operations, whatever the model."""
    hooked: list[str] = []
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: object())
    monkeypatch.setattr(plugin, "when_imported", lambda name, _: hooked.append(name))
    part = plugin._gguf(Settings(problems={"gguf": "GLM5_GGUF=x: must be one of auto, stock"}))
    assert (part.state, hooked) == ("refused", ["vllm_gguf_plugin.plugin"])
