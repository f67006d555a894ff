"""The doctor: what it says of answers, crashes and hosts of every kind; no GPU is needed."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import glm5_kernel
import pytest
from glm5_kernel.doctor import cases, child, command, environment, selftest, testing
from glm5_kernel.doctor.child import Answer, Ended, children_end_with_it, run_child
from glm5_kernel.doctor.gpus import capability_check, gpu_check, gpus_of, torch_check
from glm5_kernel.doctor.registering import parts_of, registration_checks
from glm5_kernel.doctor.report import Check, Gpu, Report, failed, passed, skipped
from glm5_kernel.doctor.selftest import NEEDED, TESTS, SelfTest, one
from glm5_kernel.doctor.table import render

KERNEL = Path(glm5_kernel.__file__).parents[1]
NAMES = [test.name for test in TESTS]
GIB = 1 << 30
H200 = {"index": 0, "name": "NVIDIA H200", "capability": "9.0", "memory": 140 * GIB, "uuid": "u0"}
TORCH = {"torch": "2.11.0", "cuda": "13.0"}
PARTS = [
    {"name": "attention", "state": "registered", "reason": "chosen by CUSTOM"},
    {"name": "indexer", "state": "registered", "reason": "chosen where DeepGEMM fails"},
]
REGISTERED = {"vllm": "0.26.0", "message": "vLLM 0.26.0: all registered", "parts": PARTS}


def ended(*answers: Answer, returncode: int | None = 0, said: str = "") -> Ended:
    return Ended(answers, returncode, said)


def gpu(index: int = 0, capability: str = "9.0", free: int | None = None) -> Gpu:
    return Gpu(index, "NVIDIA H200", capability, 140 * GIB, f"u{index}", free)


# --- the kernels ---


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter is slow."""
    monkeypatch.setattr(cases, "TOPK", 128)
    monkeypatch.setattr(cases, "CONTEXT", 200)


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.case)
def test_kernels_pass_their_tests(test: SelfTest) -> None:
    done = one(test, "cpu", (9, 0))
    assert done["status"] == "passed", done
    assert done["error"] <= test.limit


WRONG: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "sparse_mla_bf16": ("sparse_mla.sparse_mla", lambda r: (r[0] * 1.05, r[1])),
    "sparse_mla_fp16": ("sparse_mla.sparse_mla", lambda r: (r[0], r[1] + 0.1)),
    "sparse_mla_fp8": ("sparse_mla.sparse_mla", lambda r: (r[0], r[1].clamp_min(-9))),
    "merge": ("merge.merge_partials", lambda r: (r[0].roll(1, 0), r[1])),
    "paged_logits": ("indexer_logits.paged_mqa_logits", lambda r: r.roll(1, 1)),
    "prefill_logits": ("indexer_logits.mqa_logits", lambda r: r * float("nan")),
    "topk": ("topk.topk_indices", lambda r: r.clamp_min(1)),
}


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.case)
def test_a_kernel_that_is_wrong_fails(test: SelfTest, monkeypatch: pytest.MonkeyPatch) -> None:
    name, spoil = WRONG[test.case]
    module, _, function = f"glm5_kernel.ops.{name}".rpartition(".")
    right = getattr(importlib.import_module(module), function)
    monkeypatch.setattr(f"{module}.{function}", lambda *a, **k: spoil(right(*a, **k)))
    done = one(test, "cpu", (9, 0))
    assert done["status"] == "failed"
    assert done["detail"].startswith("error ")
    assert "do not serve with it" in done["hint"]


RAISED = {
    "CUDA out of memory. Tried to allocate": ("skipped", "GPU memory is full"),
    "CUDA error: out of memory": ("skipped", "GPU memory is full"),
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable": ("skipped", selftest.BUSY),
    "Failed to find C compiler.": ("failed", "RuntimeError: Failed to find C compiler."),
    "an illegal access\nCompile with TORCH_USE_CUDA_DSA": (
        "failed", "RuntimeError: an illegal access",
    ),
    "": ("failed", "RuntimeError"),
}  # fmt: skip


