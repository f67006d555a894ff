"""The MTP draft, DeepSeek-V3, and what is refused before or while an engine starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from glm5_kernel.gguf import loader
from glm5_kernel.gguf.errors import GgufError
from glm5_kernel.gguf.tiny import recipes

from tests.vllm.gguf.files import (
    V3_TINY,
    draft_expected,
    expected_v3,
    make_files,
    make_v3,
    same,
)
from tests.vllm.gguf.ranks import (
    config_for,
    layer_parts,
    load_draft,
    load_rank,
    load_ranks,
    load_with,
    parts_of,
    put_together,
)


def draft_parts(draft: Any, layer: int, hp: Any) -> dict[str, torch.Tensor]:  # noqa: ANN401
    block = draft.model.layers[str(layer)]
    found = {each.name: value for each, value in layer_parts(block.mtp_block, hp, 1).items()}
    return found | {
        "eh_proj.weight": block.eh_proj.weight.float(),
        "enorm.weight": block.enorm.weight.float(),
        "hnorm.weight": block.hnorm.weight.float(),
        "shared_head.norm.weight": block.shared_head.norm.weight.float(),
    }


@pytest.mark.parametrize("variant", ["glm5", "glm5.2"])
@pytest.mark.parametrize("quant", ["q8_0", "mixed"])
def test_the_draft_of_mtp(tmp_path: Path, variant: str, quant: str) -> None:
    spec, paths = make_files(tmp_path, variant=variant, quant=quant, mtp=True)
    draft = load_draft(paths[0])
    assert draft.config.num_hidden_layers == spec.hp.layers
    assert draft.model.layers[str(spec.hp.layers)].shared_head.head.weight is None
    found = draft_parts(draft, spec.hp.layers, spec.hp)
    assert same(found, draft_expected(spec.hp, paths)) == []


def test_a_table_is_shared_with_the_draft(tmp_path: Path) -> None:
    """vLLM 0.26's proposer asks both tables for a weight, which a quantised one has not."""
    _, paths = make_files(tmp_path, quant="q8_0", mtp=True)
    assert load_rank(paths[0]).model.embed_tokens.weight is None
    assert load_rank(paths[0]).lm_head.weight is None


@pytest.mark.parametrize("claimed", [0, 1])
def test_a_draft_that_the_file_has_no_block_for(tmp_path: Path, claimed: int) -> None:
    """Told where the arguments are read; vLLM itself divides by a config's 0 blocks."""
    _, paths = make_files(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    stated["num_nextn_predict_layers"] = claimed
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match="the file has no MTP block; leave --speculative-config"):
        config_for(paths[0], speculative_config={"method": "mtp", "num_speculative_tokens": 1})


def test_a_draft_is_checked_again_when_it_is_loaded(tmp_path: Path) -> None:
    """Of two models in a folder neither is checked before."""
    _, paths = make_files(tmp_path, quant="q8_0")
    make_files(tmp_path, quant="q4_0")
    stated = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(stated | {"num_nextn_predict_layers": 1}))
    with pytest.raises(GgufError, match="there is no MTP block"):
        load_draft(paths[0])


