"""The case files beside this module."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def files(folder: str) -> list[Path]:
    """The YAML files of a folder of cases."""
    return sorted((HERE / folder).glob("*.yml"))


def folders(folder: str) -> list[Path]:
    """The folders of a folder of cases."""
    return sorted(path for path in (HERE / folder).iterdir() if path.is_dir())


def expected(case: Path) -> str:
    """The text that a case must give, without its last newline."""
    file = case / "expected.txt" if case.is_dir() else case.with_suffix(".txt")
    return file.read_text(encoding="utf-8").removesuffix("\n")
