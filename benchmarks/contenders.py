"""The programs that `orchestrator.py` compares: each deploys the same engine, lock, model and unit.

A contender is started anew for every run, as a user starts it; connections that one run leaves open
are closed before the next.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import yaml
from glm5_deploy.demo.bed import Bed
from glm5_deploy.stages.venv import uv_binary

from tests.e2e.deployment import API_KEY, ROOT, UNIT, Deployment

HERE = Path(__file__).parent
CHECKOUT = HERE.parent
FILES = HERE / "orchestrator"


class BenchmarkError(Exception):
    """A run did not do what it is measured for."""


@dataclass(frozen=True)
class Outcome:
    """One run of a contender.

    Args:
        changed: what it says it changed, over all hosts.
        details: more that it says about itself.
        processor: seconds of processor time, here and on the hosts.
    """

    seconds: float
    changed: int
    details: dict[str, Any] = field(default_factory=dict)
    processor: float = 0.0


class Contender(Protocol):
    """A program that deploys to hosts."""

    name: str
    version: str

    def run(self, hosts: Sequence[str]) -> Outcome:
        """Deploy to these hosts.

        Raises:
            BenchmarkError: it failed.
        """


@dataclass(frozen=True)
class Site:
    """What is deployed, and where programs keep their things.

    Args:
        deployments: ours, by the number of hosts.
        folder: wheels, model and lock; ``peer/`` has the unit, environment and secrets as files.
        home: home folder of all programs.
    """

    bed: Bed
    folder: Path
    home: Path
    deployments: Mapping[int, Deployment]

    @classmethod
    def make(cls, folder: Path, bed: Bed) -> Site:
        """Write the deployment for one host and for all hosts."""
        home = folder / "home"
        home.mkdir(parents=True)
        names = tuple(bed.hosts)
        deployments = {
            count: Deployment(folder / f"hosts-{count}", bed, names[:count])
            for count in sorted({1, len(names)})
        }
        site = cls(bed, folder / "hosts-1", home, deployments)
        for deployment in deployments.values():
            deployment.write()
        site._write_peer_files()
        return site

    def environment(self, **more: str) -> dict[str, str]:
        """Of every program: a home folder of its own, no colours."""
        dropped = ("XDG_", "ANSIBLE_", "PYINFRA_", "VIRTUAL_ENV")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
        return {**kept, "HOME": str(self.home), "NO_COLOR": "1", "COLUMNS": "120", **more}

    def variables(self) -> dict[str, str]:
        """What the playbook and the pyinfra deploy are told."""
        lock = (self.folder / "lock.txt").read_bytes()
        profile = self.deployments[1].profile
        return {
            "root": ROOT,
            "user": "glm5",
            "unit": UNIT,
            "site": str(self.folder),
            "uv": str(uv_binary()),
            "lock_mark": hashlib.sha256(lock).hexdigest()[:12],
            "health_url": f"http://127.0.0.1:{profile['serve']['port']}/health",
        }

    def _write_peer_files(self) -> None:
        """The unit and the environment that we render, with the peers' paths in them."""
        peer = self.folder / "peer"
        rendered = self.folder / "rendered"
        words = ["render", "-i", self.folder / "inventory.yml", "--output", rendered]
        _call([*OURS, *words], self.environment(**_ours_environment()))
        folder = rendered / next(iter(self.bed.hosts))
        peer.mkdir()
        for name in ("unit", "environment"):
            text = (folder / name).read_text()
            text = re.sub(rf"{ROOT}/releases/(?:[0-9a-f]+|RELEASE)", f"{ROOT}/etc", text)
            text = re.sub(rf"{ROOT}/venvs/[0-9a-f]+", f"{ROOT}/venv", text)
            (peer / name).write_text(text)
        (peer / "secrets").write_text(f'VLLM_API_KEY="{API_KEY}"\n')
        lines = [
            f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
            for path in sorted((self.folder / "model").iterdir())
        ]
        (peer / "MANIFEST.sha256").write_text("".join(lines))


OURS = (sys.executable, "-m", "glm5_deploy")


def _ours_environment() -> dict[str, str]:
    return {"PYTHONPATH": str(CHECKOUT / "deploy"), "FAKE_KEY": API_KEY}


def _call(
    argv: Sequence[str | Path], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(word) for word in argv],
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise BenchmarkError(f"{argv[0]}: status {done.returncode}\n{said}")
    return done


def _timed(
    argv: Sequence[str | Path], environment: Mapping[str, str]
) -> tuple[float, subprocess.CompletedProcess[str]]:
    started = time.monotonic()
    done = _call(argv, environment)
    return time.monotonic() - started, done


def make_venv(folder: Path, requirements: Path) -> Path:
    """An environment from a hashed requirements file, made once for each content of it."""
    mark = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    done = folder / f".made-{mark}"
    if not done.exists():
        environment = {**os.environ, "UV_SYSTEM_CERTS": "true"}
        uv = str(uv_binary())
        shutil.rmtree(folder, ignore_errors=True)
        _call([uv, "venv", "--quiet", "--python", sys.executable, folder], environment)
        words = ["--quiet", "--compile-bytecode", "--require-hashes", "--requirements"]
        python = folder / "bin/python"
        _call([uv, "pip", "install", "--python", python, *words, requirements], environment)
        done.touch()
    return folder


