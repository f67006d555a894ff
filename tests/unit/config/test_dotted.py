"""Arguments in parts: what vLLM makes of them (vllm/utils/argparse_utils.py, 0.26.0)."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from glm5_deploy.config.models import Serve, option_name


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"a-b": 1}, {"a-b": 1}),
        ({"a_b.c_d": 1}, {"a-b": {"c_d": 1}}),
        ({"a.b.c": 1, "a.b.d": 2}, {"a": {"b": {"c": 1, "d": 2}}}),
        ({"a.b": {"c": 1}, "a.b.d": 2}, {"a": {"b": {"c": 1, "d": 2}}}),
        ({"a.b.d": 2, "a.b": {"c": 1}}, {"a": {"b": {"d": 2, "c": 1}}}),
        ({"a.b": 1, "a.b.c": 2}, {"a": {"b": {"c": 2}}}),
        ({"a.b": '{"c": [1]}', "a.e": "text"}, {"a": {"b": {"c": [1]}, "e": "text"}}),
        ({"a.b": {}}, {"a": {"b": {}}}),
        ({"a": {"whole": 1}, "a.b": 2}, {"a": {"b": 2}}),
        ({"a": '{"b": 1}', "c.d": None}, {"a": '{"b": 1}'}),
    ],
)
def test_parts_come_together(given: dict[str, Any], options: dict[str, Any]) -> None:
    before = copy.deepcopy(given)
    assert Serve(args=given).options == options
    assert given == before


def test_what_is_behind_a_dot_keeps_its_name() -> None:
    assert option_name("hf_overrides.index_topk") == "hf-overrides.index_topk"
