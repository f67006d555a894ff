"""What is remembered of calls: a good one lets no other pass, and addresses are looked at anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from glm5_kernel.ops import forms
from glm5_kernel.ops.configs import NARROW, Plan
from glm5_kernel.ops.indexer_logits import mqa_logits, paged_mqa_logits
from glm5_kernel.ops.launch import Launch
from glm5_kernel.ops.sparse_mla import sparse_mla, workspace_bytes
from glm5_kernel.ops.topk import topk_indices
from glm5_kernel.ops.topk import workspace_bytes as topk_bytes
from torch import Tensor

from tests.kernel.support import DEVICE

Arguments = dict[str, Any]


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[Arguments]:
    """Nothing is launched: constants that follow from addresses, of each launch."""
    found: list[Arguments] = []
    monkeypatch.setattr(Launch, "__call__", lambda _, *__, **constants: found.append(constants))
    return found


def noted_function() -> tuple[Callable[..., int], list[tuple[object, ...]]]:
    calls: list[tuple[object, ...]] = []

    @forms.once_per_form
    def function(*values: object) -> int:
        calls.append(values)
        if "bad" in values:
            raise ValueError("bad")
        return len(calls)

    return function, calls


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (torch.ones(3, 4), True),
        (torch.zeros(4, 4)[1:], True),
        (torch.zeros(3, 5), False),
        (torch.zeros(12), False),
        (torch.zeros(4, 3).mT, False),
        (torch.zeros(3, 8)[:, :4], False),
        (torch.zeros(3, 4, dtype=torch.int32), False),
        (torch.zeros(3, 4, device="meta"), False),
        (None, False),
        ((torch.zeros(3, 4),), False),
    ],
)
def test_form_of_a_tensor(other: object, same: bool) -> None:
    function, calls = noted_function()
    for wrapped in (lambda value: value, lambda value: (value, 1)):
        calls.clear()
        first = function(wrapped(torch.zeros(3, 4)), 5)
        assert (function(wrapped(other), 5) == first) is same
        assert len(calls) == (1 if same else 2)
        assert function(wrapped(torch.zeros(3, 4)), 5) == first


def test_other_arguments_count_as_they_are() -> None:
    function, calls = noted_function()
    for value in (1, 2, None, "x", torch.int32, Plan(NARROW, 2, 1), Plan(NARROW, 2, 2), (1, 2)):
        assert function(value) == len(calls) == function(value)
    assert function(2) == 2
    assert len(calls) == 8


def test_what_raises_is_not_remembered() -> None:
    function, calls = noted_function()
    for _ in range(2):
        with pytest.raises(ValueError, match="bad"):
            function("bad")
    assert len(calls) == 2


def test_remembered_forms_are_bounded() -> None:
    function, calls = noted_function()
    for value in range(forms.MOST_FORMS + 1):
        function(value)
    assert function(0) == forms.MOST_FORMS + 2
    assert function(forms.MOST_FORMS) == forms.MOST_FORMS + 1
    forms.forget()
    assert function(0) == len(calls)


def zeros(*shape: int, dtype: torch.dtype = torch.float32, **more: Any) -> Tensor:  # noqa: ANN401
    return torch.zeros(*shape, dtype=dtype, device=more.get("device", DEVICE))


def integers(*shape: int) -> Tensor:
    return zeros(*shape, dtype=torch.int32)


def attention() -> tuple[Callable[..., Any], Arguments]:
    half = torch.bfloat16
    space = workspace_bytes(3, 8, 70, fp8=True, device=DEVICE)
    return sparse_mla, {
        "q": (zeros(3, 8, 512, dtype=half), zeros(3, 8, 64, dtype=half)),
        "kv_cache": zeros(4, 16, 656, dtype=torch.uint8),
        "indices": integers(3, 70),
        "sm_scale": 0.1,
        "lengths": integers(3),
        "block_table": integers(2, 3),
        "request_ids": integers(3),
        "out": zeros(3, 8, 512, dtype=half),
        "lse": zeros(3, 8),
        "workspace": zeros(space, dtype=torch.uint8),
        "deterministic": True,
    }


def top() -> tuple[Callable[..., Any], Arguments]:
    return topk_indices, {
        "logits": zeros(4, 17_000),  # so wide that the workspace is needed
        "k": 16,
        "starts": integers(4),
        "ends": integers(4),
        "out": integers(4, 16),
        "workspace": zeros(topk_bytes(4, device=DEVICE), dtype=torch.uint8),
    }


E4M3 = torch.float8_e4m3fn


def paged() -> tuple[Callable[..., Any], Arguments]:
    return paged_mqa_logits, {
        "q": zeros(2, 1, 4, 128, dtype=E4M3),
        "kv_cache": zeros(3, 64, 132, dtype=torch.uint8),
        "weights": zeros(2, 4),
        "context_lens": integers(2),
        "block_tables": integers(2, 2),
        "max_context": 70,
        "out": zeros(2, 70),
    }


def prefill() -> tuple[Callable[..., Any], Arguments]:
    return mqa_logits, {
        "q": zeros(5, 4, 128, dtype=E4M3),
        "k": zeros(9, 128, dtype=E4M3),
        "k_scale": zeros(9),
        "weights": zeros(5, 4),
        "starts": integers(5),
        "ends": integers(5),
        "out": zeros(5, 9),
    }


def tensors_of(make: Callable[[], tuple[Callable[..., Any], Arguments]]) -> list[str]:
    return [name for name, value in make()[1].items() if isinstance(value, (Tensor, tuple))]


def in_first(value: Any, change: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401
    return (change(value[0]), value[1]) if isinstance(value, tuple) else change(value)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "dims": lambda value: value[None, None],
    "shape": lambda value: value[..., : value.shape[-1] // 2],
    "strides": lambda value: value.new_empty_strided(
        value.shape, [2 * stride for stride in value.stride()]
    ),
    "dtype": lambda value: torch.zeros_like(value, dtype=torch.float64),
    "device": lambda value: torch.zeros_like(value, device="meta"),
}
OPERATIONS = {"attention": attention, "top": top, "paged": paged, "prefill": prefill}
ALLOWED = {
    ("attention", "indices", "shape"), ("attention", "block_table", "shape"),
    ("paged", "block_tables", "shape"), ("paged", "context_lens", "strides"),
    ("top", "logits", "shape"), ("top", "ends", "shape"), ("top", "ends", "strides"),
}  # fmt: skip
WRONG = [
    (operation, name, change)
    for operation, make in OPERATIONS.items()
    for name in tensors_of(make)
    for change in CHANGES
    if (operation, name, change) not in ALLOWED
]


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(("operation", "name", "change"), WRONG)
def test_a_good_call_lets_no_bad_one_pass(operation: str, name: str, change: str) -> None:
    function, arguments = OPERATIONS[operation]()
    function(**arguments)
    changed = in_first(arguments[name], CHANGES[change])
    for _ in range(2):
        with pytest.raises(ValueError, match="got"):
            function(**arguments | {name: changed})


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("operation", "changes", "message"),
    [
        ("attention", {"latent_dim": 384}, "q .latent.: got shape"),
        ("attention", {"rope_dim": 32}, "q .rope.: got shape"),
        ("attention", {"request_ids": None}, "block_table and request_ids together"),
        ("top", {"k": 15}, "out: got shape"),
        ("paged", {"max_context": 71}, "out: got shape"),
    ],
)
def test_a_good_call_lets_no_other_number_pass(
    operation: str, changes: Arguments, message: str
) -> None:
    function, arguments = OPERATIONS[operation]()
    function(**arguments)
    with pytest.raises(ValueError, match=message):
        function(**arguments | changes)


def shifted(value: Tensor, elements: int) -> Tensor:
    """The same, that many elements behind a multiple of 64 bytes."""
    larger = value.new_empty(value.numel() + 128)
    begin = -larger.data_ptr() % 64 // value.element_size() + elements
    result = larger[begin : begin + value.numel()].view(value.shape)
    assert result.data_ptr() % 64 == elements * value.element_size()
    return result.copy_(value)


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("operation", "name", "elements", "message"),
    [
        ("attention", "kv_cache", 2, "kv_cache: got strides .*; allowed: rows at multiples of 4"),
        ("attention", "workspace", 8, "workspace: got an unaligned address; allowed: 16-byte"),
        ("top", "workspace", 8, "workspace: got an unaligned address; allowed: 16-byte"),
        ("paged", "kv_cache", 2, "kv_cache: got strides .*; allowed: blocks at multiples of 4"),
    ],
)
def test_addresses_are_checked_at_every_call(
    operation: str, name: str, elements: int, message: str
) -> None:
    function, arguments = OPERATIONS[operation]()
    aligned = arguments | {name: shifted(arguments[name], 0)}
    for _ in range(2):
        function(**aligned)
        with pytest.raises(ValueError, match=message):
            function(**arguments | {name: shifted(arguments[name], elements)})


@pytest.mark.parametrize(
    ("operation", "name", "elements", "constant", "values"),
    [
        ("attention", "q", 2, "Q_ALIGN", [8, 2, 8]),
        ("attention", "kv_cache", 4, "KV_ALIGN", [16, 4, 16]),
        ("paged", "q", 8, "Q_ALIGN", [16, 8, 16]),
        ("paged", "kv_cache", 4, "KV_ALIGN", [16, 4, 16]),
        ("prefill", "q", 8, "Q_ALIGN", [16, 8, 16]),
        ("prefill", "k", 2, "K_ALIGN", [16, 2, 16]),
    ],
)
def test_alignment_follows_from_the_address_of_every_call(
    operation: str,
    name: str,
    elements: int,
    constant: str,
    values: list[int],
    launched: list[Arguments],
) -> None:
    function, arguments = OPERATIONS[operation]()
    if operation == "attention":
        del arguments["workspace"], arguments["deterministic"]
        arguments["force_plan"] = Plan.split(NARROW, 70, 1)
    for first in (0, elements, 0):
        moved = in_first(arguments[name], lambda value, first=first: shifted(value, first))
        function(**arguments | {name: moved})
    assert [constants[constant] for constants in launched] == values


def test_the_rope_half_counts_for_alignment_too(launched: list[Arguments]) -> None:
    function, arguments = attention()
    arguments |= {"workspace": None, "deterministic": False}
    arguments["force_plan"] = Plan.split(NARROW, 70, 1)
    latent, rope = arguments["q"]
    for first in (0, 4):
        function(**arguments | {"q": (latent, shifted(rope, first))})
    assert [constants["Q_ALIGN"] for constants in launched] == [8, 4]