@pytest.mark.parametrize("text", RAISED)
def test_what_a_test_raises_is_a_row(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(_: str) -> float:
        raise RuntimeError(text)

    monkeypatch.setattr(cases, "merge", problem)
    done = one(SelfTest("merge", "merge", 1.0), "cpu", (9, 0))
    assert (done["status"], done["detail"]) == RAISED[text]


def test_a_compilation_error_shows_its_reason() -> None:
    error = type("CompilationError", (Exception,), {})("at 3:4:\n    x = tl.load(p)\n    ^\nno fp8")
    assert selftest.first_line(error) == "CompilationError: no fp8"


def test_a_kernel_that_a_gpu_is_too_old_for_is_skipped() -> None:
    logits = next(test for test in TESTS if test.case == "paged_logits")
    done = one(logits, "cpu", (8, 6))
    assert done == {"status": "skipped", "detail": "needs capability 8.9"}


class Cuda:
    """torch.cuda of a GPU that may be full, or whose context breaks after a test."""

    def __init__(self, free: int = GIB, error: str = "", breaks_after: int = 99) -> None:
        self.free, self.error, self.left = free, error, breaks_after

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("set_device", "mem_get_info", "get_device_capability", "synchronize"):
            monkeypatch.setattr(f"torch.cuda.{name}", getattr(self, name))
        done = {"status": "passed", "error": 0.0}
        monkeypatch.setattr(selftest, "one", lambda *_: done)

    def set_device(self, device: str) -> None:
        assert device == "cuda:3"

    def mem_get_info(self, _: str) -> tuple[int, int]:
        if self.error:
            raise RuntimeError(self.error)
        return self.free, 140 * GIB

    def get_device_capability(self, _: str) -> tuple[int, int]:
        return 9, 0

    def synchronize(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def said_by(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    cuda.install(monkeypatch)
    answers: list[Answer] = []
    selftest.answer(answers.append, 3, NAMES[1:])
    return answers


def test_a_child_runs_the_tests_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = said_by(Cuda(), monkeypatch)
    assert [a["begin"] for a in answers if "begin" in a] == NAMES[1:]
    assert [a["name"] for a in answers if "name" in a] == NAMES[1:]


def test_a_child_leaves_a_broken_context(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = said_by(Cuda(breaks_after=2), monkeypatch)
    assert [a["name"] for a in answers if "name" in a] == NAMES[1:4]


@pytest.mark.parametrize(
    ("cuda", "reason"),
    [
        (Cuda(error="CUDA error: out of memory"), selftest.FULL),
        (Cuda(error="CUDA-capable device(s) is/are busy or unavailable"), selftest.BUSY),
        (Cuda(free=selftest.ROOM - 1), selftest.FULL),
    ],
)
def test_a_child_on_a_gpu_that_is_taken(
    cuda: Cuda, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said_by(cuda, monkeypatch) == [{"unavailable": reason}]


def test_a_child_does_not_hide_what_else_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="driver version is insufficient"):
        said_by(Cuda(error="CUDA driver version is insufficient"), monkeypatch)


# --- running them ---


def good(names: Iterable[str], error: float = 1e-3) -> list[Answer]:
    """What a child says of tests that pass."""
    rows: list[Answer] = []
    for name in names:
        rows += [{"begin": name}, {"name": name, "status": "passed", "error": error}]
    return rows


class Children:
    """Answers for the processes of self-tests, in order, by GPU."""

    def __init__(self, **answers: Sequence[Callable[[Sequence[str]], Ended]]) -> None:
        self.answers = {name: list(several) for name, several in answers.items()}
        self.asked: list[list[str]] = []

    def __call__(self, words: Sequence[str], _limit: float) -> Ended:
        assert words[0] == "selftest"
        self.asked.append(list(words[2:]))
        several = self.answers[f"gpu{words[1]}"]
        return (several.pop(0) if several else lambda names: ended(*good(names)))(words[2:])


def rows(children: Children, *gpus: Gpu, limit: float = 60.0) -> dict[str, Check]:
    return {row.name: row for row in testing.self_tests(gpus or (gpu(),), limit, children)}


def test_without_a_gpu_all_are_skipped() -> None:
    found = testing.self_tests((), 60.0, Children())
    assert [row.name for row in found] == NAMES
    assert {(row.status, row.detail) for row in found} == {("skipped", "no GPU")}


def test_all_pass_in_one_process() -> None:
    children = Children(gpu0=[])
    found = rows(children)
    assert {row.status for row in found.values()} == {"passed"}
    assert found["merge"].detail == "error 1.0e-03, limit 1e-02"
    assert children.asked == [NAMES]


def test_one_that_crashes_does_not_hide_the_others() -> None:
    crash = ended(*good(NAMES[:2]), {"begin": NAMES[2]}, returncode=-11)
    children = Children(gpu0=[lambda _: crash])
    found = rows(children)
    assert [name for name, row in found.items() if row.status == "failed"] == [NAMES[2]]
    assert found[NAMES[2]].detail == "the process was ended by SIGSEGV"
    assert found[NAMES[2]].hint is not None
    assert children.asked == [NAMES, NAMES[3:]]


def test_a_poisoned_context_is_left_behind() -> None:
    bad = {"name": NAMES[0], "status": "failed", "detail": "illegal access", "hint": "report"}
    children = Children(gpu0=[lambda _: ended({"begin": NAMES[0]}, bad)])
    found = rows(children)
    assert found[NAMES[0]] == failed(NAMES[0], "illegal access", "report")
    assert {found[name].status for name in NAMES[1:]} == {"passed"}
    assert children.asked == [NAMES, NAMES[1:]]


def test_processes_that_never_answer_come_to_an_end() -> None:
    silent = [lambda _: ended(returncode=1, said="ImportError: no libcudart")] * len(NAMES)
    found = rows(Children(gpu0=silent))
    assert {row.detail for row in found.values()} == {"ImportError: no libcudart"}
    mute = [lambda _: ended()] * len(NAMES)
    assert {row.status for row in rows(Children(gpu0=mute)).values()} == {"failed"}


def test_one_that_hangs_fails_and_the_rest_is_skipped_when_time_is_over() -> None:
    hangs = ended({"begin": NAMES[0]}, returncode=None)
    children = Children(gpu0=[lambda _: hangs])
    found = rows(children, limit=60.0)
    assert found[NAMES[0]].detail == "no answer in time"
    assert rows(Children(gpu0=[]), limit=0.0)[NAMES[1]].detail == "the time was over"


def test_a_full_gpu_is_skipped_and_not_touched() -> None:
    children = Children(gpu0=[])
    found = rows(children, gpu(free=NEEDED - 1))
    assert {(row.status, row.detail) for row in found.values()} == {
        ("skipped", "GPU memory is full")
    }
    assert children.asked == []


def test_a_gpu_that_fills_meanwhile_is_skipped() -> None:
    full = ended({"unavailable": "GPU memory is full"})
    found = rows(Children(gpu0=[lambda _: full]))
    assert {row.status for row in found.values()} == {"skipped"}


def test_several_gpus_are_one_row_with_the_worst_error() -> None:
    worse = lambda names: ended(*good(names, 5e-3))  # noqa: E731
    found = rows(Children(gpu0=[], gpu1=[worse], gpu2=[]), gpu(0), gpu(1), gpu(2))
    assert found["merge"] == passed("merge", "error 5.0e-03, limit 1e-02")


def test_the_gpu_that_differs_is_named() -> None:
    wrong = {"name": "merge", "status": "failed", "detail": "error 1e+00", "hint": "report"}
    bad = lambda names: ended(wrong, *good(n for n in names if n != "merge"))  # noqa: E731
    found = rows(Children(gpu0=[], gpu1=[bad]), gpu(0), gpu(1), gpu(2, free=0))
    assert found["merge"] == failed("merge", "GPU 1: error 1e+00", "report")
    assert found["indexer, top-k"].detail == (
        "GPU 0, 1: error 1.0e-03, limit 0e+00; GPU 2: GPU memory is full"
    )


# --- GPUs, torch, vLLM ---


def test_gpus_with_what_is_free_of_them() -> None:
    found = gpus_of(ended(TORCH, {"gpu": H200}), {"u0": 3 * GIB})
    assert found == (gpu(free=3 * GIB),)
    assert gpus_of(ended(TORCH, {"gpu": H200}), {}) == (gpu(),)


SEEN = {
    "a GPU": (ended(TORCH, {"gpu": H200}), True, "passed", "1 × NVIDIA H200"),
    "none": (ended(TORCH, {"none": ""}), False, "skipped", "no GPU"),
    "torch for the CPU": (ended({"torch": "2.13.0+cpu", "cuda": None}, {"none": ""}), True,
                          "skipped", "no GPU"),
    "an old driver": (ended(TORCH, {"none": "driver too old (found version 12040)"}), True,
                      "failed", "torch cannot use it: driver too old (found version 12040)"),
    "a crash": (ended(TORCH, returncode=-6), True, "failed", "was ended by SIGABRT"),
}  # fmt: skip


@pytest.mark.parametrize("case", SEEN)
def test_whether_torch_sees_the_gpus(case: str) -> None:
    answer, there, status, detail = SEEN[case]
    row = gpu_check(answer, gpus_of(answer, {}), devices_there=there)
    assert row.status == status
    assert row.detail.endswith(detail)


CAPABILITIES = {
    ("9.0",): ("passed", "9.0; serving starts at 8.9"),
    ("12.0", "12.0"): ("passed", "12.0; serving starts at 8.9"),
    ("8.9",): ("passed", "8.9; serving starts at 8.9"),
    ("8.6",): ("failed", "8.6 (GPU 0): the attention kernels run, but a sparse MLA model is not "
               "served: vLLM's own _fused_indexer_q_rope_quant_kernel needs fp8e4nv, which starts "
               "at 8.9"),
    ("12.0", "8.0"): ("failed", "8.0 (GPU 1): the attention kernels run, but a sparse MLA model is "
                      "not served: vLLM's own _fused_indexer_q_rope_quant_kernel needs fp8e4nv, "
                      "which starts at 8.9"),
    ("7.5",): ("failed", "7.5 (GPU 0): the attention kernels need 8.0"),
    (): ("skipped", "no GPU"),
}  # fmt: skip


@pytest.mark.parametrize("capabilities", CAPABILITIES)
def test_which_capabilities_serve(capabilities: tuple[str, ...]) -> None:
    row = capability_check(tuple(gpu(i, text) for i, text in enumerate(capabilities)))
    assert (row.status, row.detail) == CAPABILITIES[capabilities]


def test_torch_that_is_absent_or_broken() -> None:
    assert torch_check("absent", ended(returncode=1)).detail == "absent"
    broken = torch_check("2.11.0", ended(returncode=1, said="OSError: libtorch.so: no such file"))
    assert broken.status == "failed"
    assert broken.detail == "2.11.0 cannot be imported: OSError: libtorch.so: no such file"
    assert torch_check("2.11.0", ended(TORCH)) == passed("torch", "2.11.0, built for CUDA 13.0")


def statuses(answer: Ended) -> dict[str, tuple[str, str]]:
    return {row.name: (row.status, row.detail) for row in registration_checks(answer)}


NAMES_OK = {"step": "names", "count": 40, "missing": []}
STOCK = {"step": "indexer", "choice": "stock", "reason": "DeepGEMM passed its self-test"}


def test_registered_with_all_names_and_an_indexer() -> None:
    answer = ended(REGISTERED, {"begin": "names"}, NAMES_OK, {"begin": "indexer"}, STOCK)
    assert statuses(answer) == {
        "registration": ("passed", "vLLM 0.26.0: all registered"),
        "vLLM's names": ("passed", "40 that the parts use are as known"),
        "choosing an indexer": ("passed", "stock: DeepGEMM passed its self-test"),
    }
    indexer = parts_of(answer)[1]
    assert (indexer.state, indexer.reason) == ("stock", "DeepGEMM passed its self-test")


def test_a_name_that_is_gone_fails() -> None:
    lacking = NAMES_OK | {"missing": ["vllm.x.y is gone"]}
    found = statuses(ended(REGISTERED, {"begin": "names"}, lacking, {"begin": "indexer"}, STOCK))
    assert found["vLLM's names"] == ("failed", "vllm.x.y is gone")


def test_many_names_that_are_gone_are_counted() -> None:
    lacking = NAMES_OK | {"missing": ["a", "a", *"bcde"]}
    found = statuses(ended(REGISTERED, {"begin": "names"}, lacking))
    assert found["vLLM's names"] == ("failed", "a; b; c (and 2 more)")


def test_deepgemm_that_crashes_is_a_row() -> None:
    answer = ended(
        REGISTERED, {"begin": "names"}, NAMES_OK, {"begin": "indexer"}, returncode=-11
    )  # fmt: skip
    found = {row.name: row for row in registration_checks(answer)}["choosing an indexer"]
    assert found.detail == "the process was ended by SIGSEGV"
    assert found.hint == "GLM5_INDEXER=triton keeps DeepGEMM out"


def test_a_vllm_that_does_not_import_is_one_failed_row() -> None:
    found = statuses(ended(REGISTERED, {"begin": "names"}, returncode=-9))
    assert found["vLLM's names"] == ("failed", "the process was ended by SIGKILL")
    assert found["choosing an indexer"] == ("skipped", "not reached")


@pytest.mark.parametrize("idle", ["no GPU", "no part is registered"])
def test_without_a_gpu_nothing_more_is_asked(idle: str) -> None:
    found = statuses(ended(REGISTERED, {"idle": idle}))
    assert found["vLLM's names"] == found["choosing an indexer"] == ("skipped", idle)


def test_a_full_gpu_leaves_the_indexer_open() -> None:
    unknown = {"step": "indexer", "unknown": "GPU memory is full"}
    answer = ended(REGISTERED, {"begin": "names"}, NAMES_OK, {"begin": "indexer"}, unknown)
    assert statuses(answer)["choosing an indexer"] == ("skipped", "GPU memory is full")
    assert parts_of(answer)[1].state == "registered"


def test_an_unknown_vllm_is_refused_in_one_line() -> None:
    line = "vLLM 0.99.0 is not known: install vLLM 0.26.0"
    parts = [part | {"state": "refused", "reason": line} for part in PARTS]
    found = statuses(ended({"vllm": "0.99.0", "message": line, "parts": parts}))
    assert found == {"registration": ("failed", line)}


def test_a_part_that_is_refused_fails_with_its_reason() -> None:
    parts = [PARTS[0], PARTS[1] | {"state": "refused", "reason": "no CustomOp"}]
    found = statuses(ended(REGISTERED | {"parts": parts}))
    assert found == {"registration": ("failed", "indexer: no CustomOp")}


def test_a_setting_that_means_nothing_fails() -> None:
    problem = "GLM5_INDEXER=x: must be one of auto, stock, triton"
    parts = [PARTS[0], PARTS[1] | {"state": "refused", "reason": problem}]
    (row,) = registration_checks(ended(REGISTERED | {"parts": parts}))
    assert (row.status, row.detail) == ("failed", f"indexer: {problem}")
    assert row.hint is not None
    assert "set it to one of these" in row.hint


def test_a_registration_that_raises_fails() -> None:
    said = "Traceback (most recent call last):\n  …\nvllm.some.OddError: no such thing"
    found = statuses(ended(returncode=1, said=said))
    assert found == {"registration": ("failed", "register() failed: OddError: no such thing")}


# --- what is installed ---


def entry_points_are(monkeypatch: pytest.MonkeyPatch, *values: str) -> None:
    points = [EntryPoint(v.split(":")[0], v, environment.GROUP) for v in values]
    monkeypatch.setattr(environment, "entry_points", lambda group: points if group else [])


def test_the_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry_points_are(monkeypatch, "other:register", "glm5_kernel:register")
    assert environment.entry_point({}).status == "passed"
    assert environment.entry_point({"VLLM_PLUGINS": "other,glm5_kernel"}).status == "passed"
    left_out = environment.entry_point({"VLLM_PLUGINS": "other"})
    assert left_out.detail == "VLLM_PLUGINS=other leaves glm5_kernel out"
    entry_points_are(monkeypatch, "other:register")
    assert environment.entry_point({}).detail == "vllm.general_plugins names no glm5_kernel"


def test_the_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'x.c:1:10: fatal error: Python.h: no such file' >&2\nexit 1")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    row = environment.compiler(needed=True)
    assert (row.status, row.detail) == ("failed", "cc: Python.h: no such file")
    assert row.hint is not None
    assert "-dev" in row.hint
    assert environment.compiler(needed=False).status == "skipped"
    monkeypatch.setenv("CC", str(tmp_path / "none"))
    assert "none" in environment.compiler(needed=True).detail


def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """An nvidia-smi that does this."""
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def test_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(environment, "_DRIVER", tmp_path / "none")
    tool(tmp_path, monkeypatch, "printf 'GPU-a, 1024\\nGPU-b, [N/A]\\n'")
    assert environment.free_memory() == {"a": GIB}
    tool(tmp_path, monkeypatch, "echo 580.95.05")
    assert environment.driver() == "580.95.05"
    tool(tmp_path, monkeypatch, "echo 'has failed because it could not communicate'; exit 9")
    assert environment.free_memory() == {}
    assert environment.driver() == "absent"
    proc = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build"
    (tmp_path / "version").write_text(proc)
    monkeypatch.setattr(environment, "_DRIVER", tmp_path / "version")
    assert environment.driver() == "570.86.15"


# --- the whole, in processes of its own ---


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing installed."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


class Site:
    """A folder on PYTHONPATH that stands for site-packages."""

    def __init__(self, folder: Path, python: Path) -> None:
        self.folder, self.python = folder, python
        folder.mkdir()

    def install(self, name: str, version: str, code: str = "", entry_points: str = "") -> None:
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(entry_points)
        if code:
            (self.folder / f"{name}.py").write_text(code)

    def doctor(self, *words: str, expect: int) -> str:
        paths = os.pathsep.join((str(self.folder), str(KERNEL)))
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            [self.python, "-m", "glm5_kernel", *(words or ("doctor", "--json"))],
            env={**kept, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout if expect != 2 else done.stderr


@pytest.fixture
def site(tmp_path: Path, bare_python: Path) -> Site:
    return Site(tmp_path / "site", bare_python)


CPU_TORCH = """
print("noise of a library")
__version__ = "2.13.0+cpu"
version = type("version", (), {"cuda": None})
class cuda:
    is_available = staticmethod(lambda: False)
    def init():
        raise AssertionError("Torch not compiled with CUDA enabled")
"""
ENTRY = "[vllm.general_plugins]\nglm5_kernel = glm5_kernel:register\n"


def cpu_host(site: Site, vllm: str = "0.32.0+cpu") -> None:
    site.install("torch", "2.13.0+cpu", CPU_TORCH)
    site.install("vllm", vllm)
    site.install("glm5-kernel", "0.1.0", entry_points=ENTRY)


def checks_of(document: str) -> dict[str, dict[str, Any]]:
    found = json.loads(document)
    assert found.keys() == {"ok", "versions", "gpus", "parts", "checks"}
    assert all(isinstance(version, str) for version in found["versions"].values())
    for part in found["parts"]:
        assert part.keys() == {"name", "state", "reason"}
        assert part["state"] in {"registered", "stock", "off", "refused"}
    for row in found["checks"]:
        assert row.keys() == {"name", "status", "detail", "hint"}
        assert row["status"] in {"passed", "failed", "skipped"}
        assert (row["hint"] is not None) == (row["status"] == "failed")
    failures = [row for row in found["checks"] if row["status"] == "failed"]
    assert found["ok"] is (not failures)
    return {row["name"]: row for row in found["checks"]}


def test_a_host_without_a_gpu_is_well(site: Site) -> None:
    cpu_host(site)
    text = site.doctor(expect=0)
    checks = checks_of(text)
    assert {checks[name]["status"] for name in NAMES} == {"skipped"}
    assert {checks[name]["detail"] for name in NAMES} == {"no GPU"}
    assert checks["registration"]["status"] == "passed"
    document = json.loads(text)
    assert document["versions"]["vllm"] == "0.32.0+cpu"
    assert document["versions"]["triton"] == document["versions"]["gguf"] == "absent"
    assert {part["state"] for part in document["parts"]} == {"stock"}


def test_an_unknown_vllm_fails_with_the_versions_that_work(site: Site) -> None:
    cpu_host(site, vllm="0.99.0")
    row = checks_of(site.doctor(expect=1))["registration"]
    assert row["status"] == "failed"
    assert "0.99.0" in row["detail"]
    assert "0.26.0" in row["detail"]
    assert "\n" not in row["detail"]


def test_what_is_registered_without_a_gpu(site: Site) -> None:
    cpu_host(site, vllm="0.26.0")
    text = site.doctor(expect=0)
    states = {part["name"]: part["state"] for part in json.loads(text)["parts"]}
    assert states["attention"] == states["indexer"] == "registered"
    assert checks_of(text)["vLLM's names"]["detail"] == "no GPU"


GPU_TORCH = """
__version__ = "2.11.0"
version = type("version", (), {"cuda": "13.0"})
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 0)
    get_device_capability = staticmethod(lambda: (12, 0))
def zeros(*_, **__): ...
"""


BLIND_TORCH = """
__version__ = "2.11.0"
version = type("version", (), {"cuda": "13.0"})
class cuda:
    is_available = staticmethod(lambda: False)
    def init():
        raise RuntimeError("No CUDA GPUs are available\\nand more")
"""


def test_torch_that_sees_no_gpu_says_why_itself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    (site.folder / "torch.py").write_text(BLIND_TORCH)
    monkeypatch.setenv("PYTHONPATH", f"{site.folder}{os.pathsep}{KERNEL}")
    done = run_child(["gpus"], 30.0)
    assert (done.returncode, done.said) == (0, "")
    row = gpu_check(done, (), devices_there=True)
    assert row.status == "failed"
    assert row.detail.endswith("torch cannot use it: No CUDA GPUs are available")
    assert "driver that is too old" in row.hint
    chosen = gpu_check(done, (), devices_there=True, visible="9")
    assert chosen.hint.startswith("CUDA_VISIBLE_DEVICES=9 names no GPU of this host")


def test_a_vllm_without_its_modules_and_the_indexer_of_sm120(site: Site) -> None:
    cpu_host(site, vllm="0.26.0")
    (site.folder / "torch.py").write_text(GPU_TORCH)
    text = site.doctor(expect=1)
    row = checks_of(text)["vLLM's names"]
    assert row["status"] == "failed"
    assert row["detail"].startswith("vllm.v1.attention.backends.registry does not import")
    indexer = next(part for part in json.loads(text)["parts"] if part["name"] == "indexer")
    assert indexer["state"] == "registered"
    assert indexer["reason"] == "the GPU has capability 12.x"


def test_nothing_installed_at_all(site: Site) -> None:
    checks = checks_of(site.doctor(expect=1))
    assert [name for name, row in checks.items() if row["status"] == "failed"] == [
        "torch", "vLLM", "entry point",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise OSError('libtorch_cuda.so: cannot open')", "libtorch_cuda.so: cannot open"),
        ("import os; os.abort()", "the process was ended by SIGABRT"),
        ("import time; time.sleep(99)", "no answer in time"),
    ],
)
def test_torch_that_does_not_import(site: Site, code: str, why: str) -> None:
    cpu_host(site)
    (site.folder / "torch.py").write_text(code)
    row = checks_of(site.doctor("doctor", "--json", "--timeout", "5", expect=1))["torch"]
    assert row["status"] == "failed"
    assert row["detail"].endswith(why)


def test_the_table(site: Site) -> None:
    cpu_host(site)
    text = site.doctor("doctor", expect=0)
    assert "  vLLM              0.32.0+cpu\n" in text
    assert text.splitlines()[-1].startswith("ok: ")


def test_the_other_words(site: Site) -> None:
    assert site.doctor("--version", expect=0) == f"glm5-kernel {glm5_kernel.__version__}\n"
    assert "doctor" in site.doctor("--help", expect=0)
    for words in (("bogus",), ("--bogus",)):
        said = site.doctor(*words, expect=2)
        assert "python -m glm5_kernel" in said
    assert "'doctor', 'inspect', 'make-tiny'" in site.doctor("bogus", expect=2)
    assert "--timeout" in site.doctor("doctor", "--help", expect=0)


def test_a_child_ends_with_what_it_started(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    code = "import subprocess; subprocess.run(['sleep', '60'])"
    (site.folder / "torch.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{site.folder}{os.pathsep}{KERNEL}")
    done = run_child(["gpus"], 3.0)
    assert (done.returncode, done.answers) == (None, ())


def test_an_interruption_waits_for_no_child(monkeypatch: pytest.MonkeyPatch, site: Site) -> None:
    """Children do not get the terminal's Ctrl-C themselves."""
    (site.folder / "torch.py").write_text("import time; time.sleep(600)")
    monkeypatch.setenv("PYTHONPATH", f"{site.folder}{os.pathsep}{KERNEL}")
    monkeypatch.setattr(child, "_ending", threading.Event())
    ends: list[Ended] = []

    def interrupted() -> None:
        with ThreadPoolExecutor(1) as pool, children_end_with_it():
            waiting = pool.submit(run_child, ["gpus"], 300.0)
            waiting.add_done_callback(lambda done: ends.append(done.result()))
            while not child._running:
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [each.returncode for each in ends] == [-signal.SIGKILL]
    assert run_child(["gpus"], 300.0).why() == "interrupted"
    assert not child._running


def test_an_exception_of_several_lines_is_named() -> None:
    said = "Traceback …\nx.y.ImportError: libcudart.so.13: cannot open\nIt is said to be there\n"
    assert ended(returncode=1, said=said).why() == "ImportError: libcudart.so.13: cannot open"
    assert ended(returncode=1, said="something\nelse\n").why() == "else"


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "1e300", "x"])
def test_a_limit_that_is_none(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main([f"--timeout={seconds}"])
    assert caught.value.code == 2
    assert f"argument --timeout: {seconds}: 1 to 86400 are right" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [None, KeyError("Version")])
def test_a_package_with_damaged_metadata(
    answer: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(_name: str) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr("glm5_kernel.compat.versions.version", version)
    assert environment.versions()["vllm"] == environment.DAMAGED


# --- a kernel that fails, on a host with GPUs ---


def with_gpus(monkeypatch: pytest.MonkeyPatch, children: Children) -> None:
    def run(words: Sequence[str], limit: float) -> Ended:
        if words[0] == "gpus":
            return ended(TORCH, {"gpu": H200})
        if words[0] == "register":
            return ended(REGISTERED, {"begin": "names"}, NAMES_OK, {"begin": "indexer"}, STOCK)
        return children(words, limit)

    monkeypatch.setattr(command, "run_child", run)
    entry_points_are(monkeypatch, "glm5_kernel:register")
    versions = {"python": "3.12.3", "vllm": "0.26.0", "torch": "2.11.0", "driver": "580.95"}
    monkeypatch.setattr(environment, "versions", lambda: versions)
    monkeypatch.setattr(environment, "free_memory", lambda: {"u0": 3 * GIB})
    monkeypatch.setattr(environment, "compiler", lambda needed: passed("C compiler", str(needed)))


def test_all_is_well_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with_gpus(monkeypatch, Children(gpu0=[]))
    assert command.main([]) == 0
    text = capsys.readouterr().out
    assert "  0  NVIDIA H200  capability 9.0  140.0 GiB, 3.0 free\n" in text
    assert "  indexer    stock       DeepGEMM passed its self-test\n" in text
    assert text.endswith("ok: 16 passed\n")


def test_a_failing_kernel_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = {"name": "merge", "status": "failed", "detail": "error 1e+00", "hint": "report this"}
    others = [name for name in NAMES if name != "merge"]
    with_gpus(monkeypatch, Children(gpu0=[lambda _: ended(wrong, *good(others))]))
    assert command.main([]) == 1
    text = capsys.readouterr().out
    assert "  FAILED  merge                    error 1e+00\n" in text
    assert "                                   → report this\n" in text
    assert text.endswith("not ok: 1 failed (merge), 15 passed\n")


def test_long_rows_wrap_and_stay_aligned() -> None:
    report = Report(
        {"python": "3.12"}, (), (),
        (passed("a"), skipped("long name", "no GPU"), failed("b", "x " * 60, "do this " * 20)),
    )  # fmt: skip
    lines = render(report, 72).splitlines()
    assert max(map(len, lines)) <= 72
    body = lines[lines.index("checks") + 1 : -2]
    starts = {line.index(line[19:].lstrip()) for line in body if len(line) > 19}
    assert min(starts) == 21
    assert not report.ok
