"""On a GPU machine: boot a host with its GPUs inside, deploy GLM-5 to it, and walk the whole path.

usage: python3 tests/gpu/host/run.py --out DIR [--tp 2] [--gpus INDEX …] [--eager] [--graphs]
           [--explain]

Wants what `pack.sh` packed and `unpack.sh` unpacked. Makes a GLM-5 GGUF of at least 1 GB in three
files with GLM-5's widths (once), boots the host (once), writes the inventory and walks (walk.py).
With --tp 2 the walk is short, then vLLM's custom all-reduce is switched on; with --graphs that
server is compiled and has CUDA graphs, and its memory is compared once more. DIR gets transcripts,
timings and results.json; the status is 0 where everything was as it should be.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "deploy"), str(ROOT / "kernel")]

FIRM = 6.0
"""A golden answer counts where its margin is so many times what computing in bf16 moves: an fp8
cache and activations of 8 bits together move it some four times as far."""

SHAPE = ("--dims", "real", "--layers", "2", "--experts", "16", "--vocab", "8192", "--split", "3")
UNIT = "glm5-glm-5.service"
ENGINE_PATH = (
    "/opt/torch/.venv/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin"
    ":/opt/gcc/bin"
)
ENGINE = {
    "PATH": ENGINE_PATH,
    "CUDA_HOME": "/usr/local/cuda",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
    # NVLink multicast can take a shared host out of service.
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
}
# NCCL falls back in silence; so it tells by what way its GPUs reach each other.
TOLD = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,P2P"}
CUSTOM: dict[str, Any] = {"serve": {"args": {"disable-custom-all-reduce": False}}}
GRAPHS = {"serve": {"args": {**CUSTOM["serve"]["args"], "enforce-eager": None}}}
UNHARDENED = {"unit": {"hardening": False}}
# A mistake that nothing but the server itself notices.
WRONG_PARSER = {"serve": {"args": {"enable-auto-tool-choice": True, "tool-call-parser": "glm"}}}
EXPLAINED = "unknown-parser"
GRAPHS_MEMORY = "memory-graphs.json"


@dataclass
class Session:
    """Folders, and what was seen."""

    place: Path
    site: Path
    models: Path
    host: Path
    out: Path
    python: str
    began: float = field(default_factory=time.monotonic)
    seconds: dict[str, float] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[name] = round(time.monotonic() - start, 1)
        self.say(f"{name}: {self.seconds[name]} s")


def make_model(session: Session, shape: Sequence[str]) -> Path:
    """The model's folder; made where it is not there yet. Waits for another that is making it."""
    session.models.mkdir(parents=True, exist_ok=True)
    with (session.models / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return _made_model(session, shape)


def device() -> str:
    """Where golden tokens are computed."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _made_model(session: Session, shape: Sequence[str]) -> Path:
    folder = session.models / "glm-5"
    if (folder / "made").exists():
        return folder
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'kernel'}:{session.site}"}
    log = session.out / "make-tiny.txt"
    with session.timed("model"), log.open("w") as file:
        command = [session.python, "-m", "glm5_kernel", "make-tiny", str(folder), *shape]
        command += ["--device", device()]
        # Without a firm golden answer it ends with 1, and the model is good all the same.
        done = subprocess.run(command, env=env, stdout=file, stderr=file, check=False)
    if done.returncode and not list(folder.glob("*.gguf")):
        raise SystemExit(f"make-tiny ended with {done.returncode}: {log.read_text()[-2000:]}")
    for path in (session.models, folder):
        path.chmod(0o755)
    for path in folder.iterdir():
        path.chmod(0o644)
    (folder / "made").touch()
    return folder


def firm_golden(folder: Path, out: Path, times: float = FIRM) -> Path | None:
    """A golden.json of the answers that rounding cannot turn; None where there is none."""
    path = folder / "golden.json"
    if not path.is_file():
        return None
    document = json.loads(path.read_text())
    kept = [each for each in document["prompts"] if each["margin"] >= times * each["rounding"]]
    if not kept:
        return None
    out.write_text(json.dumps({**document, "prompts": kept}))
    return out


def boot(session: Session) -> None:
    """The host, where none answers."""
    if (session.host / "id").exists() and on_host(session, "there", "true", 15) == 0:
        return
    with session.timed("boot"):
        script = session.place / "gpu_host.sh"
        done = subprocess.run(
            ["bash", str(script), str(session.place / "debs")],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        said = f"{done.stdout}{done.stderr}"
        (session.out / "boot.txt").write_text(said)
    if done.returncode:
        raise SystemExit(f"the host did not boot:\n{said[-3000:]}")


def write_tools(session: Session) -> Path:
    """Commands that run the host's ssh and rsync here, where they are not installed."""
    folder = session.place / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    top = session.host / "x"
    libraries = f"{top}/usr/lib/x86_64-linux-gnu:{top}/lib/x86_64-linux-gnu"
    for name in ("ssh", "rsync", "ssh-keygen"):
        if not (top / "usr/bin" / name).exists():
            continue
        path = folder / name
        path.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={libraries} exec {top}/usr/bin/{name} "$@"\n')
        path.chmod(0o755)
    return folder


def write_inventory(
    session: Session, folder: Path, golden: Path | None, options: argparse.Namespace
) -> Path:
    """The inventory of inventory.py for this machine."""
    import yaml

    from tests.gpu.host.inventory import NAME, inventory

    first = sorted(folder.glob("*.gguf"))[0]
    document = inventory(
        str(folder), first.name, golden or folder / "golden.json", session.python,
        site=[str(session.site)], gpus=options.tp,
        environment={**ENGINE, **TOLD} if options.tp > 1 else ENGINE,
        ssh={
            "address": "127.0.0.1", "port": 2222, "user": "root",
            "identity_file": str(session.host / "id"), "known_hosts": str(session.host / "known"),
        },
    )  # fmt: skip
    override = document["hosts"][NAME]["override"]
    if golden is None:
        override["smoke"]["golden"] = None
    if options.eager:
        override["serve"]["args"]["enforce-eager"] = True
    if options.gpus:
        override["gpus"]["devices"] = options.gpus
    path = session.out / "inventory.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def noted(
    session: Session, check: Callable[..., None] | None, file: str = "memory.json"
) -> Callable[..., None]:
    """The check, whose complaint is written down and does not end the walk.

    Args:
        file: for a memory plan beside what was measured.
    """
    assert check is not None

    def lenient(found: dict[str, Any], before: Mapping[str, dict[str, Any]]) -> None:
        from tests.gpu.host.walk import WalkError

        if "memory" in found:
            (session.out / file).write_text(json.dumps(found["memory"], indent=1))
        try:
            check(found, before)
        except WalkError as error:
            session.problems.append(str(error))
            session.say(f"PROBLEM {error}")

    return lenient


