"""``demo``: a throwaway host on this machine, and all of the main job on it, in the open."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from glm5_deploy.demo.place import Place
    from glm5_deploy.demo.wheelhouse import Wheelhouse

Folder = Annotated[
    Path | None, typer.Option("--folder", help="Where to keep the demo's own files.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "demo",
        help="Try it all on a throwaway host on this machine: boot it, deploy a tiny GLM-5 on"
        " real vLLM, smoke-test it and show its logs. Example: glm5-deploy demo",
    )(demo)


def demo(
    down: Annotated[bool, typer.Option("--down", help="Remove the demo's host again.")] = False,
    folder: Folder = None,
) -> None:
    """Boot, deploy, prove, show; the host stays up."""
    from glm5_deploy.demo.place import Place, default_place

    place = Place(folder.resolve()) if folder else default_place()
    if down:
        _remove(place)
        return
    _prepare(place)
    inventory = _short(place.inventory)
    for arguments in (
        ["up", "-i", inventory],
        ["smoke", "-i", inventory],
        ["logs", "-i", inventory, "-n", "20"],
    ):
        code = _run(arguments)
        if code:
            _say("")
            _say(f"that ended with exit code {code}; the host is still there to look at:")
            _say(f"  {shlex.join(place.bed().ssh('demo'))}")
            raise typer.Exit(code)
    _what_next(place, inventory)


def _prepare(place: Place) -> None:
    """Everything before the first command: host, wheels, model, inventory."""
    from glm5_deploy.demo.place import python_of
    from glm5_deploy.demo.rootfs import build_rootfs, require_prerequisites, rootfs_folder
    from glm5_deploy.demo.tiny_model import FOLDER

    require_prerequisites()
    place.folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    cached = rootfs_folder("ready").is_dir()
    note = "built before" if cached else "built once: a minute or two, 0.5 GB"
    _say(f"==> root file system of this machine's own release ({note})")
    rootfs = build_rootfs("ready")
    python = python_of(rootfs)
    _say(f"    {rootfs} with Python {python}")
    _say("==> wheels of vLLM for the CPU (downloaded once)")
    wheels = _wheels(python)
    _say(f"    {wheels.folder}, torch {wheels.torch}")
    _say("==> a tiny GLM-5 in GGUF: random weights, and what transformers answers")
    _say(f"    {FOLDER}")
    _boot(place)
    place.write_api_key()
    place.write_inventory(place.bed(), wheels, python)
    _say(f"==> inventory: {_short(place.inventory)}")
    _say(f"    ready after {time.monotonic() - start:.0f} s")


def _wheels(python: str) -> Wheelhouse:
    from glm5_deploy.demo.wheelhouse import prepare

    return prepare(python, lambda text: _say(f"    {text}"))


def _boot(place: Place) -> None:
    from glm5_deploy.demo.place import HOST

    bed = place.bed()
    if bed.running():
        _say(f"==> the host `{HOST}` is up already at {bed.hosts[HOST].address}")
        return
    _say(f"==> booting the host `{HOST}`: systemd, sshd, journald, a network namespace of its own")
    bed.up([HOST])
    _say(f"    {bed.hosts[HOST].address}, in {bed.folder}")


def _run(arguments: Sequence[str]) -> int:
    """Run a command line of this program's, shown first as one would type it."""
    _say("")
    _say(f"$ {_program()} {shlex.join(arguments)}")
    try:
        done = subprocess.run([sys.executable, "-m", "glm5_deploy", *arguments], check=False)
    except KeyboardInterrupt:
        return 130
    return done.returncode


def _remove(place: Place) -> None:
    from glm5_deploy.demo.rootfs import require_prerequisites
    from glm5_deploy.run.local import cache_folder

    require_prerequisites()
    if not place.exists():
        _say(f"there is no demo in {place.folder}")
        return
    _say("stopping the demo's host and removing its files (3 GB, up to a few minutes)")
    place.remove()
    _say(f"the demo's host is gone; {cache_folder()} keeps what the next one would download again")


def _what_next(place: Place, inventory: str) -> None:
    program = _program()
    _say("")
    _say("The host stays up. Try next:")
    _say(f"  export GLM5_INVENTORY={shlex.quote(inventory)}")
    for arguments, meaning in (
        ("up", "again: 0 changes"),
        ("status", "release, uptime, health, load"),
        ("logs -f", "follow what the server says"),
        ("up --check --diff", "edit `override` first: its diff"),
        ("up", "deploy that change"),
        ("rollback", "back to the release before it"),
        ("down", "stop it; `up` starts it again"),
    ):
        _say(f"  {f'{program} {arguments}':<42} # {meaning}")
    _say(f"  {shlex.join(place.bed().ssh('demo'))}")
    _say(f"  {f'{program} demo --down':<42} # remove the host")


def _program() -> str:
    """As one would type it from here."""
    script = Path(sys.executable).with_name("glm5-deploy")
    on_path = any(Path(part) == script.parent for part in os.get_exec_path())
    return "glm5-deploy" if on_path or not script.exists() else _short(script)


def _short(path: Path) -> str:
    """Relative to the current folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _say(text: str) -> None:
    print(text, flush=True)
