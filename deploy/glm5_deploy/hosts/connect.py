"""From a resolved target to a `Host`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from glm5_deploy.config.models import HostSettings, Target
from glm5_deploy.hosts.command import Secret
from glm5_deploy.hosts.host import Host
from glm5_deploy.hosts.ssh import SshHost


def open_host(target: Target, base: Path) -> Host:
    """The host of a target. Nothing is dialled, and no secret resolved, before it is needed.

    Args:
        base: the inventory's folder, which relative references start from.
    """
    return open_settings(target.name, target.settings, base)


def open_settings(name: str, settings: HostSettings, base: Path) -> SshHost:
    """Like `open_host`, of a host that serves nothing."""
    return SshHost(
        name,
        settings.connection,
        settings.become,
        sudo_password=_late(settings.become.password, base),
        passphrase=_late(settings.connection.identity_passphrase, base),
    )


def _late(reference: str | None, base: Path) -> Callable[[], Secret] | None:
    if reference is None:
        return None

    @functools.cache
    def resolve() -> Secret:
        """Once: a reference may run a program, or ask somebody."""
        from glm5_deploy.config.references import resolve_secret

        return resolve_secret(reference, base)

    return resolve
