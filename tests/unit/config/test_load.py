"""Finding an inventory, choosing hosts, and a host without any inventory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from glm5_deploy.cli.options import selection
from glm5_deploy.config.address import Address, parse_address
from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.load import (
    adhoc,
    check_inventory,
    find_inventory,
    known_profiles,
    load_inventory,
    resolve,
)
from glm5_deploy.config.locks import lock_path
from glm5_deploy.config.names import group_names, host_names
from glm5_deploy.errors import ExitCode, UsageError

from tests.unit.config.cases import HERE

PROFILE = "name: NAME\nmodel: {name: m}\nengine: {command: [/bin/vllm]}\n"

INVENTORY = """\
groups:
  outer: {groups: [inner], profile: p}
  inner: {hosts: [bw1, bw2]}
hosts:
  bw2:
  bw1:
  gpu1:
    profile: p
  spare:
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/p.yml").write_text(PROFILE.replace("NAME", "p"))
    (tmp_path / "profiles/q.yaml").write_text(PROFILE.replace("NAME", "q"))
    (tmp_path / "profiles/.hidden.yml").write_text("[")
    (tmp_path / "inventory.yml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- finding -------------------------------------------------------------------------------------


def test_the_usual_places_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLM5_INVENTORY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert find_inventory(None) is None
    places = [
        Path("inventory.yml"),
        Path("inventory/inventory.yml"),
        tmp_path / "home/.config/glm5-deploy/inventory.yml",
    ]
    for place in reversed(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert find_inventory(None) == place


def test_the_flag_wins_over_the_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "other.yml").touch()
    monkeypatch.setenv("GLM5_INVENTORY", str(folder / "other.yml"))
    assert find_inventory(None) == folder / "other.yml"
    assert find_inventory(Path("inventory.yml")) == Path("inventory.yml")


def test_an_inventory_that_is_not_there(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"no inventory at nope\.yml$"):
        find_inventory(Path("nope.yml"))
    monkeypatch.setenv("GLM5_INVENTORY", "gone.yml")
    with pytest.raises(UsageError, match=r"gone\.yml \(from \$GLM5_INVENTORY\)"):
        find_inventory(None)
    assert folder.is_dir()


# --- choosing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "groups", "chosen"),
    [
        (["bw1"], [], ["bw1"]),
        (["gpu1", "bw1"], [], ["bw1", "gpu1"]),
        (["bw*"], [], ["bw2", "bw1"]),
        (["?w[12]", "bw1"], [], ["bw2", "bw1"]),
        ([], ["inner"], ["bw2", "bw1"]),
        ([], ["outer"], ["bw2", "bw1"]),
        ([], ["in*"], ["bw2", "bw1"]),
        (["gpu1"], ["inner"], ["bw2", "bw1", "gpu1"]),
    ],
)
def test_chosen_hosts(folder: Path, hosts: list[str], groups: list[str], chosen: list[str]) -> None:
    loaded = load_inventory(folder / "inventory.yml")
    assert [target.name for target in resolve(loaded, hosts=hosts, groups=groups)] == chosen


def test_every_unknown_name_with_the_nearest(folder: Path) -> None:
    loaded = load_inventory(folder / "inventory.yml")
    with pytest.raises(ConfigErrors) as caught:
        resolve(loaded, hosts=["bw3", "x*"], groups=["iner"])
    assert caught.value.message.splitlines() == [
        "3 mistakes in the configuration",
        "no group is called `iner`",
        "    did you mean `inner`?",
        "no host is called `bw3`",
        "    did you mean `bw2`?",
        "no host matches `x*`",
        "    hosts: bw2, bw1, gpu1, spare",
    ]
    assert caught.value.exit_code is ExitCode.USAGE


def test_a_host_without_a_profile_is_an_error_once_it_is_used(folder: Path) -> None:
    loaded = load_inventory(folder / "inventory.yml")
    assert check_inventory(loaded) == []
    with pytest.raises(ConfigErrors, match=r"inventory\.yml:9:3: hosts\.spare: this host has no"):
        resolve(loaded)
    targets = resolve(loaded, hosts=["spare"], profile="q")
    assert [target.profile.name for target in targets] == ["q"]


