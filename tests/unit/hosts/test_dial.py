"""What is said where a host cannot be dialled, by the system's error."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import paramiko
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


class Silent:
    """Stands for a connection on which a login gets no answer."""

    def auth_publickey(self, *_: object) -> None:
        raise paramiko.AuthenticationException("Authentication timeout.")

    def is_active(self) -> bool:
        return True


def test_a_login_without_an_answer_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("")
    route = resolve("bw1", Connection(ssh_config=tmp_path / "config"))
    monkeypatch.setattr(session, "_candidates", lambda *_: iter([("key", object())]))
    with pytest.raises(UnreachableError, match="no answer to the login with key") as caught:
        session.authenticate(cast(Any, Silent()), route, session.Login(keepalive=15))
    assert not isinstance(caught.value, session.NotRetriedError)
