"""A deployment for the end-to-end tests: inventory, profile, model, lock and wheelhouse.

The engine is a wheel that holds the scriptable server of ``tests/fakes`` under the name ``vllm``,
so that everything but vLLM itself is real: uv, hashes, environments, units, SSH.
"""

from __future__ import annotations

import base64
import hashlib
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from glm5_deploy.demo.bed import Bed, BedHost

SERVER = Path(__file__).parents[1] / "fakes" / "openai_server.py"
API_KEY = "key-that-must-not-show-4711"
UNIT = "glm5-fake.service"
CONTROL = "/srv/control/faults"
ROOT = "/opt/glm5"
METADATA = "Metadata-Version: 2.1\nName: fake-engine\nVersion: {version}\n"
WHEEL = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
COMMAND = b"""import sys
from fake_engine import main as serve
def main():
    return serve(sys.argv[1:])
"""


def engine_wheel(
    folder: Path, version: str = "1.0", more: Mapping[str, bytes] | None = None
) -> Path:
    """A wheel named ``fake-engine`` whose command ``vllm`` is the scriptable server; with more
    files in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    info = f"fake_engine-{version}.dist-info"
    contents = {
        "fake_engine.py": SERVER.read_bytes(),
        "fake_engine_command.py": COMMAND,
        f"{info}/METADATA": METADATA.format(version=version).encode(),
        f"{info}/WHEEL": WHEEL,
        f"{info}/entry_points.txt": b"[console_scripts]\nvllm = fake_engine_command:main\n",
        **(more or {}),
    }
    record = "".join(
        f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in contents.items()
    )
    contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"fake_engine-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in contents.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


class Deployment:
    """Files for ``glm5-deploy`` in a folder; change `profile` and call `write` again.

    Args:
        bed: whose hosts the inventory names.
        names: the hosts that are part of it.
    """

    def __init__(self, folder: Path, bed: Bed, names: tuple[str, ...] = ("node1",)) -> None:
        self.folder, self.bed, self.names = folder, bed, names
        self.defaults: dict[str, Any] = {}
        self.hosts: dict[str, dict[str, Any]] = {}
        self.user = "root"
        self.model = folder / "model"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text('{"architectures": ["FakeForCausalLM"]}\n')
        (self.model / "model.safetensors").write_bytes(bytes(range(256)) * 4096)
        self.profile: dict[str, Any] = {
            "name": "fake",
            "model": {"name": "tiny", "source": "../model"},
            "engine": {"lock": "../lock.txt", "python": "3.11"},
            "serve": {"port": 8000, "args": {"max-model-len": 512, "control": CONTROL}},
            "secrets": {"VLLM_API_KEY": "${env:FAKE_KEY}"},
            "needs": {"compiler": False, "libraries": [], "disk_gib": 0.1},
            "limits": {"load": 20, "smoke": 30, "stop": 10},
            "smoke": {
                "prompt_tokens": 20,
                "expect": [{"prompt": "count", "max_tokens": 3, "text": " one two three"}],
            },
        }
        self.lock("1.0")

    def lock(self, version: str, more: Mapping[str, bytes] | None = None) -> None:
        """Lock the engine at a version (with more files in it), and a wheelhouse that holds it."""
        wheel = engine_wheel(self.folder / "wheels", version, more)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        text = f"fake-engine=={version} --hash=sha256:{digest}\n"
        (self.folder / "lock.txt").write_text(text)

    def write(self) -> Path:
        """Write inventory and profile; gives the inventory's path."""
        profiles = self.folder / "profiles"
        profiles.mkdir(exist_ok=True)
        (profiles / "fake.yml").write_text(yaml.safe_dump(self.profile, sort_keys=False))
        document = yaml.safe_load(
            self.bed.inventory_text(
                profile="fake",
                user=self.user,
                defaults={"wheelhouse": "wheels", **self.defaults},
                hosts=self.hosts,
            )
        )
        document["hosts"] = {name: document["hosts"][name] for name in self.names}
        path = self.folder / "inventory.yml"
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    @property
    def environment(self) -> Mapping[str, str]:
        """What the inventory's references need."""
        return {"FAKE_KEY": API_KEY}


def set_faults(host: BedHost, *faults: str) -> None:
    """Make the server of a host misbehave, or behave again (no faults)."""
    host.exec(["mkdir", "-p", str(Path(CONTROL).parent)])
    host.exec(["tee", CONTROL], input=" ".join(faults))


def current(host: BedHost) -> str | None:
    """The release that a host's ``current`` names."""
    done = host.exec(["readlink", f"{ROOT}/current"], check=False)
    return Path(done.stdout.strip()).name if done.returncode == 0 else None


def show(host: BedHost, *names: str, unit: str = UNIT) -> dict[str, str]:
    """Properties of a unit."""
    words = [word for name in names for word in ("-p", name)]
    lines = host.exec(["systemctl", "show", *words, unit]).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def invocation(host: BedHost) -> str:
    """Changes with every start of the service."""
    return show(host, "InvocationID")["InvocationID"]


def exists(host: BedHost, path: str) -> bool:
    return host.exec(["test", "-e", path], check=False).returncode == 0


def eventually(what: Callable[[], bool], limit: float = 60.0) -> None:
    """Wait until something holds.

    Raises:
        AssertionError: it does not within the limit.
    """
    until = time.monotonic() + limit
    while not what():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.1)
