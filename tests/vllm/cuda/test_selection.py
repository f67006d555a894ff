"""Which attention backend serves: ours on 12.x and where no stock one can, never against a choice.

The answers of stock vLLM are its own, given for a GPU that is faked.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from glm5_kernel import report
from glm5_kernel.attention import CLASS_PATH, selection
from glm5_kernel.attention.selection import install
from glm5_kernel.settings import Settings
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.v1.attention.backends.registry import _ATTN_OVERRIDES, AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig

from tests.vllm.cuda.conftest import RELEASE
from tests.vllm.cuda.gpu import FakeGpu, Gpu

OURS, ERROR = "ours", "error"
MLA, SM100 = "FLASHMLA_SPARSE", "FLASHINFER_MLA_SPARSE"
HAS_FA = "FLASH_ATTN_MLA_SPARSE" in AttentionBackendEnum.__members__  # from 0.25 on
FA, FA_ONLY = ("FLASH_ATTN_MLA_SPARSE",) * 2 if HAS_FA else (MLA, ERROR)
CHOSEN = {
    (8, 0): {"auto": OURS, "bfloat16": OURS, "fp8_ds_mla": OURS, "float16": ERROR, "fp8": ERROR},
    (8, 9): {"auto": OURS, "bfloat16": OURS, "fp8_ds_mla": OURS, "float16": ERROR, "fp8": ERROR},
    (9, 0): {
        "auto": FA,
        "bfloat16": FA,
        "fp8_ds_mla": MLA,
        "float16": FA_ONLY,
        "fp8": MLA,
    },
    (12, 0): {"auto": OURS, "bfloat16": OURS, "fp8_ds_mla": OURS, "float16": ERROR, "fp8": ERROR},
    (12, 1): {"auto": OURS, "bfloat16": OURS, "fp8_ds_mla": OURS, "float16": ERROR, "fp8": ERROR},
}


def sparse(kv: str = "auto", dtype: torch.dtype = torch.bfloat16, **more: Any) -> Any:  # noqa: ANN401
    wanted = {"head_size": 576, "use_mla": True, "use_sparse": True, "block_size": None}
    return AttentionSelectorConfig(dtype=dtype, kv_cache_dtype=kv, **(wanted | more))


def ask(config: Any, selected: Any = None, platform: type[Gpu] = FakeGpu) -> str:  # noqa: ANN401
    return platform.get_attn_backend_cls(selected, attn_selector_config=config, num_heads=8)


def name_of(path: str) -> str:
    if path == CLASS_PATH:
        return OURS
    return next(member.name for member in AttentionBackendEnum if member.value == path)


@pytest.mark.parametrize("kv", ["auto", "bfloat16", "fp8_ds_mla", "float16", "fp8"])
@pytest.mark.parametrize("capability", CHOSEN)
def test_chosen_without_a_choice(capability: tuple[int, int], kv: str) -> None:
    FakeGpu.choose(*capability)
    wanted = CHOSEN[capability][kv]
    if wanted == ERROR:
        with pytest.raises(ValueError, match=r"TRITON_MLA_SPARSE: .*use --kv-cache-dtype"):
            ask(sparse(kv))
    else:
        assert name_of(ask(sparse(kv))) == wanted


def test_a_block_size_that_does_not_fit_is_told_with_the_one_that_does() -> None:
    FakeGpu.choose(12, 0)
    with pytest.raises(ValueError, match=r"TRITON_MLA_SPARSE: .*16 tokens: use --block-size 64"):
        ask(sparse(block_size=16))
    assert name_of(ask(sparse(block_size=64))) == OURS


@pytest.mark.parametrize("kv", ["auto", "bfloat16", "fp8_ds_mla"])
def test_sm100_is_left_to_stock(kv: str, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty  # a stock module takes GPU memory when it is imported
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **{**k, "device": "cpu"}))
    FakeGpu.choose(10, 0)
    with set_current_vllm_config(VllmConfig()):
        assert name_of(ask(sparse(kv))) in {MLA, SM100}


def test_float16_models_and_their_caches() -> None:
    FakeGpu.choose(12, 0)
    for kv in ("auto", "float16", "fp8_ds_mla"):
        assert name_of(ask(sparse(kv, torch.float16))) == OURS
    with pytest.raises(ValueError, match=r"a bfloat16 KV cache under a torch\.float16 model"):
        ask(sparse("bfloat16", torch.float16))


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_custom_is_ours_anywhere(capability: tuple[int, int]) -> None:
    FakeGpu.choose(*capability)
    assert ask(sparse(), AttentionBackendEnum.CUSTOM) == CLASS_PATH


@pytest.mark.parametrize("settings", [Settings(), Settings(attention="stock")])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("selected", sorted({FA, MLA, "TRITON_MLA", "FLASHINFER_MLA_SPARSE_SM120"}))
def test_a_choice_is_answered_by_stock(
    selected: str, capability: tuple[int, int], settings: Settings
) -> None:
    platform = fresh(settings, capability)
    chosen = AttentionBackendEnum[selected]
    assert outcome(platform, chosen) == outcome(untouched(capability), chosen)


def test_the_setting_leaves_everything_to_stock() -> None:
    for capability in CHOSEN:
        platform = fresh(Settings(attention="stock"), capability)
        assert outcome(platform) == outcome(untouched(capability))
    platform = fresh(Settings(attention="stock"), (12, 0))
    assert ask(sparse(), AttentionBackendEnum.CUSTOM, platform) == CLASS_PATH


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
@pytest.mark.parametrize("more", [{"use_mla": False, "head_size": 128}, {}])
def test_other_models_are_never_touched(
    more: dict[str, Any], capability: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "glm5_kernel.attention.selection._question", lambda *_: pytest.fail("looked at it")
    )
    config = sparse(**({"use_sparse": False} | more))
    platform = fresh(Settings(), capability)
    assert outcome(platform, config=config) == outcome(untouched(capability), config=config)


def fresh(settings: Settings, capability: tuple[int, int]) -> type[Gpu]:
    """A platform with the plugin's selection."""
    platform = untouched(capability)
    install(platform, settings)
    return platform


