"""Files from one host straight to another, over an SSH connection that lasts for one transfer.

The target makes a key pair. The source lets that key run one thing, until a deadline: an rsync
daemon that can read one folder and nothing else (``restrict,expiry-time,command`` in
authorized_keys). The source's host keys are read over our own, verified connection, so the target
trusts nothing on first use. The transfer runs on the target in a transient unit; it goes on when
our connection is lost, and the next run joins it. Key and permission are taken away at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

from glm5_deploy.config.numbers import natural
from glm5_deploy.errors import CommandFailedError, Glm5Error, PreflightError, UnreachableError
from glm5_deploy.hosts.command import Command, command, script
from glm5_deploy.hosts.host import Host, Progress
from glm5_deploy.hosts.peer import Peer
from glm5_deploy.run.cancel import Cancel, InterruptedRunError
from glm5_deploy.run.jobs import job_runs, run_job
from glm5_deploy.stages.change import Copy, Transient
from glm5_deploy.stages.manifest import Manifest, parse_manifest

RETRIED = "10,12,20,30,35,255"
"""rsync's statuses for a connection that broke."""

_LOOK = """
folder=$1 name=$2 root=$3
[ -d "$folder" ] || { echo "no folder $folder" >&2; exit 44; }
find -L "$folder" -type f ! -name '.*' -printf '%s\\n' | awk '{n += $1} END {printf "%.0f\\n", n}'
for file in "$folder/MANIFEST.sha256" "$root/state/$name.sha256"; do
  if [ -r "$file" ]; then cat -- "$file"; exit 0; fi
done
"""
_KEY = """
umask 077
rm -rf -- "$1" && mkdir -p -- "$1" && ssh-keygen -q -t ed25519 -N '' -C "$2" -f "$1/key" &&
  cat -- "$1/key.pub"
"""
_ROOM = """
place=$1
while [ ! -d "$place" ]; do place=$(dirname -- "$place"); done
df --block-size=1 --output=avail -- "$place" | tail -n 1
if [ -d "$1" ]; then du --apparent-size --block-size=1 -s -- "$1" | cut -f1; else echo 0; fi
"""
_HOST_KEYS = """
files=$(PATH=$PATH:/usr/sbin sshd -T 2>/dev/null | sed -n 's/^hostkey //p')
for file in ${files:-/etc/ssh/ssh_host_*_key}; do
  [ -r "$file.pub" ] && cut -d' ' -f1,2 -- "$file.pub"
done; :
"""
# An older grant of the same name goes: it was for a key that is lost.
_GRANT = """
set -eu
umask 077
folder=$1 key=$2 mark=$3 seconds=$4
mkdir -p -- "$HOME/.ssh" && chmod 700 -- "$HOME/.ssh"
exec 9< "$HOME/.ssh" && flock 9  # several hosts may copy from here at once
file=$HOME/.ssh/authorized_keys conf=$HOME/.ssh/$mark.conf
{
  printf 'use chroot = no\\nmunge symlinks = no\\nread only = yes\\nlist = no\\n'
  # Of root's own accord an rsync daemon would read as nobody; only root may say otherwise.
  [ "$(id -u)" != 0 ] || printf 'uid = 0\\ngid = 0\\n'
  printf '[model]\\npath = %s\\n' "$folder"
} > "$conf"
until=$(date -d "+$seconds seconds" +%Y%m%d%H%M)
touch -- "$file"
{ grep -vF -- " $mark" "$file" || :; } > "$file.$mark"
if [ -n "$(tail -c 1 -- "$file.$mark")" ]; then echo >> "$file.$mark"; fi
printf 'restrict,expiry-time="%s",command="rsync --server --daemon --config=\\"%s\\" ." %s %s\\n' \\
  "$until" "$conf" "$key" "$mark" >> "$file.$mark"
chmod --reference="$file" -- "$file.$mark"
mv -f -- "$file.$mark" "$file"
"""
_REVOKE = """
umask 077
file=$HOME/.ssh/authorized_keys mark=$1
exec 9< "$HOME/.ssh" && flock 9
rm -f -- "$HOME/.ssh/$mark.conf"
grep -qF -- " $mark" "$file" 2>/dev/null || exit 0
{ grep -vF -- " $mark" "$file" || :; } > "$file.$mark"
chmod --reference="$file" -- "$file.$mark"
mv -f -- "$file.$mark" "$file"
"""