def chosen_steps(session: Session, tp: int, *, graphs: bool = False) -> list[Any]:
    """All steps of the walk, or with several GPUs the few that differ there.

    With `graphs` the second server has CUDA graphs.

    A plan or a benchmark that is not right is noted, and the walk goes on; before the server goes
    down it is looked at.
    """
    from tests.gpu.host.walk import Step, another, ready, steps

    whole = {step.name: step for step in steps(memory=True)}
    planned = whole["memory"]
    for name in ("memory", "bench"):
        check = noted(session, whole[name].check)
        whole[name] = dataclasses.replace(whole[name], exit_code=None, check=check)
    whole["status"] = dataclasses.replace(whole["status"], check=lambda *_: look(session))
    if tp == 1:
        return list(whole.values())
    short = [whole[name] for name in ("preflight", "up", "smoke", "memory", "logs")]
    custom = GRAPHS if graphs else CUSTOM
    memory = dataclasses.replace(
        planned, name="custom-memory", override=custom, exit_code=None,
        check=noted(session, planned.check, GRAPHS_MEMORY),
    )  # fmt: skip
    return [
        *short,
        Step("custom-all-reduce", ("up",), custom, check=another),
        # `up` has made the smoke test, too; time is short where graphs are captured.
        memory if graphs else Step("custom-smoke", ("smoke",), custom, check=ready),
        Step("custom-logs", ("logs", "-n", "200"), custom),
        dataclasses.replace(whole["status"], override=custom),
        Step("down", ("down", "--yes"), custom),
    ]