def untouched(capability: tuple[int, int]) -> type[Gpu]:
    platform = type("Untouched", (Gpu,), {})
    platform.choose(*capability)
    return platform


def outcome(platform: type[Gpu], selected: Any = None, config: Any = None) -> str:  # noqa: ANN401
    """The class path, or what the error says."""
    try:
        return ask(config or sparse(), selected, platform)
    except (ValueError, ImportError) as error:
        return repr(error)


def test_installing_twice_changes_nothing() -> None:
    platform = fresh(Settings(), (12, 0))
    once = platform.__dict__["get_attn_backend_cls"]
    install(platform, Settings(attention="stock"))
    assert platform.__dict__["get_attn_backend_cls"] is once


def test_no_stock_slot_is_taken() -> None:
    taken = [
        member.name for member in AttentionBackendEnum if "glm5" in _ATTN_OVERRIDES.get(member, "")
    ]
    assert taken == ["CUSTOM"]
    backend = AttentionBackendEnum.CUSTOM.get_class()
    assert backend.get_name() == "TRITON_MLA_SPARSE"
    assert f"{backend.__module__}.{backend.__qualname__}" == CLASS_PATH


def test_where_nothing_is_valid_our_reason_stands_beside_theirs() -> None:
    FakeGpu.choose(12, 0)
    with pytest.raises(ValueError, match="No valid attention backend") as caught:
        ask(sparse("fp8"))
    assert "TRITON_MLA: [sparse not supported]" in str(caught.value)
    assert "a fp8 KV cache: use --kv-cache-dtype fp8_ds_mla" in str(caught.value)


def test_what_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    report._report.cache_clear()
    FakeGpu.choose(9, 0)
    for _ in range(2):
        ask(sparse("fp8_ds_mla"))
    ask(sparse())
    FakeGpu.choose(12, 0)
    ask(sparse())
    lines = [record.getMessage() for record in caplog.records if "glm5" in record.getMessage()]
    assert lines.count("glm5_kernel: attention=FLASHMLA_SPARSE kv=fp8_ds_mla indexer=stock") == 1
    assert lines.count(f"glm5_kernel: attention={FA} kv=bf16 indexer=stock") == 1
    ours = "Using TRITON_MLA_SPARSE attention backend (glm5-kernel) on capability 12.x"
    assert lines.count(ours) == 1


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"decode_context_parallel_size": 2}, "decode context parallelism is not supported"),
        ({"kv_lora_rank": 500}, "kv_lora_rank 500 is none of"),
        ({"qk_rope_head_dim": 30}, "qk_rope_head_dim 30 is none of"),
        ({"num_attention_heads": 256}, "256 heads a rank are more than 128"),
        ({"index_topk": None}, "the model has no index_topk"),
    ],
)
def test_models_that_ours_does_not_serve(
    wrong: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glm5_kernel.compat import api

    values = {
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64, "index_topk": 2048,
        "decode_context_parallel_size": 1,
    } | wrong  # fmt: skip
    model = SimpleNamespace(**{name: value for name, value in values.items() if value is not None})
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=values["decode_context_parallel_size"],
            tensor_parallel_size=1,
        ),
        model_config=SimpleNamespace(hf_text_config=model),
    )
    monkeypatch.setattr(api, "get_current_vllm_config_or_none", lambda: config)
    FakeGpu.choose(8, 0)
    with pytest.raises(ValueError, match=f"TRITON_MLA_SPARSE: .*{reason}"):
        ask(sparse())


def test_a_vllm_that_lacks_a_name_keeps_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(selection.names, "missing", lambda _: ["vllm.something is gone"])
    selection._missing.cache_clear()
    try:
        FakeGpu.choose(9, 0)
        assert name_of(ask(sparse())) == FA
        FakeGpu.choose(12, 0)
        with pytest.raises(ValueError, match=r"TRITON_MLA_SPARSE: \[vllm.something is gone\]"):
            ask(sparse())
        question = selection._question(FakeGpu, sparse())
        assert selection._automatic(question, lambda: "vllm.Stock") == "vllm.Stock"
    finally:
        monkeypatch.undo()
        selection._missing.cache_clear()
    assert "attention is left to stock vLLM: vllm.something is gone" in caplog.text


def test_the_release_under_test() -> None:
    from importlib.metadata import version

    assert version("vllm") == RELEASE
