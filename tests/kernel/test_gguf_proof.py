"""The script that proves GLM-5 from GGUF on a GPU: its table, its verdicts."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.gguf_serve import cases, models, run


def test_every_file_is_served_and_can_be() -> None:
    assert {case.model for case in cases.ALL.values()} == set(cases.MODELS)
    for model in cases.MODELS.values():
        spec = models.spec_of(model)
        assert spec.hp.indexer is not None
        beyond = [n for n in cases.LENGTHS if n > spec.hp.indexer.topk]
        assert beyond, model.name
        assert max(cases.LENGTHS) + cases.DECODED <= min(cases.CONTEXT, spec.hp.context)


def test_the_table_has_what_the_adapter_treats_differently() -> None:
    forms = [models.spec_of(model) for model in cases.MODELS.values()]
    shared = {(each.shared, each.types) for each in forms if each.variant == "glm5.2"}
    assert shared == {("omit", True), ("omit", False), ("repeat", True), ("repeat", False)}
    assert {each.kv_b for each in forms} == {"split", "flat", "whole"}
    assert {each.hp.indexer.topk for each in forms if each.hp.indexer} == {512, 2048}
    assert {each.hp.mtp_layers for each in forms if each.variant == "glm5.2"} == {0, 1}


def test_drafts_are_made_where_the_file_has_an_mtp_block() -> None:
    for case in cases.ALL.values():
        block = models.spec_of(cases.MODELS[case.model]).hp.mtp_layers
        assert bool(case.drafts) == bool(block), case.name


def test_arguments_follow_the_case() -> None:
    given = cases.arguments(cases.ALL["5.2-mtp-tp2"], "FILE", 8100)
    assert given[:3] == ["FILE", "--load-format", "gguf"]
    draft = json.loads(given[given.index("--speculative-config") + 1])
    assert draft == {"method": "mtp", "num_speculative_tokens": 1, "attention_backend": "CUSTOM"}
    assert given[given.index("--tensor-parallel-size") + 1] == "2"
    assert "--disable-custom-all-reduce" in given
    assert "--disable-custom-all-reduce" not in cases.arguments(
        cases.ALL["q8_0-tp2-all-reduce"], "FILE", 8100
    )


def known(offset: float) -> dict[str, Any]:
    """A reference, and its bf16 that is off by so much."""
    answers = {
        str(n): {"prompt": [-1.0] * (n - 1), "tokens": [7, 8], "logp": [-0.5, -0.5]}
        for n in cases.LENGTHS
    }
    moved = {
        name: [value + offset for value in [*found["prompt"], *found["logp"]]]
        for name, found in answers.items()
    }
    return {"answers": answers, "bf16": moved, "dense": moved}


def answer(offset: float) -> dict[str, Any]:
    return {
        "prompt": {str(n): [-1.0 - offset] * (n - 1) for n in cases.LENGTHS},
        "follow": {
            str(n): {"own": [7, 8], "logp": [-0.5 - offset] * 2, "decoded": [False, True]}
            for n in cases.LENGTHS
        },
    }


@pytest.mark.parametrize(("name", "limit"), [("q8_0", 4), ("bf16-k512", 2), ("q8_0-fp8", 6)])
def test_a_case_is_judged_by_what_bf16_costs(name: str, limit: float) -> None:
    case = cases.ALL[name]
    for times, right in ((limit - 0.1, True), (limit + 0.1, False)):
        found = run.compared(case, answer(0.01 * times), known(0.01))
        assert [row["within"] for row in found["rows"]] == [right, right]
        assert [row["of_bf16"] for row in found["rows"]] == pytest.approx([times] * 2)


def test_results_of_another_run_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    path.write_text('{"cases": {"q8_0": {"bound": 4}}, "failed": {"ud": "x"}}')
    found = run.document([], path)
    assert found["cases"] == {"q8_0": {"bound": 4}}
    assert "failed" not in found
    assert run.document([], None)["cases"] == {}


OURS = "glm5_kernel: attention=TRITON_MLA_SPARSE kv=bf16 indexer=triton\n"
STOCK_DRAFT = "Using FLASHMLA_SPARSE attention backend out of potential backends: ['X']\n"


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (OURS, None),
        (f"{OURS}Using AttentionBackendEnum.CUSTOM backend.\n{OURS}", None),
        (f"{OURS}{STOCK_DRAFT}", "FLASHMLA_SPARSE serves, too"),
        (STOCK_DRAFT, r"served by \['FLASHMLA_SPARSE'\]"),
    ],
)
def test_a_draft_that_stock_attention_serves_fails(
    said: str, wrong: str | None, tmp_path: Path
) -> None:
    case = cases.ALL["q8_0-mtp"]
    log = tmp_path / "log"
    log.write_text(f"glm5_kernel: loading shard 1 of 2\n{said}")
    with log.open("rb") as file:
        server = run.servers.Server(case.name, "", None, log, file, 0.0)  # type: ignore[arg-type]
        with pytest.raises(run.servers.ServerError, match=wrong) if wrong else nullcontext():
            run.checked(case, server)
