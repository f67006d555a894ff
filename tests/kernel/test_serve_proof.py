"""The script that proves serving on a GPU: its table, comparisons and dealings with servers."""

from __future__ import annotations

import gzip
import itertools
import json
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gpu.serve import (
    ask,
    cases,
    model,
    page,
    parity,
    profiles,
    prompts,
    run,
    servers,
    throughput,
)

FAKE = Path(__file__).parents[1] / "fakes" / "completions_server.py"
COLUMNS = ("kv", "graphs", "prefix", "chunk", "topk", "mqa", "drafts")


def test_our_cases_hold_every_pair_of_values() -> None:
    values = {column: {getattr(case, column) for case in cases.OURS} for column in COLUMNS}
    assert all(len(found) >= 2 for found in values.values())
    for one, other in itertools.combinations(COLUMNS, 2):
        wanted = set(itertools.product(values[one], values[other]))
        assert {(getattr(case, one), getattr(case, other)) for case in cases.OURS} == wanted


def test_every_case_of_ours_has_a_stock_case_with_its_cache_and_top_k() -> None:
    for case in cases.ALL.values():
        if case.ours:
            found = [cases.ALL[name] for name in cases.peers(case)]
            assert any(peer.kv == case.kv for peer in found), case.name
            assert {peer.topk for peer in found} == {case.topk}


def test_arguments_follow_the_case() -> None:
    given = cases.arguments(cases.ALL["ours-fp8-k512-spec"], "MODEL", 1)
    assert given[given.index("--kv-cache-dtype") + 1] == "fp8_ds_mla"
    assert "--enforce-eager" in given
    assert "--no-enable-prefix-caching" in given
    assert json.loads(given[given.index("--attention-config") + 1]) == {
        "sparse_mla_force_mqa": True
    }
    assert json.loads(given[given.index("--speculative-config") + 1])["method"] == "ngram"
    plain = cases.arguments(cases.ALL["ours-bf16"], "MODEL", 1)
    assert {"--enforce-eager", "--attention-config", "--speculative-config"}.isdisjoint(plain)


def test_a_changed_case_or_other_weights_are_asked_again() -> None:
    case = cases.ALL["ours-bf16"]
    known = cases.fingerprint(case, "w", "k")
    assert cases.fingerprint(replace(case), "w", "k") == known
    assert cases.fingerprint(replace(case, chunk=1), "w", "k") != known
    assert cases.fingerprint(case, "v", "k") != known


def test_other_kernels_of_ours_are_asked_again_and_stock_is_not() -> None:
    ours, stock = cases.ALL["ours-bf16"], cases.ALL["flashmla-bf16"]
    assert cases.fingerprint(ours, "w", "k") != cases.fingerprint(ours, "w", "l")
    assert cases.fingerprint(stock, "w", "k") == cases.fingerprint(stock, "w", "l")


# Profiles


def event(name: str, start: float, duration: float, category: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}


def test_a_profile_adds_up_kernels_and_counts_overlapping_ones_once(tmp_path: Path) -> None:
    events = [
        event("b", 20.0, 10.0),
        event("a", 0.0, 10.0),
        event("a", 5.0, 10.0),
        event("host", 0.0, 90.0, "cpu_op"),
        event("execute_context_1(8)_generation_0(0)", 0.0, 20.0, "user_annotation"),
        event("execute_context_0(0)_generation_1(1)", 20.0, 20.0, "user_annotation"),
        event("preprocess", 20.0, 5.0, "user_annotation"),
        event("copy", 36.0, 4.0, "gpu_memcpy"),
    ]
    trace = tmp_path / "t.pt.trace.json.gz"
    with gzip.open(trace, "wt") as file:
        json.dump({"traceEvents": events}, file)
    found = profiles.summary(profiles.read(profiles.newest(tmp_path)))
    assert found["steps"] == 2
    assert (found["wall_us"], found["busy_us"], found["launches"]) == (20.0, 14.5, 2.0)
    assert found["kernels"][0] == {"name": "a", "us": 10.0, "calls": 1.0}
    assert found["calls"][0] == {"name": "host", "us": 45.0, "calls": 0.5}
    assert found["calls"][1] == {"name": "execute_", "us": 20.0, "calls": 1.0}
    about = {"what": "decode", "concurrency": 8, "prompt_tokens": 1, "layers": 4}
    row = {"impl": "ours-fp8", **about, **found}
    assert "decode 8 x 1" in profiles.table([row])
    assert page.kernels_table([row]).splitlines()[-1] == "| decode, 8 × 1 (2) | 14 |"


