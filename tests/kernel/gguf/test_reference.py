"""The transformers reference: its weights are the file's, its answers the golden ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from glm5_kernel.gguf.tiny import golden, main
from glm5_kernel.gguf.tiny.golden import BEYOND, read_golden
from glm5_kernel.gguf.tiny.reference import (
    build_model,
    checkpoint,
    greedy,
    log_probabilities,
    read_tensors,
)
from glm5_kernel.gguf.tiny.spec import config
from transformers import AutoConfig, AutoTokenizer

from tests.kernel.gguf.models import made, reference

IDS = [(n * 37 + 11) % 400 for n in range(48)]


@pytest.mark.parametrize(
    "form",
    [{}, {"variant": "glm5.2"}, {"variant": "glm5.2", "shared": "repeat"}, {"mtp": True},
     {"kv_b": "flat"}, {"quant": "ud"}, {"quant": "mixed", "split": 4}],
    ids=str,
)  # fmt: skip
def test_every_parameter_is_filled(form: dict[str, Any]) -> None:
    """Names and shapes are transformers' own: none is missing, none left over."""
    spec, _, paths = made(**form)
    model = reference(**form)
    weights = checkpoint(read_tensors(paths), spec.hp, spec.pattern)
    state = model.state_dict()
    assert set(weights) == set(state)
    for name, values in weights.items():
        assert np.array_equal(state[name].numpy(), values), name


def test_a_missing_weight_is_told() -> None:
    spec, _, paths = made()
    tensors = read_tensors(paths)
    del tensors["blk.1.attn_q_a.weight"]
    tensors["blk.1.attn_norm.weight"] = np.ones(3, np.float32)
    with pytest.raises(ValueError, match=r"q_a_proj\.weight: missing") as caught:
        build_model(config(spec), tensors, spec.hp, spec.pattern)
    assert "layers.1.input_layernorm.weight: [3]; [256] is right" in str(caught.value)


def test_layer_norms_use_the_configs_epsilon() -> None:
    layer = reference().model.layers[0].self_attn
    assert layer.q_a_layernorm.variance_epsilon == 1e-5
    assert layer.kv_a_layernorm.variance_epsilon == 1e-5


@pytest.mark.parametrize("variant", ["glm5", "glm5.2"])
def test_a_cache_changes_nothing(variant: str) -> None:
    """Selections beyond the top-k included: scores have no ties."""
    model = reference(variant=variant)
    answer = greedy(model, IDS, 8)
    assert answer is not None
    rows = log_probabilities(model, IDS + answer[0][:-1])
    assert rows[len(IDS) - 1 :].argmax(-1).tolist() == answer[0]
    assert torch.allclose(rows[: len(IDS)], log_probabilities(model, IDS), atol=1e-4)


def test_repeated_indexers_are_not_used() -> None:
    """A shared layer reuses the selection of the one before it."""
    omitted = log_probabilities(reference(variant="glm5.2"), IDS)
    repeated = log_probabilities(reference(variant="glm5.2", shared="repeat"), IDS)
    assert torch.equal(omitted, repeated)


def test_answers_tell_something() -> None:
    """Sure enough to compare, no two alike, and every part of the model has a say."""
    spec, _, paths = made()
    base = log_probabilities(reference(), IDS)
    assert 0.5 < -base.max(-1).values.mean() < 3
    assert len(set(base.argmax(-1).tolist())) > len(IDS) / 3
    for part in ("attn_v_b", "indexer.attn_q_b", "ffn_down_exps", "exp_probs_b", "ffn_up_shexp"):
        tensors = read_tensors(paths)
        for name in tensors:
            if f".{part}." in name:
                tensors[name] = tensors[name] * np.float32(-1)
        changed = build_model(config(spec), tensors, spec.hp, spec.pattern)
        assert (log_probabilities(changed, IDS) - base).abs().max() > 0.1, part


