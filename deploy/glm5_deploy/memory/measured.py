"""What a running vLLM says it took, beside what was planned."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from glm5_deploy.hosts.command import script
from glm5_deploy.hosts.host import Host
from glm5_deploy.memory.constants import GIB
from glm5_deploy.memory.plan import MemoryPlan

_READ = """
run=$(systemctl show -p InvocationID --value -- "$1")
[ -n "$run" ] || exit 0
journalctl -q --no-pager -o cat "_SYSTEMD_INVOCATION_ID=$run" 2>/dev/null |
  grep -F -e 'Model loading took' -e 'KV cache' -e 'Graph capturing finished' || :
"""

_LINES = {
    "weights": re.compile(r"Model loading took ([\d.]+) GiB"),
    "kv": re.compile(r"Available KV cache memory: (-?[\d.]+) GiB"),
    "kv_tokens": re.compile(r"GPU KV cache size: ([\d,]+) tokens"),
    "graphs": re.compile(r"Graph capturing finished in .* took (-?[\d.]+) GiB"),
}
"""vLLM 0.26.0: v1/worker/gpu_model_runner.py, v1/worker/gpu_worker.py, v1/core/kv_cache_utils.py"""


@dataclass(frozen=True)
class Measured:
    """Bytes on a GPU and tokens, as vLLM's log has them; None where it says nothing.

    Every worker tells its own: the largest counts, and of the KV cache the smallest.
    """

    weights: int | None = None
    kv: int | None = None
    kv_tokens: int | None = None
    graphs: int | None = None

    def ratios(self, made: MemoryPlan) -> dict[str, float]:
        """Planned over measured, for what was measured."""
        found = {}
        for name in _LINES:
            have = getattr(self, name)
            if have:
                found[name] = round(getattr(made, name) / have, 4)
        return found


def read_measured(lines: Iterable[str]) -> Measured:
    """From lines of vLLM's log."""
    seen: dict[str, list[int]] = {name: [] for name in _LINES}
    for line in lines:
        for name, pattern in _LINES.items():
            match = pattern.search(line)
            if match:
                number = float(match[1].replace(",", ""))
                seen[name].append(int(number if name == "kv_tokens" else number * GIB))
    smallest = {"kv", "kv_tokens"}
    return Measured(
        **{n: (min if n in smallest else max)(found) for n, found in seen.items() if found}
    )


def measured_on(host: Host, unit: str) -> Measured:
    """What the server that runs said when it started."""
    return read_measured(host.run(script(_READ, unit), sudo=True, check=False).stdout.splitlines())