def test_steps_that_run_no_model_do_not_count() -> None:
    about = {"what": "prefill", "concurrency": 1, "prompt_tokens": 8000, "layers": 24, "steps": 3}
    cache = {"name": "void vllm::concat_and_cache_mla_kernel<…>", "us": 60.0, "calls": 8.0}
    other = {"name": "split_kernel", "us": 900.0, "calls": 8.0}
    rows = [
        {"impl": "flashmla-bf16", **about, "busy_us": 1000.0, "kernels": [other, cache]},
        {"impl": "ours-bf16", **about, "busy_us": 500.0, "kernels": [other]},
    ]
    assert page.kernels_table(rows).splitlines()[-1] == "| prefill, 1 × 8,000 (1) | 3,000 | 1,500 |"
    assert page.ran([{**rows[1]}]) == 1.0


# Comparisons


def answer(prompt: list[float], own: list[int], logp: list[float | None]) -> dict[str, Any]:
    follow = {"own": own, "logp": logp, "decoded": [False, *[True] * (len(own) - 1)], "cached": 0}
    crowd = {"tokens": own, "logp": logp}
    return {
        "prompt": {"10": prompt},
        "follow": {"10": follow},
        "crowd": {"alone": [crowd], "together": [crowd]},
    }


ONE = answer([-1.0, -2.0, -3.0], [5, 6, 7, 8], [-1.0, -1.0, -1.0, -1.0])
OTHER = answer([-1.0, -2.5, -3.1], [5, 6, 9, 8], [-9.0, -1.2, -1.0, None])


def test_prompt_rows_take_every_position() -> None:
    row = parity.prompt_row(ONE, OTHER)
    assert row["max_abs_dlogp"] == 0.5
    assert row["mean_abs_dlogp"] == 0.2
    assert row["values"] == 3
    assert row["by_prompt"]["10"]["max_abs_dlogp"] == 0.5


def test_decode_rows_take_decoded_positions_that_both_know() -> None:
    row = parity.decode_row(ONE, OTHER)
    assert row["values"] == 2
    assert row["max_abs_dlogp"] == 0.2
    assert row["first_divergence"] == 2


def test_equal_answers_have_no_first_difference() -> None:
    assert parity.decode_row(ONE, ONE)["first_divergence"] is None
    assert parity.prompt_row(ONE, ONE)["max_abs_dlogp"] == 0


def test_crowd_rows_stop_at_the_first_other_token() -> None:
    mixed = {
        "crowd": {
            "alone": [{"tokens": [1, 2, 3], "logp": [-1.0, -1.0, -1.0]}] * 2,
            "together": [
                {"tokens": [1, 2, 3], "logp": [-1.0, -1.1, -1.0]},
                {"tokens": [1, 4, 3], "logp": [-1.3, -5.0, -9.0]},
            ],
        }
    }
    row = parity.crowd_row(mixed)
    assert row["same_tokens"] == 1
    assert row["first_divergence"] == 1
    assert row["max_abs_dlogp"] == 0.3


def shifted(by: float) -> dict[str, Any]:
    return answer([-1.0 - by, -2.0, -3.0], [5, 6, 7, 8], [-1.0, -1.0 - by, -1.0, -1.0])


def test_ours_is_judged_by_what_stock_differs_by() -> None:
    answers = {
        "flashmla-bf16": shifted(0.0),
        "flashattn-bf16": shifted(0.2),
        "ours-bf16": shifted(0.1),
    }
    reference = {"10": {"prompt": [-1.0, -2.0, -3.0], "tokens": [5, 6, 7, 8], "logp": [-1.0] * 4}}
    found = parity.rows(answers, {"2048": reference})
    judged = {(row["against"], row["what"]): row["ratio"] for row in parity.judged(found)}
    assert judged["flashmla-bf16", "prompt"] == 0.5
    assert judged["flashattn-bf16", "decode"] == 0.5
    assert judged[parity.REFERENCE, "prompt"] == 0.5