@dataclass(frozen=True)
class _Source:
    """What the peer says of the folder.

    Args:
        bytes: of all files.
        manifest: its own, or None.
    """

    folder: PurePosixPath
    bytes: int
    manifest: Manifest | None


def copy_from_peer(
    host: Host,
    peer: Peer,
    step: Copy,
    *,
    cancel: Cancel,
    progress: Progress,
    note: Callable[[str], None],
) -> Manifest:
    """Copy a model's files; gives the manifest that they have to match.

    Raises:
        PreflightError: the peer has no such folder or no manifest, or it is not the signed one.
        CommandFailedError: the transfer failed; with rsync's own words.
        UnreachableError: a connection of ours was lost; the transfer goes on.
    """
    source = _look(peer, step)
    manifest = _wanted(peer, step, source)
    _require_room(host, step, source)
    mark = _mark(host.name, step)
    folder = step.scratch / mark
    try:
        if not job_runs(host, step.unit):
            _open(host, peer, step, source, manifest, folder, mark)
        transfer = _transfer(step, source, folder)
        job = Transient(step.unit, transfer, step.limit, user=host.login_user)
        run_job(host, job, cancel=cancel, progress=progress, note=note)
    except (UnreachableError, InterruptedRunError):
        raise  # it goes on there, and needs its key
    except Glm5Error as error:
        _close(host, peer, folder, mark)
        raise _explained(error, host, peer) from error
    _close(host, peer, folder, mark)
    return manifest


def _look(peer: Peer, step: Copy) -> _Source:
    folder = step.source or peer.root / "models" / step.name
    try:
        found = peer.host.run(script(_LOOK, folder, step.name, peer.root), check=False)
    except UnreachableError as error:
        message = f"{peer.host.name}, which the model is to come from: {error.message}"
        raise UnreachableError(message, error.hint) from error
    if not found.ok:
        raise PreflightError(
            f"{peer.host.name} has no folder {folder}, which the model is to come from",
            "correct model.source_host or model.source_path",
        )
    size, _, text = found.stdout.partition("\n")
    manifest = parse_manifest(text, f"{peer.host.name}:{folder}") if text.strip() else None
    return _Source(folder, int(size or 0), manifest)


def _wanted(peer: Peer, step: Copy, source: _Source) -> Manifest:
    manifest = step.manifest or source.manifest
    if manifest is None:
        raise PreflightError(
            f"{peer.host.name} has no manifest of {source.folder} to judge by what arrives",
            f"run `glm5-deploy model verify --host {peer.host.name}`, which makes one, or name one"
            " with model.manifest",
        )
    if step.signed is not None and manifest.key() != step.signed:
        raise PreflightError(
            f"the manifest of {peer.host.name} is {manifest.key()}, and the profile wants"
            f" {step.signed}",
            "correct model.manifest_sha256, or take the model from elsewhere",
        )
    return manifest


def _require_room(host: Host, step: Copy, source: _Source) -> None:
    """Refuse before hours of copying, not after."""
    found = host.run(script(_ROOM, step.target)).stdout.split()
    free, held = int(found[0]), int(found[1])
    if source.bytes - held > free:
        raise PreflightError(
            f"{host.name} has {free / 1e9:.0f} GB free at {step.target}, and"
            f" {(source.bytes - held) / 1e9:.0f} GB are to come",
            "free some space there, or set root or model.path to a larger disk",
        )


