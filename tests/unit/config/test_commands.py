"""``init`` and ``inventory``: what they print, what they write, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from glm5_deploy.cli import init, inventory
from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.load import load_inventory, resolve
from glm5_deploy.config.yaml import parse
from glm5_deploy.errors import UsageError
from typer.testing import CliRunner, Result

PROFILE = "name: p\nmodel: {name: m}\nengine: {command: [/bin/vllm]}\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GLM5_INVENTORY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def run(*words: str, answers: str | None = None) -> Result:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    inventory.register(app)
    init.register(app)
    return CliRunner().invoke(app, list(words), input=answers)


def _inventory(text: str, profile: str = PROFILE) -> None:
    Path("profiles").mkdir()
    Path("profiles/p.yml").write_text(profile)
    Path("inventory.yml").write_text(text)


# --- inventory -----------------------------------------------------------------------------------


def test_check_counts() -> None:
    _inventory("hosts:\n  a: {profile: p}\n  b: {profile: shipped-model}\n")
    result = run("inventory", "check")
    assert (result.exit_code, result.stdout) == (0, "OK: 2 hosts, 2 profiles\n")
    assert result.stderr == ""


def test_check_warns_on_stderr() -> None:
    _inventory("hosts: {a: {profile: p}}\n", f"{PROFILE}serve: {{host: 0.0.0.0}}\n")
    result = run("inventory", "check")
    assert result.stdout == "OK: 1 host, 1 profile\n"
    assert result.stderr.startswith("warning: profiles/p.yml:4:15: serve.host: 0.0.0.0 listens")


def test_check_raises_all_mistakes() -> None:
    _inventory("hosts: {a: {profile: q, prot: 1}}\n")
    result = run("inventory", "check")
    assert isinstance(result.exception, ConfigErrors)
    assert [problem.key_path for problem in result.exception.problems] == [
        "hosts.a.profile",
        "hosts.a.prot",
    ]


def test_check_as_json() -> None:
    _inventory("hosts: {a: {prot: 1}}\n")
    result = run("inventory", "check", "--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["command"], document["ok"]) == (2, "inventory check", False)
    (error,) = document["errors"]
    assert error["file"] == str(Path.cwd() / "inventory.yml")
    assert (error["line"], error["column"], error["key_path"]) == (1, 13, "hosts.a.prot")


def test_check_as_json_where_all_is_well() -> None:
    _inventory("hosts: {a: {profile: p}}\n")
    assert json.loads(run("inventory", "check", "--json").stdout) == {
        "command": "inventory check",
        "ok": True,
        "hosts": ["a"],
        "profiles": ["p"],
        "errors": [],
        "warnings": [],
    }


def test_there_is_no_inventory() -> None:
    result = run("inventory", "check")
    assert isinstance(result.exception, UsageError)
    assert "glm5-deploy init" in (result.exception.hint or "")


def test_show_is_yaml_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO", "hunter2")
    _inventory('hosts: {"no": {profile: p, become: {password: "${env:SUDO}"}}, b: {}}\n')
    plain, annotated = run("inventory", "show"), run("inventory", "show", "--origin")
    shown = parse(plain.stdout.encode(), Path("shown")).plain()
    assert parse(annotated.stdout.encode(), Path("shown")).plain() == shown
    assert isinstance(shown, dict)
    assert list(shown) == ["no", "b"]
    assert "password: ${env:SUDO}  # host no, inventory.yml:1" in annotated.stdout
    assert "port: 8000  # default" in annotated.stdout
    assert "hunter2" not in plain.stdout + annotated.stdout
    document = json.loads(run("inventory", "show", "--json").stdout)
    assert {name: host["config"] for name, host in document["hosts"].items()} == shown


def test_show_of_one_host_with_origins_as_json() -> None:
    _inventory(
        "hosts:\n  a:\n    profile: p\n  b: {profile: q-is-missing}\n".replace("q-is-missing", "p")
    )
    document = json.loads(run("inventory", "show", "--host", "a", "--origin", "--json").stdout)
    assert list(document["hosts"]) == ["a"]
    assert document["hosts"]["a"]["origins"]["profile.model.name"] == {
        "file": str(Path.cwd() / "profiles/p.yml"),
        "line": 2,
        "level": "profile",
    }


@pytest.mark.parametrize("flags", [[], ["--profile"]])
def test_schema_is_json(flags: list[str]) -> None:
    document = json.loads(run("inventory", "schema", *flags).stdout)
    assert ("hosts" in document["properties"]) is (not flags)


@pytest.mark.parametrize(
    "words", [["init"], *(["inventory", c] for c in ("check", "show", "schema"))]
)
def test_help_has_an_example(words: list[str]) -> None:
    assert f"Example: glm5-deploy {' '.join(words)}" in run(*words, "--help").stdout


# --- init ----------------------------------------------------------------------------------------


def test_init_from_flags() -> None:
    result = run(
        "init", "new", "--yes", "--host", "bw1=root@192.0.2.1:2222", "--host", "me@[fe80::1]",
        "--profile", "shipped-model", "--root", "/srv/glm5", "--var", "vllm=/opt/x: y",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "new/inventory.yml: 2 hosts\n")
    assert result.stderr == "next: glm5-deploy preflight -i new/inventory.yml\n"
    one, two = resolve(load_inventory(Path("new/inventory.yml")))
    connection = one.settings.connection
    assert (one.name, connection.address, connection.user, connection.port) == (
        "bw1",
        "192.0.2.1",
        "root",
        2222,
    )
    assert (two.name, two.settings.connection.address) == ("fe80--1", "fe80::1")
    assert str(one.root) == "/srv/glm5"
    assert one.profile.engine.command == ["/opt/x: y"]
    assert Path("new/inventory.yml").stat().st_mode & 0o777 == 0o644
    assert [path.name for path in Path("new").iterdir()] == ["inventory.yml"]


def test_what_init_wrote_passes_check() -> None:
    for flags in ([], ["--host", "a@192.0.2.1", "--profile", "shipped-model"]):
        assert run("init", "--yes", "--force", *flags).exit_code == 0
        assert run("inventory", "check").exit_code == 0


def test_init_asks() -> None:
    answers = "bw1=root@192.0.2.1\nnonsense@\nroot@192.0.2.2\n\n/srv/x\nshipped-model\n"
    result = run("init", answers=answers)
    assert result.exit_code == 0, result.stderr
    assert "'nonsense@': the address is missing" in result.stderr
    loaded = load_inventory(Path("inventory.yml"))
    assert loaded.host_names == ("bw1", "192.0.2.2")
    assert str(resolve(loaded)[0].root) == "/srv/x"


def test_init_asks_again_after_a_slip() -> None:
    answers = (
        "b w1=root@192.0.2.1\nbw1=root@192.0.2.1\nbw2=me@192.0.2.1\n\n"
        "x\n/\n/srv/x\nshiped-model\nshipped-model\n"
    )
    result = run("init", answers=answers)
    assert result.exit_code == 0, result.stderr
    for said in (
        "`b w1` will not do",
        "the same machine and root as `bw1`",
        "must be an absolute path",
        "must be a folder of our own",
        "did you mean `shipped-model`?",
    ):
        assert said in result.stderr
    loaded = load_inventory(Path("inventory.yml"))
    assert loaded.host_names == ("bw1",)
    target = resolve(loaded)[0]
    assert (str(target.root), target.profile.name) == ("/srv/x", "shipped-model")


def test_init_asks_for_the_variables_of_a_profile() -> None:
    Path("profiles").mkdir()
    Path("profiles/p.yml").write_text(f"{PROFILE}serve: {{port: '{{{{ vars.port }}}}'}}\n")
    result = run("init", answers="root@192.0.2.1\n\n\np\n8001\n")
    assert result.exit_code == 0, result.stderr
    assert "port (serve.port of p)" in result.stderr
    assert resolve(load_inventory(Path("inventory.yml")))[0].profile.serve.port == 8001


def test_init_says_which_variables_are_missing() -> None:
    Path("profiles").mkdir()
    Path("profiles/p.yml").write_text(f"{PROFILE}service: '{{{{ vars.a }}}}-{{{{ vars.b }}}}'\n")
    result = run("init", "--yes", "--profile", "p", "--var", "a=x")
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == "the profile p needs a value for b"
    assert not Path("inventory.yml").exists()


def test_init_does_not_overwrite() -> None:
    Path("inventory.yml").write_text("mine\n")
    result = run("init", "--yes")
    assert isinstance(result.exception, UsageError)
    assert Path("inventory.yml").read_text() == "mine\n"
    assert run("init", "--yes", "--force").exit_code == 0
    assert "hosts:" in Path("inventory.yml").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "b w1=root@192.0.2.1"], "`b w1` will not do"),
        (["--host", "bw1=root@"], "the address is missing"),
        (["--root", "/"], "must be a folder of our own"),
        (["--profile", "shiped-model"], "did you mean `shipped-model`"),
        (["--var", "novalue"], "is no variable"),
    ],
)
def test_init_writes_nothing_that_is_wrong(flags: list[str], said: str) -> None:
    result = run("init", "--yes", *flags)
    assert isinstance(result.exception, UsageError)
    assert said in f"{result.exception.message} {result.exception.hint}"
    assert not Path("inventory.yml").exists()


def test_init_with_nobody_to_answer() -> None:
    result = run("init", answers="")
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == "there is nobody to answer"
