"""What must hold for any input."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path, PurePosixPath

import pytest
import yaml
from glm5_deploy.config import emit
from glm5_deploy.config.address import Address, parse_address
from glm5_deploy.config.errors import ConfigErrors
from glm5_deploy.config.load import adhoc, load_document
from glm5_deploy.config.merge import merge
from glm5_deploy.config.node import Node, Plain
from glm5_deploy.config.starter import Starter, inventory_text, parse_host
from glm5_deploy.config.yaml import parse, parse_parts
from hypothesis import given
from hypothesis import strategies as st

FILE = Path("/nowhere/inventory.yml")

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=20)
# Numbers in YAML 1.2 that the writer, which follows YAML 1.1, takes for text and leaves unquoted.
NEW_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0o[0-7]+")
texts = texts.filter(lambda text: not NEW_NUMBER.fullmatch(text))
keys = texts.filter(lambda key: key != "<<")
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
mappings = st.dictionaries(keys, values, max_size=4)


@given(mappings)
def test_what_a_standard_writer_wrote_is_read_back(data: dict[str, Plain]) -> None:
    assert parse(yaml.safe_dump(data).encode(), FILE).plain() == data


@pytest.mark.parametrize(("text", "value"), [("0E0", 0.0), ("1e3", 1000.0), ("0o17", 15)])
def test_numbers_are_those_of_yaml_1_2(text: str, value: float) -> None:
    assert parse(f"key: {text}".encode(), FILE).plain() == {"key": value}
    assert parse(f"key: '{text}'".encode(), FILE).plain() == {"key": text}


@given(st.binary(max_size=60) | st.text("ab:-[]{}\"'&*!|>%@`#, \n\t\\<?", max_size=40))
def test_any_file_is_read_or_refused(content: bytes | str) -> None:
    raw = content if isinstance(content, bytes) else content.encode()
    try:
        top, unread = parse_parts(raw, FILE)
        load_document(top, unread, FILE)
    except ConfigErrors:
        return
    assert isinstance(top.value, dict)


@given(keys)
def test_a_text_that_we_write_is_read_back(text: str) -> None:
    line = emit.text(text)
    assert "\n" not in line
    assert parse(f"{line}: {line}\n".encode(), FILE).plain() == {text: text}


@given(st.dictionaries(texts, scalars, max_size=3), st.dictionaries(texts, scalars, max_size=3))
def test_the_upper_level_wins_and_nothing_is_lost(
    base: dict[str, Plain], top: dict[str, Plain]
) -> None:
    merged = merge(_node(base), _node(top))
    assert merged.plain() == {**base, **top}


def _node(data: dict[str, Plain]) -> Node:
    # Scalars only: what lies deeper is merged by the same function.
    values: dict[str, Node] = {}
    for key, value in data.items():
        assert not isinstance(value, dict | list)
        values[key] = Node(value, FILE, (key,))
    return Node(values, FILE)


@given(st.text("abcdefXYZ019!$%{}:/ '\"", min_size=6, max_size=30))
def test_a_literal_secret_is_in_no_message(literal: str) -> None:
    secret = f"S3CR3T{literal}"
    text = (
        "name: p\nmodel: {name: m}\nengine: {command: [x]}\n"
        f"secrets:\n  K: {emit.text(secret)}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "p.yml"
        file.write_text(text)
        with pytest.raises(ConfigErrors) as caught:
            adhoc("bw1", str(file))
    assert "S3CR3T" not in caught.value.message


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9.-]{0,20}", fullmatch=True),
    st.none() | st.from_regex(r"[a-z_][a-z0-9_.-]{0,10}", fullmatch=True),
    st.none() | st.integers(1, 65535),
)
def test_an_address_is_read_back(address: str, user: str | None, port: int | None) -> None:
    text = f"{f'{user}@' if user else ''}{address}{f':{port}' if port else ''}"
    assert parse_address(text) == Address(address, user, port)


@given(texts, texts)
def test_a_first_inventory_is_valid_or_refused(host: str, root: str) -> None:
    try:
        name, place = parse_host(host)
        text = inventory_text(Starter({name: place}, root=root))
        loaded = load_document(*parse_parts(text.encode(), FILE), FILE)
    except ConfigErrors:
        return
    assert loaded.host_names == (name,)
    assert loaded.inventory.defaults.root == PurePosixPath(root)