def _mark(target: str, step: Copy) -> str:
    text = f"{target} {step.target}"
    return f"glm5-copy-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _open(
    host: Host,
    peer: Peer,
    step: Copy,
    source: _Source,
    manifest: Manifest,
    folder: PurePosixPath,
    mark: str,
) -> None:
    """Key, permission and configuration for one transfer."""
    made = host.run(script(_KEY, folder, mark), check=False)
    if not made.ok:
        raise CommandFailedError(
            f"{host.name}: cannot make a key for the transfer: {made.stderr.strip()[-300:]}",
            "install OpenSSH's client there (ssh and ssh-keygen)",
        )
    key = " ".join(made.stdout.split()[:2])
    peer.host.run(script(_GRANT, source.folder, key, mark, step.limit + 600))
    keys = peer.host.run(script(_HOST_KEYS), sudo=True).stdout.splitlines()
    address, port = _address(step.address, peer)
    files = {
        "known_hosts": "".join(f"source {line}\n" for line in keys),
        "config": _config(folder, address, port, peer.host.login_user),
        "names": "".join(f"{name}\0" for name in sorted(manifest.entries)),
    }
    for name, text in files.items():
        host.put(text.encode(), folder / name, mode=0o600, sudo=False)


def _address(given: str | None, peer: Peer) -> tuple[str, int]:
    """``address``, ``address:port`` or ``[address]:port``; ours where none is given."""
    if given is None:
        return peer.address, peer.port
    head, _, tail = given.rpartition(":")
    port = natural(tail)
    if head and port is not None and (":" not in head or head.startswith("[")):
        return head.strip("[]"), port
    return given.strip("[]"), 22


def _config(folder: PurePosixPath, address: str, port: int, user: str) -> str:
    settings = {
        "HostName": address,
        "Port": port,
        "User": user,
        "HostKeyAlias": "source",
        "IdentityFile": f'"{folder}/key"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "UserKnownHostsFile": f'"{folder}/known_hosts"',
        "GlobalKnownHostsFile": "none",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "PreferredAuthentications": "publickey",
        "BatchMode": "yes",
        "ConnectTimeout": 15,
        "ServerAliveInterval": 15,
        "ServerAliveCountMax": 3,
        "LogLevel": "ERROR",
    }
    lines = [f"  {key} {value}" for key, value in settings.items()]
    return "\n".join(["Host source", *lines, ""])


def _transfer(step: Copy, source: _Source, folder: PurePosixPath) -> Command:
    rsync = (
        "rsync", "--copy-links", "--times", "--perms", "--chmod=u=rwX,go=rX",
        "--partial-dir=.rsync-partial", *(["--checksum"] if step.checksum else []),
        f"--files-from={folder}/names", "--from0", f"--rsh=ssh -F '{folder}/config'",
        "--", "source::model/", f"{step.target}/",
    )  # fmt: skip
    return command(
        step.python, step.deliver, step.target, source.bytes, RETRIED, "--", *rsync
    )  # fmt: skip


def _close(host: Host, peer: Peer, folder: PurePosixPath, mark: str) -> None:
    """Take key and permission away; what fails here must not hide how the transfer went."""
    with suppress(Glm5Error):
        host.run(command("rm", "-rf", "--", folder))
    with suppress(Glm5Error):
        peer.host.run(script(_REVOKE, mark))


def _explained(error: Glm5Error, host: Host, peer: Peer) -> Glm5Error:
    """The same, with what to do where the two hosts do not reach each other."""
    if "Permission denied (publickey" in error.message:
        who = f"{peer.host.login_user} on {peer.host.name}"
        hint = f"sshd there must read ~/.ssh/authorized_keys of {who} (AuthorizedKeysFile)"
        return CommandFailedError(error.message, hint)
    lines = ("Connection refused", "timed out", "No route to host", "Could not resolve hostname")
    if not any(text in error.message for text in lines):
        return error
    return CommandFailedError(
        error.message,
        f"{host.name} does not reach {peer.host.name} at {peer.address} port {peer.port}: set"
        " model.source_address to the address that it has from there",
    )