def test_a_draft_that_cannot_be_cut_is_told_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 values of Q4_K are one block; the model's own four layers are Q8_0."""
    mix = {"": "Q8_0", "ffn_down_shexp": "Q8_0 Q8_0 Q8_0 Q8_0 Q4_K"}
    monkeypatch.setitem(recipes.MIXES, "uncuttable", mix)  # type: ignore[arg-type]
    _, paths = make_files(tmp_path, quant="uncuttable", mtp=True)
    load_rank(paths[0], 0, 2)
    speculative = {"method": "mtp", "num_speculative_tokens": 1}
    config = config_for(paths[0], speculative_config=speculative)
    monkeypatch.setattr(loader, "fill_all", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(GgufError, match=r"blk\.4\.ffn_down_shexp\.weight: a row of 256 Q4_K"):
        load_with(config, 0, 2)


@pytest.mark.parametrize("quant", ["Q8_0", "Q4_K", "BF16"])
@pytest.mark.parametrize("tp", [1, 2])
def test_deepseek_v3(tmp_path: Path, quant: str, tp: int) -> None:
    path = make_v3(tmp_path, quant)
    hp = V3_TINY
    if quant == "Q4_K" and tp == 2:
        # 4 heads of 64 make o_proj 256 wide: one block.
        with pytest.raises(GgufError, match=r"attn_output\.weight: a row of 256 Q4_K values"):
            load_rank(path, 0, tp)
        return
    ranks = [parts_of(model, hp, tp) for model in load_ranks(path, tp)]
    assert same(put_together(ranks), expected_v3(path)) == []


def test_every_contradiction_at_once(tmp_path: Path) -> None:
    """Told where the arguments are read, before an engine starts."""
    _, paths = make_files(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    stated |= {"num_hidden_layers": 5, "index_topk": 77, "rope_parameters": {"rope_theta": 1.0}}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=r"config\.json does not belong to it") as caught:
        config_for(paths[0])
    text = str(caught.value)
    for part in ("num_hidden_layers is 5 in config.json, 4 in the file", "index_topk is 77",
                 "rope_theta is 1.0 in config.json, 1000000.0 in the file"):  # fmt: skip
        assert part in text


def test_another_models_config(tmp_path: Path) -> None:
    _, paths = make_files(tmp_path)
    stated = json.loads((tmp_path / "config.json").read_text())
    stated |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=r"model_type is 'llama' in config\.json.*'glm_moe_dsa'"):
        config_for(paths[0])


def test_no_config(tmp_path: Path) -> None:
    _, paths = make_files(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        ValueError, match=r"no config\.json beside .*put config\.json and the token"
    ):
        config_for(paths[0])


def test_a_missing_shard(tmp_path: Path) -> None:
    _, paths = make_files(tmp_path, split=3)
    paths[1].unlink()
    with pytest.raises(ValueError, match="1 of 3 shards missing"):
        config_for(paths[0])


def test_two_models_in_a_folder(tmp_path: Path) -> None:
    """Neither is taken for the other: the one that is named is checked when it is loaded."""
    _, paths = make_files(tmp_path, quant="q8_0", bare=True)
    make_files(tmp_path, quant="q4_0", bare=True)
    config = config_for(paths[0])
    assert getattr(config.model_config.hf_config, "topk_method", None) is None
    model = load_rank(paths[0])
    assert model.config.topk_method == "noaux_tc"


def test_a_completed_config_before_the_engine(tmp_path: Path) -> None:
    _, paths = make_files(tmp_path, variant="glm5.2", bare=True, split=3, mtp=True)
    config = config_for(
        paths[-1], speculative_config={"method": "mtp", "num_speculative_tokens": 1}
    )
    for each in (config.model_config, config.speculative_config.draft_model_config):
        assert each.hf_config.index_topk_pattern == "FFFSSSF"
        assert each.hf_config.indexer_rope_interleave is True
        assert each.hf_config.rope_parameters["rope_theta"] == 8e6
        assert each.hf_config.topk_method == "noaux_tc"
    assert config.model_config.hf_config.tie_word_embeddings is False


def test_another_file_is_not_given_compiled_graphs(tmp_path: Path) -> None:
    """Types are constants in vLLM's compiled graphs, which it keeps by a hash of the config."""
    hashes = set()
    for quant in ("q8_0", "q4_0", "q8_0"):
        _, paths = make_files(tmp_path, quant=quant)
        path = paths[0].rename(tmp_path / "model.gguf")
        config = config_for(path)
        load_with(config, 0, 1)
        hashes.add(config.model_config.compute_hash())
    assert len(hashes) == 2


def test_a_tensor_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters that nothing fills and tensors that belong nowhere are told by name."""
    import glm5_kernel.gguf.targets as targets

    _, paths = make_files(tmp_path)
    real = targets.canonical
    monkeypatch.setattr(
        targets, "canonical", lambda path: real(path).replace("o_proj", "elsewhere")
    )
    with pytest.raises(GgufError) as caught:
        load_rank(paths[0])
    text = str(caught.value)
    assert (
        "4 parameters of vLLM's model are filled by no tensor of the file: model.layers.0" in text
    )
    assert "4 tensors of the file have no place in vLLM's model: blk.0.attn_output.weight" in text
