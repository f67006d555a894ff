"""The three variables."""

from __future__ import annotations

import pytest
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
    with pytest.raises(SettingError, match=f"^{name}=nonsense: must be one of auto, stock"):
        read_settings({name: "nonsense"})


def test_triton_is_no_choice_of_the_attention() -> None:
    with pytest.raises(SettingError, match="GLM5_ATTENTION=triton"):
        read_settings({"GLM5_ATTENTION": "triton"})
