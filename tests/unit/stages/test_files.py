"""Units, environment files, arguments and manifests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from glm5_deploy.errors import UsageError
from glm5_deploy.onhost import verify
from glm5_deploy.stages.arguments import flag_words
from glm5_deploy.stages.manifest import local_manifest, parse_manifest, wanted_manifest
from glm5_deploy.stages.systemd import environment_file, exec_line, quote
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.stages.situation import desired


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("plain", '"plain"'),
        ("has space", '"has space"'),
        ("100%s", '"100%%s"'),
        ('a"b\\c', '"a\\"b\\\\c"'),
        ("a\nb\tc", '"a\\nb\\tc"'),
        ("\x01\x7f", '"\\x01\\x7f"'),
        ("ünï", '"ünï"'),
        ("", '""'),
    ],
)
def test_quote(text: str, quoted: str) -> None:
    assert quote(text) == quoted


def test_what_systemd_cannot_take_is_refused() -> None:
    with pytest.raises(ValueError, match="NUL"):
        quote("a\0b")
    with pytest.raises(ValueError, match="absolute path"):
        exec_line(["vllm", "serve"])
    with pytest.raises(ValueError, match="the value of A holds a line break"):
        environment_file({"A": "x\ny"})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--key"]),
        (False, ["--no-key"]),
        (None, []),
        (3, ["--key", "3"]),
        (0.9, ["--key", "0.9"]),
        ("a b", ["--key", "a b"]),
        ([1, "x"], ["--key", "1", "x"]),
        ({"a": [1, True]}, ["--key", '{"a":[1,true]}']),
    ],
)
def test_flag_words(value: object, words: list[str]) -> None:
    assert flag_words("key", value) == words


@pytest.mark.parametrize(
    ("value", "word"),
    [(True, "true"), (False, "false"), ([1, "x"], '[1,"x"]'), ({"b": 1}, '{"b":1}'), (3, "3"),
     ("80g", "80g")],
)  # fmt: skip
def test_a_part_of_an_argument_is_one_word(value: object, word: str) -> None:
    assert flag_words("key.part", value) == ["--key.part", word]


def test_the_unit_names_its_own_release() -> None:
    release = desired().release
    unit = release.text("unit")
    assert f"EnvironmentFile=/opt/glm5/releases/{release.identifier}/environment" in unit
    assert "@" not in unit.replace("~@privileged", "").replace("@system-service @resources", "")
    assert "s3cret" not in unit + release.text("environment") + release.text("profile.json")


def test_gpu_units_reach_devices_and_others_do_not() -> None:
    cpu, gpu = desired().release.text("unit"), desired(gpus={"count": 2}).release.text("unit")
    assert "PrivateDevices=yes" in cpu
    assert "PrivateDevices" not in gpu.replace("# PrivateDevices", "")
    for device in ("nvidia", "nvidia-frontend", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        assert f"DeviceAllow=char-{device} rw" in gpu
    environment = desired(gpus={"count": 2}).release.text("environment")
    assert 'CUDA_VISIBLE_DEVICES="0,1"' in environment
    named = desired(gpus={"count": 2, "devices": [3, 5]}).release.text("environment")
    assert 'CUDA_VISIBLE_DEVICES="3,5"' in named


@pytest.mark.parametrize("root", ["/home/ann/glm5", "/root/glm5"])
def test_a_root_below_a_home_can_be_read(root: str) -> None:
    assert "ProtectHome=read-only" in desired(settings={"root": root}).release.text("unit")
    assert "ProtectHome=yes" in desired().release.text("unit")


def test_manifests_round_trip_and_notice_change(tmp_path: Path) -> None:
    folder, cache = tmp_path / "m", tmp_path / "digests.json"
    (folder / "sub").mkdir(parents=True)
    (folder / "a b.bin").write_bytes(b"one")
    (folder / "sub/c").write_bytes(b"two")
    (folder / "*star").write_bytes(b"*")
    (folder / " blank").write_bytes(b" ")
    (folder / ".hidden").write_bytes(b"x")
    first = local_manifest(folder, cache)
    assert sorted(first.entries) == [" blank", "*star", "a b.bin", "sub/c"]
    assert parse_manifest(first.text(), "m").entries == first.entries
    (tmp_path / "sums").write_text(first.text())
    check = ["sha256sum", "--check", "--quiet", str(tmp_path / "sums")]
    assert subprocess.run(check, cwd=folder, check=False).returncode == 0
    assert verify.read_manifest(tmp_path / "sums") == first.entries
    before = (folder / "a b.bin").stat()
    (folder / "a b.bin").write_bytes(b"ONE")
    os.utime(folder / "a b.bin", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert local_manifest(folder, cache).entries != first.entries


def test_a_link_that_leads_nowhere_is_a_file_that_is_missing(tmp_path: Path) -> None:

    folder = tmp_path / "snapshot"
    folder.mkdir()
    (tmp_path / "blob").write_bytes(b"w")
    (folder / "w.gguf").symlink_to("../blob")
    assert list(local_manifest(folder, tmp_path / "d").entries) == ["w.gguf"]
    (tmp_path / "blob").unlink()
    with pytest.raises(UsageError, match=r"w\.gguf is a link that leads nowhere"):
        local_manifest(folder, tmp_path / "d")
    with pytest.raises(SystemExit, match=r"missing: w\.gguf"):
        verify.main([str(folder), str(tmp_path / "M"), str(tmp_path / "S"), "--create"])
    assert not (tmp_path / "M").exists()


@pytest.mark.parametrize("line", ["nonsense", f"{'a' * 64}  ../x", f"{'a' * 64}  /x", "zz  x"])
def test_a_bad_manifest_names_its_line(line: str) -> None:
    with pytest.raises(UsageError, match="given:2"):
        parse_manifest(f"{'b' * 64}  fine\n{line}\n", "given")


def test_sums_of_binary_files_and_a_file_that_is_no_text(tmp_path: Path) -> None:
    assert list(parse_manifest(f"{'a' * 64} *w.gguf\n", "given").entries) == ["w.gguf"]
    (tmp_path / "sums").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"cannot read the manifest .*sums: it is no text"):
        wanted_manifest(None, tmp_path / "sums", tmp_path / "digests")


@given(st.text(alphabet=st.characters(exclude_characters="\0\n\r", exclude_categories=["Cs"])))
def test_environment_values_are_read_back_by_a_shell(value: str) -> None:
    """systemd reads double quotes in these files as a POSIX shell does."""
    said = subprocess.run(
        ["sh", "-c", f'{environment_file({"A": value})}printf "%s|" "$A"'],
        capture_output=True, check=True,
    )  # fmt: skip
    assert said.stdout.decode() == f"{value}|"


def test_names_that_a_line_cannot_hold_are_passed_over(tmp_path: Path) -> None:
    from glm5_deploy.hosts.facts.fact import FactOutput
    from glm5_deploy.stages.observed import parse_tree

    plain = ["-dash", "a b.gguf", "ünï"]
    for name in (*plain, "new\nline", "separator\u2028", "bad\udcff"):
        (tmp_path / name).touch()
    assert sorted(verify.listing(tmp_path)) == plain
    assert sorted(local_manifest(tmp_path, tmp_path / ".digests").entries) == plain
    text = "2 1.5 1.5 7 a b.gguf\n1 1.5 1.5 8 new\nline\n3 1.5 1.5 9 x\u2028y\n"
    found = parse_tree(FactOutput(0, text, ""))
    assert found is not None
    assert set(found) == {"a b.gguf", "new", "x\u2028y"}