def _version(venv: Path, package: str) -> str:
    code = f"import importlib.metadata as m; print(m.version('{package}'))"
    return _call([venv / "bin/python", "-c", code], os.environ).stdout.strip()


class Ours:
    """``glm5-deploy up``: more than the peers do, since it also smoke-tests and confirms."""

    def __init__(self, site: Site) -> None:
        from glm5_deploy import __version__

        self.name, self.version, self._site = "glm5-deploy", __version__, site

    def run(self, hosts: Sequence[str]) -> Outcome:
        deployment = self._site.deployments[len(hosts)]
        environment = self._site.environment(**_ours_environment())
        inventory = deployment.folder / "inventory.yml"
        seconds, done = _timed([*OURS, "up", "-i", inventory, "--json"], environment)
        rows = json.loads(done.stdout)["hosts"]
        changed = sum(len(row["changes"]) for row in rows.values())
        trips = {name: row.get("round_trips") for name, row in rows.items()}
        return Outcome(seconds, changed, {"round_trips": trips})


class Ansible:
    """``ansible-playbook``, as it comes or tuned."""

    def __init__(self, site: Site, venv: Path, *, tuned: bool) -> None:
        self.name = "ansible tuned" if tuned else "ansible"
        self.version, self._site, self._venv = _version(venv, "ansible-core"), site, venv
        self._sockets = site.home / "control"
        self._config = FILES / "ansible-tuned.cfg" if tuned else None

    def run(self, hosts: Sequence[str]) -> Outcome:
        inventory = self._inventory(hosts)
        variables = json.dumps(self._site.variables())
        words = ["--inventory", inventory, "--extra-vars", variables, FILES / "playbook.yml"]
        more = {
            "PATH": f"{self._venv}/bin:{os.environ['PATH']}",
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(self._sockets),
            "ANSIBLE_LOCALHOST_WARNING": "0",
            "LC_ALL": "C.UTF-8",
        }
        if self._config is not None:
            more["ANSIBLE_CONFIG"] = str(self._config)
        environment = self._site.environment(**more)
        try:
            seconds, done = _timed([self._venv / "bin/ansible-playbook", *words], environment)
        finally:
            self._close()
        counts = re.findall(r"ok=(\d+) +changed=(\d+) +unreachable=0 +failed=0", done.stdout)
        if len(counts) != len(hosts):
            raise BenchmarkError(f"{self.name}: no recap of {len(hosts)} hosts\n{done.stdout}")
        return Outcome(seconds, sum(int(changed) for _, changed in counts))

    def _inventory(self, hosts: Sequence[str]) -> Path:
        bed = self._site.bed
        rows = {
            name: {
                "ansible_host": bed.hosts[name].address,
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(bed.key),
                "ansible_python_interpreter": "/usr/bin/python3.11",
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={bed.known_hosts}",
            }
            for name in hosts
        }
        path = self._site.home / f"ansible-{len(hosts)}.yml"
        path.write_text(yaml.safe_dump({"all": {"hosts": rows}}))
        return path

    def _close(self) -> None:
        """End the connections that ControlPersist keeps, so that every run starts cold."""
        for socket in self._sockets.glob("*"):
            subprocess.run(
                ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "any"],
                capture_output=True,
                check=False,
            )


class Pyinfra:
    """``pyinfra`` over its SSH connector."""

    name = "pyinfra"

    def __init__(self, site: Site, venv: Path) -> None:
        self.version, self._site, self._venv = _version(venv, "pyinfra"), site, venv

    def run(self, hosts: Sequence[str]) -> Outcome:
        words = ["-y", self._inventory(hosts), FILES / "deploy.py"]
        seconds, done = _timed(
            [self._venv / "bin/pyinfra", *words], self._site.environment(LC_ALL="C.UTF-8")
        )
        total = re.search(r"Grand total +(\S+) +(\S+) +(\S+) +(\S+)", done.stdout + done.stderr)
        if total is None or total[3] != "-":
            raise BenchmarkError(f"pyinfra: no clean total\n{done.stdout}{done.stderr}")
        return Outcome(seconds, 0 if total[2] == "-" else int(total[2]))

    def _inventory(self, hosts: Sequence[str]) -> Path:
        bed = self._site.bed
        rows = [
            (
                name,
                {
                    "ssh_hostname": bed.hosts[name].address,
                    "ssh_user": "root",
                    "ssh_key": str(bed.key),
                    "ssh_known_hosts_file": str(bed.known_hosts),
                    "ssh_strict_host_key_checking": "yes",
                    "ssh_allow_agent": False,
                    "ssh_look_for_keys": False,
                    **self._site.variables(),
                },
            )
            for name in hosts
        ]
        path = self._site.home / f"pyinfra-{len(hosts)}.py"
        path.write_text(f"hosts = {rows!r}\n")
        return path


def contenders(site: Site, venvs: Path) -> list[Contender]:
    """All of them; the peers' environments are made where they are missing."""
    ansible = make_venv(venvs / "ansible", HERE / "requirements-ansible.txt")
    pyinfra = make_venv(venvs / "pyinfra", HERE / "requirements-pyinfra.txt")
    return [
        Ours(site),
        Pyinfra(site, pyinfra),
        Ansible(site, ansible, tuned=True),
        Ansible(site, ansible, tuned=False),
    ]