def test_an_unknown_profile_names_the_nearest(folder: Path) -> None:
    loaded = load_inventory(folder / "inventory.yml")
    with pytest.raises(ConfigErrors, match="did you mean `shipped-model`"):
        resolve(loaded, hosts=["bw1"], profile="shiped-model")


def test_a_profile_that_ships(folder: Path) -> None:
    loaded = load_inventory(folder / "inventory.yml")
    assert (
        resolve(loaded, hosts=["bw1"], profile="shipped-model")[0].profile.name == "shipped-model"
    )


def test_only_chosen_hosts_must_render(folder: Path) -> None:
    (folder / "profiles/q.yaml").write_text(
        PROFILE.replace("NAME", "q") + "service: '{{ vars.s }}'"
    )
    (folder / "inventory.yml").write_text("hosts:\n  a: {profile: p}\n  b: {profile: q}\n")
    loaded = load_inventory(folder / "inventory.yml")
    assert [target.name for target in resolve(loaded, hosts=["a"])] == ["a"]
    with pytest.raises(ConfigErrors, match=r"`vars\.s` is not defined"):
        resolve(loaded)


def test_names_for_completion(folder: Path) -> None:
    assert host_names(folder / "inventory.yml") == ["bw2", "bw1", "gpu1", "spare"]
    assert group_names(folder / "inventory.yml") == ["outer", "inner"]
    assert host_names(folder / "missing.yml") == []


def test_the_example_is_right() -> None:
    loaded = load_inventory(HERE.parents[2] / "inventory/example.yml")
    assert check_inventory(loaded) == []
    assert len(resolve(loaded)) == 3


def test_jinja2_is_imported_only_for_templates(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from glm5_deploy.config.load import *;"
        "resolve(load_inventory(Path('inventory.yml')), hosts=['bw1']);"
        "print('jinja2' in sys.modules)"
    )
    for more, imported in (("", "False"), ("description: '{{ host.name }}'\n", "True")):
        (folder / "profiles/p.yml").write_text(PROFILE.replace("NAME", "p") + more)
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": str(HERE.parents[2] / "deploy")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == imported


# --- warnings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            "serve: {host: 0.0.0.0}",
            "0.0.0.0 listens beyond this machine and a private network an",
        ),
        (
            'serve: {host: "::"}\nsecrets: {VLLM_API_KEY: "${env:A}"}',
            ":: listens beyond",
        ),
        ("serve: {host: 9.9.9.9}", "9.9.9.9 listens beyond"),
        ("environment: {HF_TOKEN: x}", "looks like a secret, and `environment` is shown"),
        (
            'gpus: {count: 1}\nenvironment: {CUDA_VISIBLE_DEVICES: "4"}',
            "other GPUs may be checked before a start and after it than are used",
        ),
    ],
)
def test_warnings(folder: Path, more: str, said: str) -> None:
    (folder / "profiles/p.yml").write_text(PROFILE.replace("NAME", "p") + more)
    warnings = check_inventory(load_inventory(folder / "inventory.yml"))
    assert [warning.message.startswith(said) for warning in warnings] == [True]


@pytest.mark.parametrize("user", ["me:hunter2@", "token@"])
def test_credentials_in_an_index_are_refused(folder: Path, user: str) -> None:
    """What is installed from it is in the list of processes meanwhile."""
    path = folder / "inventory.yml"
    hosts = "hosts: {bw1: {profile: p}}\n"
    path.write_text(f"defaults: {{index_url: https://index.example/a@b}}\n{hosts}")
    assert check_inventory(load_inventory(path)) == []
    path.write_text(f"defaults: {{index_url: https://{user}index.example/simple}}\n{hosts}")
    with pytest.raises(
        ConfigErrors, match=r"inventory\.yml:1:12: defaults\.index_url: .*credentials"
    ) as e:
        check_inventory(load_inventory(path))
    assert "hunter2" not in str(e.value)
    assert "token" not in str(e.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "gpu1.internal"])
def test_no_warning_for_a_private_address(folder: Path, host: str) -> None:
    more = f'serve: {{host: "{host}"}}'
    (folder / "profiles/p.yml").write_text(PROFILE.replace("NAME", "p") + more)
    assert check_inventory(load_inventory(folder / "inventory.yml")) == []


