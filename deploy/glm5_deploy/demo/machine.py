"""What a throwaway host inherits from this machine, so that package tools work there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ETC = Path("/etc")
CA_BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
ARCHIVE_KEYRINGS = ("debian-archive", "ubuntu-archive")


@dataclass(frozen=True)
class PipSettings:
    """Where this machine's pip looks for packages.

    Args:
        index: the main index, or None for the public one.
        extra: more indexes.
        find_links: folders of wheels and pages that list them.
    """

    index: str | None = None
    extra: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()

    def folders(self) -> list[Path]:
        """Local folders among them: hosts see these under the same names."""
        paths = [
            Path(place.removeprefix("file://"))
            for place in (self.index or "", *self.extra, *self.find_links)
            if place.startswith(("/", "file://"))
        ]
        return [path for path in dict.fromkeys(paths) if path.is_dir()]


def pip_settings() -> PipSettings:
    """Read ``pip config list``; without pip, nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return parse_pip_config(done.stdout)


def parse_pip_config(text: str) -> PipSettings:
    """Read lines such as ``global.find-links='/opt/a /opt/b'``; environment variables win."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        name = key.rpartition(".")[2]
        if separator and (name not in values or key.startswith(":env:")):
            values[name] = value.strip("'\"").replace("\\n", " ")
    return PipSettings(
        index=values.get("index-url"),
        extra=tuple(values.get("extra-index-url", "").split()),
        find_links=tuple(values.get("find-links", "").split()),
    )


def uv_configuration(pip: PipSettings) -> str:
    """The same places as ``uv.toml``: uv reads neither pip's settings nor the system's CA set."""

    def quoted(places: tuple[str, ...]) -> str:
        return ", ".join(f'"{place}"' for place in places)

    remote = tuple(place for place in pip.extra if not place.startswith("file://"))
    lines = ["system-certs = true"]
    if pip.index:
        lines.append(f'index-url = "{pip.index}"')
    if remote:
        lines.append(f"extra-index-url = [{quoted(remote)}]")
    if pip.find_links:
        lines.append(f"find-links = [{quoted(pip.find_links)}]")
    return "".join(f"{line}\n" for line in lines)


def apt_sources(suite: str, etc: Path = ETC) -> list[str]:
    """This machine's own archive entries for ``suite``, one line each; no one else's archives."""
    apt = etc / "apt"
    files = [apt / "sources.list", *sorted((apt / "sources.list.d").glob("*"))]
    entries: list[str] = []
    for file in files:
        if not file.is_file():
            continue
        text = file.read_text(errors="replace")
        if file.suffix == ".list":
            entries += [line.strip() for line in text.splitlines() if _is_archive(line, suite)]
        elif file.suffix == ".sources":
            entries += [line for line in _from_deb822(text) if _is_archive(line, suite)]
    return list(dict.fromkeys(entries))


def _is_archive(line: str, suite: str) -> bool:
    words = line.replace("[", " [ ").replace("]", " ] ").split()
    if not words or words[0] != "deb":
        return False
    options = words[words.index("[") + 1 : words.index("]")] if "[" in words else []
    rest = words[words.index("]") + 1 :] if "]" in words else words[1:]
    if len(rest) < 3 or rest[1].partition("-")[0] != suite or "main" not in rest[2:]:
        return False
    keys = [option for option in options if option.startswith("signed-by=")]
    return all(any(name in key for name in ARCHIVE_KEYRINGS) for key in keys)


def _from_deb822(text: str) -> Iterator[str]:
    for stanza in text.split("\n\n"):
        fields: dict[str, str] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            if line[:1].isspace():
                fields[name] = f"{fields.get(name, '')} {line.strip()}"
            elif ":" in line:
                key, _, value = line.partition(":")
                name = key.strip().lower()
                fields[name] = value.strip()
        if (
            fields.get("enabled", "yes").lower() == "no"
            or "deb" not in fields.get("types", "").split()
        ):
            continue
        signed = fields.get("signed-by", "").split()
        options = f"[signed-by={','.join(signed)}] " if signed else ""
        for uri in fields.get("uris", "").split():
            for suite in fields.get("suites", "").split():
                yield f"deb {options}{uri} {suite} {fields.get('components', '')}".strip()


def apt_options(etc: Path = ETC) -> list[Path]:
    """Files of this machine's apt that say how to fetch: proxies, certificates, dates."""
    files = [etc / "apt" / "apt.conf", *sorted((etc / "apt" / "apt.conf.d").glob("*"))]
    return [
        file
        for file in files
        if file.is_file() and "Acquire::" in file.read_text("utf-8", "replace")
    ]


def name_servers() -> str:
    """A resolv.conf that works from another network namespace: no server on a loopback address."""
    candidates = (ETC / "resolv.conf", Path("/run/systemd/resolve/resolv.conf"))
    for path in candidates:
        text = path.read_text() if path.is_file() else ""
        servers = [line.split()[1] for line in text.splitlines() if line.startswith("nameserver ")]
        if servers and not any(server.startswith("127.") for server in servers):
            return text
    return ""


def configure(root: Path, pip: PipSettings) -> None:
    """Write the package tools' settings into a host's root folder."""
    environment = {name: os.environ[name] for name in PROXIES if name in os.environ}
    environment["SSL_CERT_FILE"] = f"/{CA_BUNDLE}"
    (root / "etc/environment").write_text(
        "".join(f"{name}={value}\n" for name, value in environment.items())
    )
    (root / "etc/default/locale").write_text("LANG=C.UTF-8\n")
    uv = root / "etc/uv/uv.toml"
    uv.parent.mkdir(parents=True, exist_ok=True)
    uv.write_text(uv_configuration(pip))
    resolv = root / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    resolv.write_text(name_servers())
    bundle = Path("/") / CA_BUNDLE
    if bundle.is_file():
        shutil.copyfile(bundle, root / CA_BUNDLE)