def test_the_page_shows_ratios_and_what_is_missing() -> None:
    answers = {"flashmla-bf16": shifted(0.2), "ours-bf16": shifted(0.1)}
    reference = {"10": {"prompt": [-1.0, -2.0, -3.0], "tokens": [5, 6, 7, 8], "logp": [-1.0] * 4}}
    found = parity.rows(answers, {"2048": reference})
    row = {"concurrency": 8, "prompt_tokens": 1000, "ttft_ms": 5.0}
    case = {"served_by": ["x"], "kv": "bf16", "graphs": True, "prefix": True, "chunk": 1}
    case |= {"topk": 2048, "mqa": False, "drafts": 0, "tensor_parallel": 1}
    document = {
        "device": "NVIDIA H200, 1",
        "versions": {},
        "cases": dict.fromkeys(answers, case),
        "parity": found,
        "judged": parity.judged(found),
        "throughput": [
            {**row, "impl": "flashmla-bf16", "tokens_per_s": 100.0, "rounds": [100.0]},
            {**row, "impl": "ours-bf16", "tokens_per_s": 99.0, "rounds": [99.0]},
            {**row, "impl": "ours-fp8", "tokens_per_s": 7.0, "rounds": [7.0]},
        ],
    }
    text = page.text(document)
    assert "| ours-bf16 | 0.0333 | 0.1000 | 0.50 |" in text
    assert "| 100 | 99 (0.99, 0.99–0.99) | 7 |" in text
    assert "Not measured yet." in page.text({**document, "throughput": []})


# The model and the prompts


