"""A host that is this machine, and the scriptable server behind it."""

from __future__ import annotations

import importlib.util
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.errors import SudoRefusedError
from glm5_deploy.hosts.command import Command
from glm5_deploy.hosts.host import Result

from tests.fakes import doctor as fakes

UNREADABLE = "unreadable"
FAKE = Path(__file__).parents[2] / "fakes" / "openai_server.py"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fake_openai_server", FAKE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class LocalHost:
    """Dials from this machine; its journal, release and doctor are texts."""

    name: str = "bw1"
    journal: str = ""
    served: str = fakes.served()
    doctor: str = fakes.document()
    facts: tuple[str, ...] = ()
    sudo_allowed: bool = True
    commands: list[Command] = field(default_factory=list)

    def dial(self, address: str, port: int) -> socket.socket:
        return socket.create_connection((address, port), timeout=5)

    def run(self, command: Command, *, sudo: bool = False, **_: Any) -> Result:  # noqa: ANN401
        self.commands.append(command)
        if sudo and not self.sudo_allowed:
            raise SudoRefusedError("no sudo")
        if command.argv[0] == "systemd-run":
            return Result(command, 0, self.doctor, "")
        if "profile.json" in command.argv[2]:
            return Result(command, 0, self.served, "")
        if any("--query-gpu" in word for word in command.argv):
            return Result(command, 0, self._facts(command.argv[4]), "")
        return Result(command, 0 if self.journal else 1, self.journal, "")

    def _facts(self, mark: str) -> str:
        """What the facts' runner prints for these outputs; `UNREADABLE` is what has a status."""
        parts = (
            f"\n{mark} out\n{text}\n{mark} err {3 if text == UNREADABLE else 0}\n"
            for text in self.facts
        )
        return "".join(parts) + f"\n{mark} end\n"


Server = Callable[..., Target]


@pytest.fixture
def local_host() -> type[LocalHost]:
    """The class, for tests that give it a journal of their own."""
    return LocalHost


@pytest.fixture(scope="session")
def fake_module() -> ModuleType:
    return _load()


@pytest.fixture
def serve(fake_module: ModuleType) -> Iterator[Server]:
    """Start a server with flags; what comes back is a target that points at it."""
    servers = []

    def start(
        *flags: str,
        smoke: dict[str, Any] | None = None,
        serve_host: str = "127.0.0.1",
        kernel: bool = True,
        gpus: dict[str, Any] | None = None,
    ) -> Target:
        server = fake_module.make_server(["serve", "/models/tiny", "--port", "0", *flags])
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        profile = Profile.model_validate(
            {
                "name": "tiny",
                "model": {"name": "tiny"},
                "engine": {"lock": "any", "kernel": kernel},
                "serve": {"port": server.server_address[1], "host": serve_host},
                "smoke": {"max_tokens": 6, **(smoke or {})},
                "gpus": gpus or {},
            }
        )
        return Target(name="bw1", settings=HostSettings(), profile=profile)

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
