"""What is said where a host cannot be dialled, by the system's error."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from glm5_deploy.config.models import Connection
from glm5_deploy.errors import UnreachableError
from glm5_deploy.hosts import session
from glm5_deploy.hosts.ssh_config import resolve


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EHOSTUNREACH, "is the machine up"),
        (errno.ENETUNREACH, "connection.proxy_jump"),
        (errno.ECONNREFUSED, "is sshd running"),
        (errno.ETIMEDOUT, "firewall"),
    ],
)
def test_each_error_has_a_next_step(
    number: int, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "config").write_text("")
    route = resolve("bw1", Connection(ssh_config=tmp_path / "config"))
    monkeypatch.setattr(session, "_first_answer", fail)
    with pytest.raises(UnreachableError) as caught:
        session._dial(route, lambda _: None)
    assert hint in (caught.value.hint or "")
