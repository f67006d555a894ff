"""Which lines of a log are quoted where a server failed."""

from __future__ import annotations

import pytest
from glm5_deploy.logs.progress import is_bar
from glm5_deploy.logs.tail import telling

BARS = [
    "Loading safetensors checkpoint shards:  40% Completed | 2/5 [00:00<00:00,  5.53it/s]",
    "Capturing CUDA graphs (decode, FULL):  50%|█████     | 26/51 [00:01<00:01, 21.18it/s]",
    "  0%|          | 0/51 [00:00<?, ?it/s]",
    "model.gguf:  12%|█▏        | 1.2G/9.9G [00:10<01:10, 120MB/s]",
    "\rFetching:   0%|   | 0/2\rFetching: 100%|███| 2/2 [00:01<00:00]",
]
ORDINARY = [
    "INFO [kv_cache_utils.py:1319] GPU KV cache size: 165,792 tokens",
    "GPU utilization 100% | 8 GPUs",
    "ValueError: 100% of 5/6 | 3",
]


@pytest.mark.parametrize("line", BARS)
def test_states_of_bars_are_known(line: str) -> None:
    assert telling([line]) == ()


@pytest.mark.parametrize("line", ORDINARY)
def test_ordinary_lines_are_no_bars(line: str) -> None:
    assert not is_bar(line)


def test_blank_lines_and_bars_make_no_room_less() -> None:
    lines = ["first", "", "   ", *BARS * 9, "last"]
    assert telling(lines, 2) == ("first", "last")


@pytest.mark.parametrize(
    "error",
    [
        "(EngineCore pid=1) ERROR 11-29 18:51:03 [core.py:1330] boom",
        "torch.OutOfMemoryError: CUDA out of memory.",
        "python3: can't open file '/x': [Errno 2] No such file or directory",
        "KeyError",
    ],
)
def test_an_error_that_others_have_pushed_up_is_quoted(error: str) -> None:
    chatter = [f"INFO line {number}" for number in range(100)]
    found = telling([*chatter, error, *chatter], 20)
    assert len(found) == 20
    assert error in found
    assert found[-10:] == tuple(chatter[-10:])
    assert found.index(error) < 11


def test_few_lines_are_all_quoted_in_order() -> None:
    lines = ["a", "ERROR b", "c"]
    assert telling(lines) == tuple(lines)
