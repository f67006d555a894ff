"""The package index that a host is to install from: how it is asked, and what is said of it."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from glm5_deploy import package_index
from glm5_deploy.errors import CommandTimeoutError, SudoRefusedError
from glm5_deploy.hosts.fake import Expected, FakeHost
from glm5_deploy.package_index import ASK, GET, Answer, default_index, parse, rows
from glm5_deploy.report.events import Silent
from glm5_deploy.report.outcome import Check
from glm5_deploy.run.cancel import Cancel
from glm5_deploy.run.session import HostRun, Options
from glm5_deploy.stages.desired import Desired

from tests.unit.stages.situation import bare, changed, desired

HINT = "glm5-deploy wheelhouse"
USUAL = "https://usual.example/simple"


class Index(BaseHTTPRequestHandler):
    """Knows one package, and under /closed/ only for who has the password; sends who asks under
    /moved/ or /elsewhere/ there.
    """

    def do_GET(self) -> None:
        address, port = cast(ThreadingHTTPServer, self.server).server_address[:2]
        for first, host in (("/moved/", address), ("/elsewhere/", "localhost")):
            if self.path.startswith(first):
                rest = self.path.removeprefix(first)
                self.send_response(302)
                self.send_header("Location", f"http://{host!s}:{port}/closed/{rest}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
        word = base64.b64encode(b"ann:pa ss").decode()
        status = 200 if self.path.endswith("/fake-engine/") else 404
        if self.path.startswith("/closed/") and self.headers["Authorization"] != f"Basic {word}":
            status = 401
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """Host and port of an index."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["curl", "python3"])
def tool(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A PATH with one program."""
    name: str = request.param
    found = shutil.which(name) if name == "curl" else sys.executable
    if found is None:
        pytest.skip("no curl here")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / name).symlink_to(found)
    return folder


def asked(
    path: Path, given: str = "", package: str = "fake-engine", **variables: str
) -> tuple[Answer, str]:
    """What the script finds here, and all that it printed."""
    words = ["/bin/sh", "-c", ASK, "test", str(path / "venv"), package, GET]
    env = {"PATH": str(path), "HOME": str(path), **variables}
    text = f"{given}\n{USUAL}\n"
    done = subprocess.run(words, env=env, input=text, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return parse(done.stdout), done.stdout


def test_an_index_answers(tool: Path, place: str) -> None:
    url = f"http://{place}/simple"
    assert asked(tool, url)[0] == Answer("asked", url, 200)
    assert asked(tool, f"{url}/")[0].code == 200
    assert asked(tool, url, package="other")[0].code == 404
    assert asked(tool, f"http://{place}/closed")[0].code == 401


def test_credentials_are_given_and_not_shown(tool: Path, place: str) -> None:
    found, _ = asked(tool, f"http://ann:pa%20ss@{place}/closed")
    assert found == Answer("asked", f"http://{place}/closed", 200)


@pytest.mark.parametrize("name", [".netrc", "other"])
def test_credentials_of_the_hosts_netrc(tool: Path, place: str, name: str) -> None:
    url = f"http://{place}/closed"
    (tool / name).write_text('machine 127.0.0.1 login ann password "pa ss"\n')
    (tool / name).chmod(0o600)
    variables = {} if name == ".netrc" else {"NETRC": str(tool / name)}
    assert asked(tool, url, **variables)[0].code == 200
    assert asked(tool, f"http://ann:wrong@{place}/closed", **variables)[0].code == 401
    (tool / name).write_text("nonsense\n")
    assert asked(tool, url, **variables)[0].code == 401


def test_credentials_go_to_no_other_place(tool: Path, place: str) -> None:
    url = f"http://ann:pa%20ss@{place}"
    assert asked(tool, f"{url}/moved")[0].code == 200
    assert asked(tool, f"{url}/elsewhere")[0].code == 401


def test_nobody_answers(tool: Path) -> None:
    found, _ = asked(tool, "http://127.0.0.1:9/simple")
    assert (found.code, found.url) == (0, "http://127.0.0.1:9/simple")
    assert "refused" in found.detail or "connect" in found.detail
    assert not found.detail.startswith("curl")
    unknown, _ = asked(tool, "http://index.invalid/simple")
    assert unknown.code == 0
    assert unknown.detail


def test_the_hosts_own_variables_count_unless_the_inventory_says(tool: Path, place: str) -> None:
    url = f"http://{place}/simple"
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        assert asked(tool, **{name: url})[0].code == 200
    assert asked(tool, UV_DEFAULT_INDEX=f"mine={url}")[0].url == url
    assert asked(tool, url, UV_DEFAULT_INDEX="http://127.0.0.1:9")[0].code == 200


def test_the_machines_proxy_is_used(tool: Path, place: str) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        found, _ = asked(tool, "http://index.invalid/simple", **{name: f"http://{place}"})
        assert found.code == 200


@pytest.mark.parametrize("name", ["UV_INDEX", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"])
def test_what_else_uv_is_told_is_named(tool: Path, place: str, name: str) -> None:
    found = asked(tool, f"http://{place}/simple", **{name: "1"})[0]
    assert (found.code, found.own) == (200, name)


@pytest.mark.parametrize("name", ["UV_NO_INDEX", "UV_OFFLINE"])
def test_a_host_whose_uv_uses_no_index(tmp_path: Path, name: str) -> None:
    assert asked(tmp_path, **{name: "1"})[0] == Answer("without", detail=name)


@pytest.mark.parametrize(
    "text",
    [
        "# of ours\nindex-url = '{}'\n",
        'index-url="{}"',
        'offline = false\n[[index]]\nname = "mine"\nurl = "{}"  # here\ndefault = true\n',
    ],
)
def test_the_hosts_own_file_names_the_index(tool: Path, place: str, text: str) -> None:
    url = f"http://{place}/simple"
    file = tool / ".config" / "uv" / "uv.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text.format(url))
    assert asked(tool)[0] == Answer("asked", url, 200, own=str(file))
    assert asked(tool, "http://127.0.0.1:9/x")[0].url == "http://127.0.0.1:9/x"
    file.write_text("offline = false\n")
    assert asked(tool, url)[0] == Answer("asked", url, 200, own=str(file))
    other = tool / "other.toml"
    other.write_text(text.format(url))
    assert asked(tool, UV_CONFIG_FILE=str(other))[0] == Answer("asked", url, 200, own=str(other))


def test_what_cannot_be_asked(tmp_path: Path) -> None:
    assert asked(tmp_path)[0].kind == "nothing"
    for url in ("/srv/index", "file:///srv/index", 'https://x"y', "https://x\\y"):
        assert asked(tmp_path, url)[0].kind == "other"


def test_an_environment_that_lacks_no_package_needs_no_index(tmp_path: Path) -> None:
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / ".locked").touch()
    assert asked(tmp_path)[0].kind == "nothing"
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    assert asked(tmp_path)[0].kind == "installed"


@pytest.mark.parametrize(
    "text",
    ["", "\n", "Failed to start transient service unit", "own", "own \nurl x", "url\nx\nhttp 5"],
)
def test_no_answer_that_can_be_read(text: str) -> None:
    assert parse(text) == Answer("unread")


def test_the_usual_index_is_uvs_own() -> None:
    assert default_index().startswith("https://")


# --- rows ----------------------------------------------------------------------------------------


@pytest.fixture
def wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desired:
    monkeypatch.setattr(package_index, "default_index", lambda: USUAL)
    lock = tmp_path / "lock.txt"
    lock.write_text("Fake_Engine==1.0 --hash=sha256:00\nother==1 --hash=sha256:00\n")
    return desired(lock, {"index_url": "https://ann:secret@index.example/simple"})


def row(wanted: Desired, answer: str = "", **more: Any) -> tuple[Check, FakeHost]:  # noqa: ANN401
    host = FakeHost(expected=[Expected("systemd-run", answer, **more)])
    (found,) = rows(cast(Any, host), wanted, bare())
    return found, host


URL = "own \nurl https://ann:secret@index.example/simple\n"
SHOWN = "https://index.example/simple"


@pytest.mark.parametrize(
    ("answer", "status", "detail"),
    [
        (f"{URL}\nhttp 200\n", "passed", f"{SHOWN} answers"),
        (f"{URL}\nhttp 404\n", "failed", f"{SHOWN} has no fake-engine: HTTP 404"),
        (f"{URL}\nhttp 401\n", "failed", f"{SHOWN} refuses: HTTP 401 for fake-engine"),
        (f"{URL}\nhttp 407\n", "failed", "the proxy refuses: HTTP 407 for fake-engine"),
        (f"{URL}\nhttp 503\n", "failed", f"{SHOWN}: HTTP 503 for fake-engine"),
        (
            f"{URL}curl: (6) Could not resolve host: index.example\n\nhttp 000\n",
            "failed",
            f"{SHOWN}: Could not resolve host: index.example",
        ),
        (f"{URL}http 000\n", "failed", f"{SHOWN}: no answer"),
        ("installed\n", "passed", "nothing is left to install from it"),
        ("without UV_OFFLINE\n", "skipped", "the host's uv uses none (UV_OFFLINE)"),
        (
            f"{URL}\nhttp 404\n".replace("own ", "own /etc/uv/uv.toml"),
            "warning",
            f"{SHOWN} has no fake-engine: HTTP 404; /etc/uv/uv.toml there may name another",
        ),
        ("other\n", "skipped", "it is none over HTTP"),
        ("nothing\n", "skipped", "neither curl nor python3 is there to ask it"),
        ("", "skipped", "it could not be asked"),
    ],
)
def test_rows(wanted: Desired, answer: str, status: str, detail: str) -> None:
    found, host = row(wanted, answer)
    assert (found.status, found.detail) == (status, detail)
    assert (HINT in str(found.hint)) == (status in {"failed", "warning"})
    (call,) = host.calls
    assert call.sudo
    assert call.content == f"https://ann:secret@index.example/simple\n{USUAL}\n".encode()
    assert "secret" not in f"{call.command}{found}"
    assert "fake-engine" in cast(Any, call.command).argv


def test_a_host_that_cannot_be_asked(wanted: Desired) -> None:
    class Refusing(FakeHost):
        def run(self, *_: object, **__: object) -> Any:  # noqa: ANN401
            raise self.error

        error: Exception

    for error, status in (
        (SudoRefusedError("no"), "skipped"),
        (CommandTimeoutError("x"), "failed"),
    ):
        host = Refusing()
        host.error = error
        (found,) = rows(cast(Any, host), wanted, bare())
        assert found.status == status


def test_nothing_is_asked_where_no_index_is_used(wanted: Desired, tmp_path: Path) -> None:
    host, lock = cast(Any, FakeHost()), tmp_path / "lock.txt"
    assert wanted.venv is not None
    there = changed(bare(), venvs=(wanted.venv.identifier,))
    assert rows(host, wanted, there) == ()
    assert rows(host, desired(), bare()) == ()
    assert rows(host, desired(lock, {"wheelhouse": str(tmp_path)}), bare()) == ()
    base = {"python": "3.11", "base": {"python": "/usr/bin/python3"}}
    assert rows(host, desired(engine=base), bare()) == ()
    lock.write_text("# nothing\n")
    assert rows(host, desired(lock), bare()) == ()


def test_a_run_asks_once(wanted: Desired) -> None:
    host = FakeHost(expected=[Expected("systemd-run", f"{URL}\nhttp 200\n")])
    run = HostRun(cast(Any, host), wanted, None, Silent(), Cancel(), Options())
    assert run._index(bare()) == run._index(bare())
    assert len(host.calls) == 1
