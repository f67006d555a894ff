"""Files of every form, loaded into vLLM's own model, against what transformers would hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vllm.gguf.files import expected, make_files, same
from tests.vllm.gguf.ranks import load_ranks, parts_of, put_together

QUANTS = ("f32", "f16", "bf16", "q4_0", "q5_0", "q8_0", "q4_k", "q6_k", "iq4_nl", "iq4_xs", "ud",
          "mixed", "mxfp4")  # fmt: skip
FORMS: dict[str, dict[str, Any]] = {
    "split": {"split": 5},
    "flat": {"kv_b": "flat"},
    "whole": {"kv_b": "whole", "quant": "q4_k"},
    "5.2 omits": {"variant": "glm5.2"},
    "5.2 repeats": {"variant": "glm5.2", "shared": "repeat"},
    "5.2 omits, no types": {"variant": "glm5.2", "types": False},
    "5.2 repeats, no types": {
        "variant": "glm5.2", "shared": "repeat", "types": False, "changes": {"context": 1 << 20},
    },
    "bare config": {"bare": True},
    "with MTP": {"mtp": True},
}  # fmt: skip


def loaded(folder: Path, tp: int = 1, **choices: Any) -> list[str]:  # noqa: ANN401
    spec, paths = make_files(folder, **choices)
    ranks = [parts_of(model, spec.hp, tp) for model in load_ranks(paths[-1], tp)]
    return same(put_together(ranks), expected(spec, paths))


@pytest.mark.parametrize("quant", QUANTS)
def test_every_type(tmp_path: Path, quant: str) -> None:
    assert loaded(tmp_path, quant=quant) == []


@pytest.mark.parametrize("form", FORMS)
def test_every_form(tmp_path: Path, form: str) -> None:
    assert loaded(tmp_path, **FORMS[form]) == []


SHARED = [(2, "q8_0"), (3, "q8_0"), (8, "q8_0"), (16, "q8_0"), (2, "q4_k"), (3, "mixed"),
          (4, "f16"), (5, "iq4_xs"), (4, "ud"), (2, "mxfp4")]  # fmt: skip
"""Ranks, even and odd, up to a node of GPUs and two; types of every size of block."""
MORE = [*((tp, "q8_0") for tp in range(2, 17) if tp not in (2, 3, 8, 16)), (4, "q6_k")]


@pytest.mark.parametrize(
    ("tp", "quant"),
    [*SHARED, *(pytest.param(*more, marks=pytest.mark.slow) for more in MORE)],
)
def test_ranks_make_the_whole(tmp_path: Path, tp: int, quant: str) -> None:
    """A model that `tp` ranks can share, whatever their number."""
    heads = tp if quant in ("q8_0", "f16") else 8 * tp
    changes = {"heads": heads, "moe_intermediate": 256 * tp, "intermediate": 256 * tp,
               "vocab": 64 * tp * (1 + 320 // (64 * tp)), "experts": 2}  # fmt: skip
    assert loaded(tmp_path, tp, quant=quant, layers=2, changes=changes) == []