def test_bfloat16_is_rounded_to_the_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.0e-5, 65504.0], np.float32)
    back = (model.to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert back.tolist() == [1.0, 1.0, 1.015625, pytest.approx(-3.0e-5, rel=4e-3), 65536.0]


def test_the_file_is_read_by_safetensors() -> None:
    load = pytest.importorskip("safetensors.numpy").load
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert load(model.safetensors({"a": ("F32", values)}))["a"].tolist() == values.tolist()


def tensor(values: list[float]) -> tuple[str, tuple[int, ...], bytes]:
    array = np.array(values, np.float32)
    return "F32", array.shape, array.tobytes()


def test_a_deep_model_repeats_layers_and_their_indexers() -> None:
    names = {f"model.layers.{layer}.norm.weight": tensor([layer]) for layer in range(model.LAYERS)}
    data = model.written({"head": tensor([9]), **names})
    deep = model.deepened(data, 8)
    size = int.from_bytes(deep[:8], "little")
    header = json.loads(deep[8 : 8 + size])
    found = {}
    for name, each in header.items():
        first, last = (8 + size + offset for offset in each["data_offsets"])
        found[name] = np.frombuffer(deep[first:last], np.float32).tolist()
    layers = [found[f"model.layers.{layer}.norm.weight"][0] for layer in range(8)]
    assert layers == [0, 1, 2, 3, 1, 2, 3, 1]
    assert found["head"] == [9]
    assert model.pattern(8) == "FFSFFSFF"
    assert model.config(2048, 8)["num_hidden_layers"] == len(model.config(2048, 8)["indexer_types"])


def test_what_is_measured_runs_alone() -> None:
    with pytest.raises(SystemExit, match="what is measured runs alone"):
        run.chosen_cases(run.parse(["--part", "throughput", "--part", "ours"]))
    both = run.chosen_cases(run.parse(["--part", "throughput", "--part", "profile"]))
    assert [case.name for case in both] == list(cases.THROUGHPUT)
    chosen = run.chosen_cases(run.parse(["--part", "profile", "--bench", "ours-fp8"]))
    assert [case.name for case in chosen] == ["ours-fp8"]
    assert len(run.chosen_cases(run.parse([]))) == len(cases.STOCK + cases.OURS) + 2


def test_the_shared_layer_has_no_indexer_and_tokens_have_words() -> None:
    config = model.config(512)
    assert config["indexer_types"] == ["full", "full", "shared", "full"]
    assert len(model.tokenizer()["model"]["vocab"]) == config["vocab_size"]


def test_prompts_are_the_same_in_every_process() -> None:
    assert prompts.single()["10"] == prompts.single()["10"]
    crowd = prompts.crowd()
    assert len(crowd) == 64
    assert crowd[1][: prompts.SHARED] == crowd[3][: prompts.SHARED]
    assert max(len(ids) for ids in crowd) + prompts.CROWD_TOKENS < model.POSITIONS
    assert min(min(ids) for ids in crowd) >= prompts.FIRST


# Servers


def start(folder: Path, case: cases.Case, port: int, **env: str) -> servers.Server:
    given = cases.arguments(case, "MODEL", port)
    return servers.start(case.name, given, port, env, folder, (sys.executable, str(FAKE)))


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_the_page_names_the_sources_of_what_ran() -> None:
    found = {
        "a": {"kernels": "1", "commit": "f" * 40},
        "b": {"kernels": "2", "commit": ""},
        "c": {"kernels": "2", "commit": "0123456789"},
        "d": {},
    }
    assert page.kernels_note(found).strip().splitlines() == [
        "Ours ran with the kernels of commit `01234567`.",
        "`a` ran with those of commit `ffffffff`.",
    ]
    assert page.kernels_note({"d": {"kernels": None}}) == ""
    rows = [{"commit": "0123456789"}, {"commit": "0123456789"}, {}]
    assert page.commits_note(rows) == " Ours: commit `01234567`."
    assert page.commits_note([{}]) == ""


def test_a_server_is_followed_along_a_path(tmp_path: Path, port: int) -> None:
    server = start(tmp_path, cases.ALL["ours-fp8"], port)
    try:
        servers.wait(server, time.monotonic() + 30)
        assert server.backends() == ["attention=TRITON_MLA_SPARSE kv=fp8_ds_mla indexer=triton"]
        client = ask.Client(server.url)
        free = ask.greedy(client, [9, 8, 7], 6)
        path = list(free["tokens"])
        same = ask.follow(client, [9, 8, 7], path)
        assert same["own"] == path
        assert same["logp"] == free["logp"]
        assert same["decoded"] == [False, *[True] * 5]
        other = [*path[:2], path[2] + 1, *path[3:]]
        left = ask.follow(client, [9, 8, 7], other)
        assert left["own"][:3] == path[:3]
        assert left["decoded"][3] is False
        assert len(left["own"]) == len(path)
        assert len(ask.score(client, [9, 8, 7, 6])) == 3
    finally:
        servers.stop(server, 2)
    assert server.process.poll() is not None


def test_a_server_that_ends_is_told_with_its_last_lines(tmp_path: Path, port: int) -> None:
    server = start(tmp_path, cases.ALL["flashmla-bf16"], port, FAKE_EXIT="1")
    with pytest.raises(servers.ServerError, match=r"ended with 3:\nValueError: no backend"):
        servers.wait(server, time.monotonic() + 30)
    servers.stop(server)


def test_a_server_that_is_late_is_given_up(tmp_path: Path, port: int) -> None:
    server = start(tmp_path, cases.ALL["flashmla-bf16"], port)
    with pytest.raises(servers.ServerError, match="not ready in time"):
        servers.wait(replace(server, url="http://127.0.0.1:9"), time.monotonic() - 1)
    servers.stop(server, 2)


def test_multicast_stays_off() -> None:
    env = servers.environment({}, [Path("/a"), Path("/b")], Path("/c/d"))
    assert env["PYTHONPATH"] == "/a:/b"
    assert env["NCCL_NVLS_ENABLE"] == "0"
    assert env["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"


# The benchmark


def test_figures_are_medians_over_rounds() -> None:
    runs = [{"tokens_per_s": float(value), "ttft_ms": 1.0} for value in (10, 30, 20)]
    (row,) = throughput.rows({("ours-bf16", (8, 1000)): runs}, 24)
    assert row["tokens_per_s"] == 20
    assert row["rounds"] == [10, 30, 20]
    assert (row["concurrency"], row["prompt_tokens"], row["impl"]) == (8, 1000, "ours-bf16")


def test_shares_are_taken_round_by_round_and_misses_are_named() -> None:
    """A round in which the machine is slow is slow for both."""
    load, rounds = {"concurrency": 8, "prompt_tokens": 1000, "layers": 24}, [10.0, 30.0, 20.0]
    rows = [
        {**load, "impl": "flashmla-bf16", "tokens_per_s": 20, "rounds": rounds},
        {**load, "impl": "flashattn-bf16", "tokens_per_s": 10, "rounds": [10.0] * 3},
        {**load, "impl": "ours-bf16", "tokens_per_s": 18, "rounds": [9.0, 27.0, 18.0]},
        {**load, "impl": "flashmla-fp8", "tokens_per_s": 20, "rounds": rounds},
        {**load, "impl": "ours-fp8", "tokens_per_s": 20, "rounds": [11.0, 29.0, 20.0]},
    ]
    found = page.by_load(rows)[8, 1000]
    assert page.shares(found, "ours-bf16") == pytest.approx([0.9] * 3)
    assert page.shares(found, "flashmla-bf16") == []
    note = page.rounds_note(rows)
    assert "24 layers here; 3 rounds." in note
    assert "missed by ours-bf16 at 8 × 1,000." in note
    assert "missed" not in page.rounds_note([row for row in rows if row["impl"] != "ours-bf16"])


def test_every_server_gets_the_same_requests() -> None:
    one = throughput.arguments("http://127.0.0.1:1", "M", (64, 8000), 7)
    other = throughput.arguments("http://127.0.0.1:2", "M", (64, 8000), 7)
    assert [a for a, b in zip(one, other, strict=True) if a != b] == ["1"]