def test_golden_tokens_are_the_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(golden, "CANDIDATES", {"short": 6, "medium": 3, "long": 2})
    argv = [str(tmp_path), "--dims", "micro", "--variant", "glm5.2", "--quant", "q4_k"]
    assert main(argv) == 0
    spec, _, paths = made(variant="glm5.2", quant="q4_k")
    goldens = read_golden(tmp_path)
    assert [each.name for each in goldens] == ["short", "medium", "long"]
    assert spec.hp.indexer is not None
    assert len(goldens[2].prompt) >= spec.hp.indexer.topk + BEYOND
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = reference(variant="glm5.2", quant="q4_k")
    for each in goldens:
        assert tokenizer(each.text)["input_ids"] == list(each.prompt)
        assert tokenizer.decode(each.tokens) == each.answer
        assert each.answer.isprintable()
        assert each.margin > 0.02
        rows = log_probabilities(model, [*each.prompt, *each.tokens[:-1]])[len(each.prompt) - 1 :]
        assert rows.argmax(-1).tolist() == list(each.tokens)
        best = rows.max(-1).values
        assert torch.allclose(best, torch.tensor(each.logprobs), atol=1e-4)
        assert [[n for n, _ in step] for step in each.top] == rows.topk(8).indices.tolist()
    assert len(paths) == 1


def test_other_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "golden.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match="format 99; 1 is right"):
        read_golden(tmp_path)


@pytest.mark.parametrize("name", ["torch", "transformers", "tokenizers"])
def test_golden_tokens_that_nothing_can_compute(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before anything is made; what does without them is."""
    monkeypatch.setitem(sys.modules, name, None)
    (tmp_path / "golden.json").write_text("of another model")
    assert main([str(tmp_path), "--dims", "micro"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: golden tokens needs the package {name}")
    assert said.endswith(f"install it: python -m pip install {name}, or give --no-golden\n")
    assert [each.name for each in tmp_path.iterdir()] == ["golden.json"]
    assert main([str(tmp_path), "--dims", "micro", "--no-golden"]) == 0
    assert list(tmp_path.glob("*.gguf"))


def test_golden_tokens_that_are_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model is there, and the exit status tells that it is not all that was asked for."""
    monkeypatch.setattr(golden, "greedy", lambda *_: None)
    monkeypatch.setattr(golden, "CANDIDATES", {"short": 1})
    (tmp_path / "golden.json").write_text("of another model")
    assert main([str(tmp_path), "--dims", "micro"]) == 1
    assert "error: the model has no golden tokens: golden short:" in capsys.readouterr().err
    assert list(tmp_path.glob("*.gguf"))
    assert not (tmp_path / "golden.json").exists()


def test_without_gguf_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    assert main([str(tmp_path), "--dims", "micro"]) == 1
    assert "install it: python -m pip install gguf" in capsys.readouterr().err


def test_the_tokenizer() -> None:
    """Any text comes back, special tokens are one each, and a conversation can be rendered."""
    spec, folder, _ = made()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("Water, the same. déjà vu 水\n\t!", "asked children", ""):
        ids = tokenizer(text)["input_ids"]
        assert tokenizer.decode(ids) == text
        assert all(n < spec.hp.vocab for n in ids)
    assert len(tokenizer("<|user|>")["input_ids"]) == 1
    messages = [{"role": "user", "content": "hello"}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == "[gMASK]<sop><|user|>\nhello<|assistant|>\n"
    assert len(tokenizer) == spec.hp.vocab


def test_transformers_reads_the_config() -> None:
    spec, folder, _ = made(variant="glm5.2")
    loaded = AutoConfig.from_pretrained(folder)
    assert loaded.model_type == "glm_moe_dsa"
    assert loaded.indexer_types == ["full"] * 3 + ["shared"] * 3 + ["full"]
    assert loaded.rope_parameters["rope_theta"] == 8e6
    assert loaded.index_topk == 16
    assert loaded.vocab_size == spec.hp.vocab
