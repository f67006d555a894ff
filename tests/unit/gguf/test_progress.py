"""The lines of loading, and that glm5-deploy reads them."""

from __future__ import annotations

from glm5_deploy.logs.progress import parse_progress
from glm5_kernel.gguf.progress import Progress


def test_lines() -> None:
    lines: list[str] = []
    now = [0.0]
    progress = Progress(3, 30_000_000_000, lines.append, lambda: now[0])
    for shard, second in ((0, 1.0), (0, 2.0), (0, 7.0), (1, 7.5), (1, 8.0), (2, 20.0)):
        now[0] = second
        progress.add(shard, 5_000_000_000)
    now[0] = 25.0
    progress.finish()
    assert lines == [
        "glm5_kernel: loading shard 1/3 (0.0 of 30.0 GB)",
        "glm5_kernel: loading shard 1/3 (10.0 of 30.0 GB)",
        "glm5_kernel: loading shard 2/3 (15.0 of 30.0 GB)",
        "glm5_kernel: loading shard 3/3 (25.0 of 30.0 GB)",
        "glm5_kernel: read 30.0 GB in 25.0 s (1.20 GB/s)",
    ]
    said = [parse_progress(line) for line in lines]
    assert said[1] == ("loading shard 1/3, 10.0 of 30.0 GB", 1 / 3)
    assert said[-1] == ("weights loaded in 25.0 s", None)


def test_silent_on_other_ranks() -> None:
    progress = Progress(1, 0, None)
    progress.add(0, 5)
    progress.finish()
