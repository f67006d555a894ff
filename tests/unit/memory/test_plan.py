"""Memory plans from cases in a file, and what a plan must obey whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from glm5_deploy.config.models import Serve
from glm5_deploy.memory import constants as known
from glm5_deploy.memory.plan import GpuMemory, MemoryPlan, ModelShape, plan, workspace
from glm5_deploy.memory.settings import Settings, UnplannedError, read_settings
from hypothesis import example, given
from hypothesis import strategies as st

GIB = 1 << 30
CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("plans.yml").read_text())
MODEL = ModelShape(
    tp=1, weights=40 * GIB, kv={"bf16": 100_000, "fp8": 60_000},
    possible={1: 40 * GIB, 2: 20 * GIB, 4: 10 * GIB, 8: 5 * GIB},
    hidden=6144, heads=64, head_values=448, vocab=154_880, intermediate=12_288,
    moe_intermediate=2048, experts_used=8, context=200_000, indexer_row=132, topk=2048,
)  # fmt: skip


def gpus_of(case: dict[str, Any]) -> list[GpuMemory]:
    return [
        GpuMemory(index, int(gpu["gib"] * GIB), int(gpu.get("used", 0) * GIB))
        for index, gpu in enumerate(case["gpus"])
    ]


def planned(case: dict[str, Any]) -> MemoryPlan:
    gpus = gpus_of(case)
    smallest = min(gpu.total for gpu in gpus)
    settings = read_settings(
        case["args"], case.get("environment", {}), context=MODEL.context, gpu_bytes=smallest
    )
    return plan(MODEL.on(settings.tp), settings, gpus, case.get("there"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_a_plan(case: dict[str, Any]) -> None:
    made = planned(case)
    assert made.fits == case["fits"], made.problems
    said = " ".join(text for text, _ in made.problems)
    advised = " ".join(remedy for _, remedy in made.problems)
    for text in case.get("says", []):
        assert text in said
    for text in case.get("advises", []):
        assert text in advised
    if "sequences" in case:
        assert made.sequences == pytest.approx(case["sequences"], abs=0.02)
    if "longest" in case:
        assert made.longest == case["longest"] // known.BLOCK * known.BLOCK


SETTINGS = st.builds(
    Settings,
    tp=st.sampled_from([1, 2, 4, 8]),
    context=st.integers(64, 300_000),
    sequences=st.integers(1, 1024),
    batched_tokens=st.sampled_from([2048, 8192, 16384]),
    utilization=st.floats(0.1, 0.95),
    kv_dtype=st.sampled_from(["bf16", "fp8"]),
    eager=st.booleans(),
)


@given(SETTINGS, st.floats(1, 200))
@example(Settings(tp=8, context=64, sequences=1, batched_tokens=2048, utilization=0.875), 8.0)
def test_the_parts_are_the_whole_and_the_longest_context_fits(
    settings: Settings, gib: float
) -> None:
    model, gpus = MODEL.on(settings.tp), [GpuMemory(0, int(gib * GIB))]
    made = plan(model, settings, gpus)
    parts = made.weights + made.workspace + made.graphs + made.other + made.kv
    assert parts == made.limit
    assert made.limit <= gpus[0].total
    if made.longest:
        longest = plan(model, replace(settings, context=made.longest), gpus)
        assert longest.kv_tokens >= made.longest
        # What stands beside vLLM's share may need room of its own.
        assert all("gpu-memory-utilization" in remedy for _, remedy in longest.problems)
    beyond = made.longest + 2 * known.BLOCK
    if beyond <= model.context:
        assert not plan(model, replace(settings, context=beyond), gpus).fits


@given(SETTINGS, st.floats(1, 200))
@example(Settings(tp=1, context=64, sequences=1, batched_tokens=2048, utilization=0.9375), 8.0)
@example(Settings(tp=8, context=300_000, sequences=1, batched_tokens=2048, utilization=0.95), 30.0)
@example(Settings(tp=8, context=200_000, sequences=1, batched_tokens=2048, utilization=0.95), 25.0)
def test_advice_is_true(settings: Settings, gib: float) -> None:
    """Whatever single change is advised makes it fit when it is made."""
    gpus = [GpuMemory(index, int(gib * GIB)) for index in range(8)]
    made = plan(MODEL.on(settings.tp), settings, gpus)
    for _, remedy in made.problems:
        for text in remedy.partition(": ")[2].split("; "):
            change, _, share = text.partition(" with gpu-memory-utilization: ")
            key, _, value = change.partition(": ")
            if key == "max-model-len":
                other = replace(settings, context=int(value))
            elif key == "kv-cache-dtype":
                other = replace(settings, kv_dtype="fp8")
            elif key == "gpu-memory-utilization":
                other = replace(settings, utilization=float(value))
            elif key == "tensor-parallel-size and gpus.count":
                other = replace(settings, tp=int(value))
            else:
                continue
            other = replace(other, utilization=float(share)) if share else other
            assert plan(MODEL.on(other.tp), other, gpus).fits, text


@pytest.mark.parametrize(
    ("gib", "tp", "share", "context", "advised"),
    [
        (12, 1, 0.93, 64, ["tensor-parallel-size and gpus.count: 8 with SHARE: 0.83"]),
        (24, 4, 0.95, 200_000, ["0.91, or less", "max-model-len: 99136 with SHARE: 0.91"]),
    ],
)
def test_a_change_is_advised_with_a_share_that_nccl_leaves_room_for(
    gib: int, tp: int, share: float, context: int, advised: list[str]
) -> None:
    settings = Settings(tp, context, sequences=1, batched_tokens=2048, utilization=share)
    gpus = [GpuMemory(index, gib * GIB) for index in range(8)]
    problems = plan(MODEL.on(tp), settings, gpus).problems
    changes = [remedy.partition(": ")[2] for _, remedy in problems]
    assert changes == [text.replace("SHARE", "gpu-memory-utilization") for text in advised]


def test_workspace_grows_with_what_causes_it() -> None:
    base = Settings(1, 32_768, 64, 8192)
    for other in (
        replace(base, context=65_536),
        replace(base, batched_tokens=65_536),
        replace(base, sequences=8192),
    ):
        assert workspace(MODEL, other) > workspace(MODEL, base)
    # 40 rows of 132 bytes for each token of context: what vLLM's own comment computes.
    longer = replace(base, context=base.context + 163_840)
    assert workspace(MODEL, longer) - workspace(MODEL, base) >= 865_075_200


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ({}, "context", 1000),
        ({}, "utilization", 0.92),
        ({}, "batched_tokens", 8192),
        ({"max_model_len": "128k"}, "context", 128_000),
        ({"max-model-len": "128K"}, "context", 131_072),
        ({"max-model-len": -1}, "auto", True),
        ({"max-num-batched-tokens": 64}, "sequences", 64),
        ({"kv-cache-dtype": "fp8_ds_mla"}, "kv_dtype", "fp8"),
        ({"kv-cache-dtype": "bfloat16"}, "kv_dtype", "bf16"),
        ({"enforce-eager": True}, "eager", True),
        ({"speculative-config": {"method": "mtp"}}, "mtp", True),
        ({"speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'}, "mtp", True),
        ({"speculative-config": {"method": "ngram"}}, "mtp", False),
        ({"speculative-config.method": "mtp", "speculative-config.num": 1}, "mtp", True),
        ({"speculative_config.method": "ngram"}, "mtp", False),
        ({"hf-overrides": {"rope_scaling": {}}}, "stretched", True),
        ({"hf-overrides.rope_scaling.factor": 2}, "stretched", True),
        ({"hf_overrides.rope_scaling": '{"factor": 2}'}, "stretched", True),
        ({"tensor-parallel-size": None}, "tp", 1),
    ],
)
def test_arguments(arguments: dict[str, Any], field: str, value: object) -> None:
    options = Serve(args=arguments).options
    found = read_settings(options, {}, context=1000, gpu_bytes=96 * GIB)
    assert getattr(found, field) == value


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", "stretched", True),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", " True", "stretched", True),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "False", "stretched", False),
        ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "no", "stretched", False),
        ("VLLM_BATCH_INVARIANT", "1", "invariant", True),
        ("VLLM_BATCH_INVARIANT", "0", "invariant", False),
        ("VLLM_BATCH_INVARIANT", "", "invariant", False),
    ],
)
def test_variables_as_vllm_reads_them(variable: str, text: str, field: str, value: bool) -> None:
    found = read_settings({}, {variable: text}, context=1000, gpu_bytes=96 * GIB)
    assert getattr(found, field) is value


@pytest.mark.parametrize(("tp", "batched", "mib"), [(1, 8192, 514), (8, 8192, 64), (8, 512, 32)])
def test_results_that_do_not_depend_on_the_batch_take_scratch(
    tp: int, batched: int, mib: int
) -> None:
    settings = Settings(tp=tp, context=8192, sequences=32, batched_tokens=batched)
    gpus = [GpuMemory(0, 96 * GIB)]
    plain, invariant = (
        plan(MODEL.on(tp), replace(settings, invariant=each), gpus) for each in (False, True)
    )
    assert (invariant.weights - plain.weights) >> 20 == mib
    dense = replace(MODEL.on(tp), topk=0)
    assert len({plan(dense, each.settings, gpus).weights for each in (plain, invariant)}) == 1


def test_defaults_depend_on_the_gpu() -> None:
    small = read_settings({}, {}, context=1000, gpu_bytes=48 * GIB)
    assert (small.batched_tokens, small.sequences) == (2048, 256)


@pytest.mark.parametrize(
    "arguments",
    [{"pipeline-parallel-size": 2}, {"cpu-offload-gb": 4}, {"max-model-len": "long"},
     {"max-num-seqs": True}, {"max-model-len": 0}, {"block-size": 0}, {"max-num-seqs": -4},
     {"data-parallel-size": 2}, {"speculative-config": {"model": "/srv/draft"}},
     {"speculative-config": "mtp"}, {"speculative-config.model": "/srv/draft"}],
)  # fmt: skip
def test_what_is_not_planned_for_is_said(arguments: dict[str, Any]) -> None:
    with pytest.raises(UnplannedError, match=next(iter(arguments)).partition(".")[0]):
        read_settings(Serve(args=arguments).options, {}, context=1000, gpu_bytes=GIB)
