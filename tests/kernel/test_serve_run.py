"""A whole run of the script that proves serving on a GPU, with scripted servers and benchmark."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.serve import cases, model, page, parity, results, run

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "serve-h200.json"
FAKE = Path(__file__).parents[1] / "fakes" / "completions_server.py"
BENCHMARK = """
NAMES = ("backend", "host", "port", "model", "served-model-name", "dataset-name",
    "random-input-len", "random-output-len", "random-range-ratio", "num-prompts",
    "max-concurrency", "temperature", "seed", "ready-check-timeout-sec")
def add_cli_args(parser):
    for name in NAMES:
        parser.add_argument(f"--{name}")
    for name in ("ignore-eos", "disable-tqdm"):
        parser.add_argument(f"--{name}", action="store_true")
async def main_async(args):
    port, prompt = int(args.port) - FIRST, int(args.random_input_len)
    if port == 40 and prompt == 8000:
        raise TimeoutError
    keys = ("output_throughput", "total_token_throughput", "median_ttft_ms", "median_tpot_ms")
    return dict.fromkeys(keys, 100.0 + port) | {"completed": int(args.num_prompts)}
"""


@pytest.fixture
def port() -> int:
    """The first of some: the servers of a run lie 40 apart."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1]) % 20000 + 20000


@pytest.fixture
def folder(tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is on a GPU machine, with a model of no weights and small questions."""
    for name in ("benchmarks", "utils"):
        (tmp_path / "site" / "vllm" / name).mkdir(parents=True)
    site = tmp_path / "site" / "vllm"
    (site / "benchmarks" / "serve.py").write_text(BENCHMARK.replace("FIRST", str(port)))
    (site / "utils" / "argparse_utils.py").write_text(
        "from argparse import ArgumentParser as FlexibleArgumentParser"
    )
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr("serve.model.weights", lambda: b"weights")
    monkeypatch.setattr("serve.model.build", lambda *_: None)
    monkeypatch.setattr(run, "unpack_plugin", lambda *_: None)
    monkeypatch.setattr(run, "reference", lambda *_: None)
    monkeypatch.setattr(run, "versions", lambda *_: {"vllm": "0.26.0"})
    monkeypatch.setattr("serve.servers.dump_stacks.__defaults__", (0.1,))
    prompts = {"10": [9, 8, 7], "400": [9, 8, 7, 6]}
    monkeypatch.setattr("serve.prompts.single", lambda: prompts)
    monkeypatch.setattr("serve.prompts.crowd", lambda: [[9, 8], [9, 7]])
    return tmp_path


def go(folder: Path, port: int, *words: str) -> int:
    """One run, into folder/out."""
    given = [f"--{name}={folder / name}" for name in ("out", "work", "kept", "site")]
    return run.main(
        [*given, *words, f"--port={port}", "--seconds=180", "--program", sys.executable, str(FAKE)]
    )


def read(folder: Path, name: str) -> Any:  # noqa: ANN401
    return json.loads((folder / "out" / f"{name}.json").read_text())


def test_throughput_and_profile_over_the_same_servers(folder: Path, port: int) -> None:
    """One of three servers hangs while it is warmed up; it is killed, and the others go on."""
    parts = ("--part=throughput", "--part=profile", "--load=1x1000", "--load=8x8000")
    chosen = [f"--bench={name}" for name in ("flashmla-bf16", "flashattn-bf16", "ours-bf16")]
    assert go(folder, port, *parts, *chosen) == 1
    rows = read(folder, "throughput")
    assert {(row["impl"], row["prompt_tokens"], row["layers"]) for row in rows} == {
        (name, tokens, model.DEEP)
        for name in ("flashmla-bf16", "ours-bf16")
        for tokens in (1000, 8000)
    }
    measured = read(folder, "profile")
    assert {row["impl"] for row in measured} == {"flashmla-bf16", "ours-bf16"}
    assert len(measured) == 2 * 2  # the profile has two of these loads, decode
    assert {row["busy_us"] for row in measured} == {7.0}
    failed = read(folder, "about")["failed"]
    assert set(failed) == {"throughput of flashattn-bf16", "profile of flashattn-bf16"}
    assert "TimeoutError" in failed["throughput of flashattn-bf16"]


def test_a_run_writes_what_it_gathered_and_asks_what_changed(folder: Path, port: int) -> None:
    """Kept answers of a run that began earlier must not take the place of newer ones."""
    names = ("flashmla-bf16", "ours-bf16")
    only = [f"--only={name}" for name in names]
    assert go(folder, port, *only) == 0
    assert set(read(folder, "answers")) == set(names)
    (folder / "out" / "answers.json").replace(folder / "kept" / "answers.json")
    kept = json.loads((folder / "kept" / "answers.json").read_text())
    kept["ours-bf16"]["fingerprint"] = cases.fingerprint(cases.ALL["ours-bf16"], "w", "older")
    (folder / "kept" / "answers.json").write_text(json.dumps(kept))
    assert go(folder, port, *only) == 0
    assert set(read(folder, "answers")) == {"ours-bf16"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where results are written instead of the project's; nothing is kept yet."""
    for name in ("KEPT", "RESULTS", "PAGE"):
        monkeypatch.setattr(results, name, tmp_path / name.lower())
    return tmp_path / "results"


def test_merging_keeps_what_another_run_gathered(tmp_path: Path) -> None:
    """What is newer takes the place of what is older, and all of it names its commit."""
    found: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    runs = (("a1", {"x": 1, "y": 1}, 1000), ("b2", {"x": 2}, 8000))
    for number, (commit, answers, tokens) in enumerate(runs):
        about = {"command": f"c{number}", "device": commit}
        own = {name: {"answer": answer} for name, answer in answers.items()}
        rows = [row("ours", tokens, 24, 1.0)]
        one = ran(tmp_path / str(number), commit, about=about, answers=own, throughput=rows)
        found, kept = results.merged(found, kept, results.read_run(one))
    assert (found["command"], found["device"]) == ("c0; c1", "b2")
    assert kept["answers"] == {
        "x": {"answer": 2, "commit": "b2"},
        "y": {"answer": 1, "commit": "a1"},
    }
    measured = [(each["prompt_tokens"], each["commit"]) for each in found["throughput"]]
    assert measured == [(1000, "a1"), (8000, "b2")]


def ran(folder: Path, commit: str, **files: object) -> Path:
    """What a run leaves."""
    folder.mkdir(exist_ok=True)
    for name, found in files.items():
        said = {"commit": commit} | found if isinstance(found, dict) and name == "about" else found
        (folder / f"{name}.json").write_text(json.dumps(said))
    return folder


ABOUT = {"command": "c"}


@pytest.mark.parametrize("word", ["merge", "again"])
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "no folder that tests/gpu/serve/run.py wrote"),
        ({"about": {"device": "a host's"}}, "no folder that tests/gpu/serve/run.py wrote"),
        ({"about": []}, "about.json: no JSON object"),
        ({"about": ABOUT}, "nothing was gathered"),
        ({"about": ABOUT, "throughput": []}, "nothing was gathered"),
        ({"about": ABOUT, "throughput": {"a": 1}}, "throughput.json: no JSON list"),
    ],
)
def test_a_folder_that_is_none_of_a_run_changes_nothing(
    word: str, files: dict[str, object], said: str, tmp_path: Path, record: Path
) -> None:
    record.write_text(published := RECORD.read_text())
    with pytest.raises(SystemExit, match=said):
        results.main([word, str(ran(tmp_path / "one", "a1", **files))])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "results"]
    assert record.read_text() == published


