"""A release's own record, as it comes back from a host."""

from __future__ import annotations

import json

import pytest
from glm5_deploy.config.models import Target
from glm5_deploy.hosts.fake import FakeHost
from glm5_deploy.run.earlier import as_it_was
from glm5_deploy.stages.record import RecordError, parse_record

from tests.unit.stages.situation import desired


def target(**more: object) -> Target:
    return desired(smoke={"expect": [{"prompt": "1", "text": "2"}]}, **more).target


def on_host(text: str, today: Target) -> Target:
    place = desired().paths.release("r1") / "profile.json"
    return as_it_was(FakeHost(files={place: text.encode()}), today, "r1")


def written(**more: object) -> str:
    """As the program itself writes one."""
    return desired(**more).release.text("profile.json")


def test_what_is_written_is_read() -> None:
    record = parse_record(written(), "here")
    assert (record.venv, record.kernel) == (None, False)
    found = on_host(written(serve={"port": 9001}), target()).profile
    assert found.serve.port == 9001
    assert found.smoke == target().profile.smoke
    assert found.limits == target().profile.limits


def test_another_model_is_not_held_to_this_ones_answers() -> None:
    found = on_host(written(model={"name": "other"}), target()).profile
    assert found.model.name == "other"
    assert found.smoke.expect == []


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", "7", "{}",
        json.dumps({"venv": 7, "engine": {"kernel": True}}),
        json.dumps({"venv": "v", "engine": []}),
        json.dumps({"venv": "v", "engine": {"kernel": "yes"}}),
        json.dumps({"venv": "v", "engine": {"kernel": True}, "model": "m"}),
        json.dumps({"venv": "v", "engine": {"kernel": True}, "model": []}),
    ],
)  # fmt: skip
def test_a_damaged_one_is_an_error_that_says_what_to_do(text: str) -> None:
    with pytest.raises(RecordError, match=r"node1:/opt/glm5/releases/r1/profile.json") as caught:
        on_host(text, target())
    assert ".done" in (caught.value.hint or "")