def on_host(session: Session, name: str, command: str, seconds: float = 120) -> int | None:
    """Keep what a command says on the host; it is no part of the verdict.

    Returns: its exit code; None where it could not be run, or took too long.
    """
    code = None
    ssh = [
        str(session.place / "bin/ssh"), "-q", "-p", "2222", "-i", str(session.host / "id"),
        "-o", f"UserKnownHostsFile={session.host / 'known'}", "-o", "BatchMode=yes",
        "root@127.0.0.1", command,
    ]  # fmt: skip
    try:
        done = subprocess.run(
            ssh, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip
        code = done.returncode
        said = f"$ {command}\n{done.stdout}{done.stderr}[exit {code}]\n"
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"$ {command}\n{type(error).__name__}: {error}\n"
    (session.out / f"host-{name}.txt").write_text(said)
    return code


def look(session: Session) -> None:
    """The unit, its exposure and its journal, the doctor and the GPUs."""
    on_host(session, "unit", f"systemctl cat {UNIT}; systemctl show {UNIT}")
    on_host(session, "security", f"systemd-analyze security --no-pager {UNIT}")
    on_host(session, "journal", f"journalctl --no-pager -o short-iso -u {UNIT} | tail -n 4000")
    on_host(session, "gpus", "nvidia-smi; nvidia-smi topo -m")
    process = f"/proc/$(systemctl show -p MainPID --value {UNIT})"
    status = f"grep -E 'Cap|Seccomp|NoNewPrivs' {process}/status; ls -l {process}/ns /dev/shm"
    on_host(session, "process", f"cat {process}/limits; {status}")
    # A kernel without BPF for cgroups lets every device through, and systemd says nothing.
    closed = "systemd-run -q --wait --pipe -p DevicePolicy=closed"
    on_host(session, "devices", f"{closed} head -c 0 /dev/nvidiactl && echo 'not enforced here'")


def judge_all_reduce(session: Session) -> None:
    """Whether the two servers really summed as they were told: the second by vLLM's own way."""
    from tests.gpu.host.page import all_reduces

    journal = (session.out / "host-journal.txt").read_text()
    found = all_reduces(journal)
    if found != [["PYNCCL"], ["CUSTOM", "PYNCCL"]]:
        session.problems.append(f"custom all-reduce was to be off, then on; vLLM used {found}")


def explain(session: Session, inventory: Path) -> None:
    """A server that refuses its arguments: `up` goes back and says why.

    Before a switch `up` has vLLM read the arguments only where a server runs, and none does now.
    The release that it goes back to is started, though it was down.
    """
    from tests.gpu.host.inventory import NAME
    from tests.gpu.host.walk import Step, Walk, WalkError

    walk = Walk(inventory, NAME, session.out / "explain", program(session))
    try:
        walk.run([
            Step("refused", ("up",), WRONG_PARSER, exit_code=4),
            Step("explained", ("logs", "--explain", "-n", "1000"), WRONG_PARSER),
            Step("down", ("down", "--yes"), WRONG_PARSER),
        ])  # fmt: skip
    except WalkError as error:
        session.problems.append(f"explain: {error}")
    text = "".join(path.read_text() for path in sorted(walk.out.glob("*.txt")))
    if EXPLAINED not in text:
        session.problems.append(f"explain: {EXPLAINED} is not named anywhere")


def without_hardening(session: Session, inventory: Path, failed: str) -> None:
    """Whether what failed on several GPUs serves outside systemd's sandbox, and switch it off."""
    from tests.gpu.host.inventory import NAME
    from tests.gpu.host.walk import Step, Walk, WalkError, served

    override = {**(CUSTOM if failed.startswith("custom") else {}), **UNHARDENED}
    walk = Walk(inventory, NAME, session.out / "unhardened", program(session))
    try:
        walk.run([Step("unhardened", ("up",), override, check=served)])
        said = "it serves without hardening"
    except WalkError as error:
        said = f"nor does it without hardening: {error}"
    session.problems.append(said)
    session.say(said)
    on_host(session, "unhardened", f"journalctl --no-pager -o cat -u {UNIT} | tail -n 300")
    with contextlib.suppress(WalkError):
        walk = dataclasses.replace(walk, out=session.out / "down")
        walk.run([Step("down", ("down", "--yes"), override)])


def program(session: Session) -> tuple[str, ...]:
    """What is `glm5-deploy`."""
    return (session.python, "-m", "glm5_deploy")


def walk(session: Session, inventory: Path, tp: int, explained: bool, graphs: bool = False) -> None:
    """Walk, then look, whatever came of it."""
    from tests.gpu.host.inventory import NAME
    from tests.gpu.host.walk import Walk, WalkError

    steps = chosen_steps(session, tp, graphs=graphs)
    going = Walk(inventory, NAME, session.out / "walk", program(session))
    try:
        with session.timed("walk"):
            going.run(steps)
    except WalkError as error:
        session.problems.append(str(error))
        session.say(f"PROBLEM {error}")
        look(session)
        if tp > 1:
            without_hardening(session, inventory, str(error))
        return
    if tp > 1:
        judge_all_reduce(session)
        # All of it is to go with the server.
        on_host(session, "shm", "ls -lA /dev/shm")
    if explained:
        with session.timed("explain"):
            explain(session, inventory)


def environment(session: Session) -> None:
    """For `glm5-deploy`, which has packages of its own, and the host's ssh and rsync."""
    parts = sorted((session.place / "operator").glob("*"))
    folders = [*parts, ROOT / "deploy", ROOT / "kernel", ROOT]
    sys.path[:0] = [str(part) for part in parts]
    os.environ["PYTHONPATH"] = ":".join(map(str, folders))
    os.environ["PATH"] = f"{session.place / 'bin'}:{os.environ['PATH']}"
    os.environ["HOME"] = str(session.place / "home")
    Path(os.environ["HOME"]).mkdir(parents=True, exist_ok=True)


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--place", type=Path, default=Path("/tmp/glm5"), help="unpack.sh's")
    parser.add_argument("--site", type=Path, default=Path("/opt/site"), help="vLLM's folder")
    parser.add_argument("--models", type=Path, default=Path("/opt/models"))
    parser.add_argument("--host", type=Path, default=Path("/h"), help="gpu_host.sh's")
    parser.add_argument("--python", default="/opt/torch/.venv/bin/python3", help="on the host")
    parser.add_argument("--tp", type=int, default=1, help="GPUs of the server")
    parser.add_argument("--gpus", type=int, nargs="*", help="their indices; default: the first")
    parser.add_argument("--eager", action="store_true", help="no compilation: loads in half")
    parser.add_argument("--graphs", action="store_true",
                        help="the second server of --tp 2 has CUDA graphs")  # fmt: skip
    parser.add_argument("--explain", action="store_true", help="break a server, too")
    parser.add_argument("--model-only", action="store_true", help="make the model and no more")
    parser.add_argument("--shape", nargs=argparse.REMAINDER, default=list(SHAPE),
                        help="last: arguments of make-tiny instead of ours")  # fmt: skip
    return parser.parse_args(given)


def main() -> int:
    options = parse()
    # What was seen until then is written down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options.out.mkdir(parents=True, exist_ok=True)
    session = Session(
        options.place.resolve(), options.site, options.models, options.host,
        options.out.resolve(), options.python,
    )  # fmt: skip
    folder = make_model(session, options.shape)
    if options.model_only:
        return 0
    size = sum(path.stat().st_size for path in folder.glob("*.gguf"))
    golden = firm_golden(folder, session.out / "golden.json")
    session.say(f"{size / 1e9:.2f} GB; golden tokens: {'yes' if golden else 'NONE IS FIRM'}")
    write_tools(session)
    boot(session)
    write_tools(session)
    environment(session)
    inventory = write_inventory(session, folder, golden, options)
    try:
        walk(session, inventory, options.tp, options.explain, options.graphs)
    finally:
        about = {
            "tp": options.tp, "eager": options.eager, "gguf_bytes": size,
            "golden": golden is not None, "seconds": session.seconds,
            "problems": session.problems,
        }  # fmt: skip
        (session.out / "results.json").write_text(json.dumps(about, indent=1) + "\n")
        shutil.copy(folder / "config.json", session.out / "config.json")
    for problem in session.problems:
        print(f"PROBLEM {problem}")
    return 1 if session.problems else 0


if __name__ == "__main__":
    sys.exit(main())