def test_what_is_cut_short_is_named(tmp_path: Path, record: Path) -> None:
    record.write_text("{")
    with pytest.raises(SystemExit, match=f"{record}: Expecting"):
        results.main(["merge", str(tmp_path)])


@pytest.mark.parametrize("layers", [24, 4])
def test_a_run_of_fewer_servers_takes_nothing_off_the_record(
    layers: int, tmp_path: Path, record: Path
) -> None:
    record.write_text(published := RECORD.read_text())
    rows = [row("ours-bf16", 1000, layers, 1.0)]
    one = ran(tmp_path / "one", "a1", about=ABOUT, throughput=rows)
    with pytest.raises(SystemExit, match=r"flashattn-bf16.* would be gone"):
        results.main(["merge", str(one)])
    assert record.read_text() == published


@pytest.mark.parametrize(
    "files",
    [
        {"answers": {"ours-bf16": {}}},
        {"throughput": [{"impl": name, "prompt_tokens": 1, "concurrency": 1, "layers": 24}
                        for name in cases.THROUGHPUT]},
    ],
)  # fmt: skip
def test_where_the_page_cannot_be_made_nothing_is_written(
    files: dict[str, object], tmp_path: Path, record: Path
) -> None:
    record.write_text(published := RECORD.read_text())
    with pytest.raises(KeyError):
        results.main(["merge", str(ran(tmp_path / "one", "a1", about=ABOUT, **files))])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "results"]
    assert record.read_text() == published