# --- without an inventory ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address", "name"),
    [
        ("root@192.0.2.1", Address("192.0.2.1", "root"), "192.0.2.1"),
        ("root@192.0.2.1:2222", Address("192.0.2.1", "root", 2222), "192.0.2.1"),
        ("bw1", Address("bw1"), "bw1"),
        ("a@b@bw1:22", Address("bw1", "a@b", 22), "bw1"),
        ("root@[fe80::1]:22", Address("fe80::1", "root", 22), "fe80--1"),
        ("root@[::1]", Address("::1", "root"), "host--1"),
        ("root@::1", Address("::1", "root"), "host--1"),
        ("root@[fe80::1%eth0]", Address("fe80::1%eth0", "root"), "fe80--1-eth0"),
    ],
)
def test_addresses(text: str, address: Address, name: str) -> None:
    assert parse_address(text) == address
    assert address.name == name


@pytest.mark.parametrize(
    "text",
    [
        "", "@bw1", "root@", "root@bw1:", "root@bw1:0", "root@bw1:65536", "root@bw1:ssh",
        "root@-oX", "root@a:b:c", "root@[bw1]:22", "root@[::1]22", "root@b w1", "root@bw1\n",
        "root@bw1:²²", "root@bw1:99999999999",
    ],
)  # fmt: skip
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigErrors, match="write user@address"):
        parse_address(text)


def test_a_host_that_is_in_no_inventory(folder: Path) -> None:
    target = adhoc("me@192.0.2.1:2222", "p", [folder / "profiles"])
    connection = target.settings.connection
    assert (connection.address, connection.user, connection.port) == ("192.0.2.1", "me", 2222)
    assert (target.name, target.profile.name, target.base) == ("192.0.2.1", "p", folder)


def test_its_profile_may_be_a_file_or_one_that_ships(folder: Path) -> None:
    assert adhoc("bw1", "profiles/q.yaml").profile.name == "q"
    assert adhoc("bw1", "shipped-model").profile.name == "shipped-model"
    with pytest.raises(ConfigErrors, match="cannot be read: no such file"):
        adhoc("bw1", "profiles/r.yml")
    assert folder.is_dir()


# --- locks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["vllm-1.2", "vllm-1.2.txt"])
def test_a_lock_that_ships(name: str, shipped: Path) -> None:
    assert lock_path(name) == shipped / "locks/vllm-1.2.txt"


def test_a_file_wins_over_a_lock_that_ships(folder: Path) -> None:
    (folder / "vllm-1.2").touch()
    assert lock_path("vllm-1.2", folder) == folder / "vllm-1.2"
    with pytest.raises(UsageError, match=r"no lock is called `\./vllm-1\.3`"):
        lock_path("./vllm-1.3", folder)


# --- what cannot be found ------------------------------------------------------------------------


def test_an_unknown_profile_names_where_it_was_searched(folder: Path) -> None:
    places = [Path("profiles"), Path("inventory/profiles")]
    with pytest.raises(ConfigErrors) as caught:
        adhoc("root@192.0.2.1", "my-model", places)
    assert caught.value.problems[0].hint == (
        "profiles: shipped-model, p, q; searched: profiles, inventory/profiles, and those that ship"
    )
    with pytest.raises(ConfigErrors, match="did you mean `shipped-model`"):
        adhoc("root@192.0.2.1", "shiped-model", places)
    with pytest.raises(ConfigErrors, match="searched: profiles, and those that ship"):
        resolve(load_inventory(folder / "inventory.yml"), hosts=["bw1"], profile="my-model")


def test_a_bare_name_without_an_inventory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("GLM5_INVENTORY", raising=False)
    with pytest.raises(UsageError) as caught:
        selection(None, ["gpu"], profile="tiny")
    assert "`gpu`" in caught.value.message
    assert "USER@gpu" in str(caught.value.hint)


def test_profiles_for_completion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLM5_INVENTORY", raising=False)
    monkeypatch.setenv("HOME", str(folder))
    assert known_profiles(None) == ["p", "q", "shipped-model"]
    (folder / "inventory.yml").write_text("profiles: [profiles/q.yaml]\n")
    assert known_profiles(None) == ["q", "shipped-model"]
    (folder / "inventory.yml").unlink()
    assert known_profiles(None) == ["p", "q", "shipped-model"]
    (folder / "profiles/broken.yml").write_text("name: [\n")
    assert known_profiles(None) == ["p", "q", "shipped-model"]
