"""Where a server is reached."""

from __future__ import annotations

from typing import Any

import pytest
from glm5_deploy.config.models import HostSettings, Profile, Target
from glm5_deploy.report.address import shell_value, usage_lines


def target(connection: dict[str, Any] | None = None, **profile: Any) -> Target:  # noqa: ANN401
    document = {"name": "p", "model": {"name": "m"}, **profile}
    settings = HostSettings.model_validate({"connection": connection or {"address": "10.0.0.1"}})
    return Target(name="bw1", settings=settings, profile=Profile.model_validate(document))


def test_a_loopback_server_is_asked_through_a_tunnel() -> None:
    where, line = usage_lines(target({"address": "h", "user": "u", "port": 2222}))
    assert where == "bw1: http://127.0.0.1:8000/v1 (model m)"
    assert line.startswith("  ssh -f -o ExitOnForwardFailure=yes -L 127.0.0.1:8000:127.0.0.1:8000 ")
    assert (
        " -p 2222 u@h sleep 30 >/dev/null && curl -sS http://127.0.0.1:8000/v1/completions " in line
    )


def test_a_private_address_is_asked_directly() -> None:
    for host in ("fd00::1", "[fd00::1]"):
        where, line = usage_lines(target(serve={"host": host, "port": 9}))
        assert where == "bw1: http://[fd00::1]:9/v1 (model m)"
        assert line.startswith("  curl -sS 'http://[fd00::1]:9/v1/completions'")


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ("${env:KEY}", "$KEY"),
        ("${file:/a b/key}", "$(cat '/a b/key')"),
        ("${exec:pass show glm}", "$(pass show glm)"),
    ],
)
def test_the_key_comes_from_where_the_profile_has_it(reference: str, value: str) -> None:
    assert shell_value(reference) == value
    line = usage_lines(target(secrets={"VLLM_API_KEY": reference}))[1]
    assert f'printf "Authorization: Bearer %s" "{value}" | curl' in line
    assert line.endswith("-H @-")