def test_there_is_no_page_without_a_record(tmp_path: Path, record: Path) -> None:
    with pytest.raises(SystemExit, match=f"{record}: there is no record"):
        results.main(["write"])
    assert list(tmp_path.iterdir()) == []


def test_merging_on_another_machine_loses_nothing(
    folder: Path, port: int, record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of earlier runs are not in git: comparisons that need them stay as they were."""
    record.write_text(RECORD.read_text())
    published = results.read(record)
    monkeypatch.setenv("GLM5_COMMIT", "a1")
    assert go(folder, port, "--only=ours-bf16") == 0
    results.main(["merge", str(folder / "out")])
    written = results.read(record)
    assert written["cases"]["ours-bf16"]["commit"] == "a1"
    alone = ("ours-bf16", parity.ALONE)
    kept = [
        [each for each in found["parity"] if (each["case"], each["against"]) != alone]
        for found in (published, written)
    ]
    assert kept[0] == kept[1] != []
    assert len(written["parity"]) == len(published["parity"])
    for name in ("throughput", "profile"):
        assert written[name] == published[name] != []
    assert "a1" in written["commit"].split("; ")
    results.main(["write"])
    assert results.read(record) == written


def row(impl: str, tokens: int, layers: int, value: float) -> dict[str, Any]:
    return {
        "impl": impl, "prompt_tokens": tokens, "concurrency": 1, "layers": layers, "value": value,
    }  # fmt: skip


def test_measurements_of_two_runs_are_not_compared() -> None:
    before = [row("ours", 1000, 4, 1.0), row("stock", 8000, 24, 1.0), row("stock", 1000, 24, 1.0)]
    now = [row("ours", 1000, 24, 2.0)]
    assert results.measured(before, now) == [before[1], now[0]]
    assert results.measured(before, []) == before


def test_loads_measured_again_stand_beside_the_rest_until_all_servers_are(
    tmp_path: Path, record: Path
) -> None:
    found = {"rounds": [300.0, 310.0], "tokens_per_s": 305.0, "ttft_ms": 70.0}
    rows = [row(name, 1000, 24, 1.0) | found for name in cases.THROUGHPUT]
    two = [each for each in rows if each["impl"] in ("flashattn-bf16", "ours-bf16")]
    one = ran(tmp_path / "one", "0123456789ab", about=ABOUT, throughput=two)
    results.main(["again", str(one)])
    assert (tmp_path / "page").read_text().count("### Some loads again") == 1
    said = page.again_section(results.read(record))
    assert "`01234567`" in said
    assert "| 1 × 1,000 | 305 | 305 (1.00, 1.00–1.00) |" in said
    results.main(["merge", str(ran(one, "0123456789ab", throughput=rows))])
    assert page.again_section(results.read(record)) == ""
