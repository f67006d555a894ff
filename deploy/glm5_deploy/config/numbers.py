"""Numbers as programs print them, and as vLLM's command line reads them."""

from __future__ import annotations

import re

_READABLE = {
    "max-model-len", "max-num-batched-tokens", "max-num-scheduled-tokens", "kv-cache-memory-bytes",
    "safetensors-prefetch-block-size",
}  # fmt: skip
"""Which take units (vLLM 0.26.0 to 0.32.0: vllm/engine/arg_utils.py, `human_readable_int_args`)."""

UTILIZATION = 0.92
"""Share of each GPU that vLLM takes where nothing is said (0.26.0: vllm/config/cache.py,
`CacheConfig.gpu_memory_utilization`)."""

_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def natural(text: str) -> int | None:
    """A whole number from 0 in plain digits, or None.

    `str.isdigit` is true of ``²``, which `int` refuses, and digits of other scripts are none that a
    program prints or reads. 20 digits hold 64 bits: `int` refuses thousands of them.
    """
    return int(text) if re.fullmatch(r"[0-9]{1,20}", text) else None


def whole(key: str, value: object) -> int | None:
    """What an argument for a whole number comes to, or None where vLLM refuses it.

    ``128k`` is 128,000 and ``128K`` is 131,072, where the argument takes units
    (vllm/utils/argparse_utils.py, `human_readable_int`).
    """
    if isinstance(value, bool):
        return None
    text = str(value).strip()
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgtKMGT])", text)
    try:
        if found is None or key not in _READABLE:
            return int(text)
        number, unit = found.groups()
        power = _POWERS[unit.lower()]
        return int(number) * 1024**power if unit.isupper() else int(float(number) * 1000**power)
    except ValueError:
        return None


def fraction(value: object) -> float | None:
    """What an argument for any number comes to, or None where vLLM refuses it."""
    try:
        return None if isinstance(value, bool) else float(str(value))
    except ValueError:
        return None


def is_automatic(value: object) -> bool:
    """Whether ``max-model-len`` leaves the length to vLLM."""
    return str(value).strip().lower() in {"auto", "-1"}
