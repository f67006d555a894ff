"""What became of every tensor of a file, in words."""

from __future__ import annotations

from collections import Counter

from glm5_kernel.gguf.errors import listed
from glm5_kernel.gguf.plan import Plan


def summary(plan: Plan) -> str:
    """What is loaded and what is left out, in one line."""
    loaded = len(plan.pieces)
    reasons = Counter(plan.left_out.values())
    left = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
    kept = sum(each.placed.action == "kept" for each in plan.pieces)
    text = f"{loaded} of {loaded + len(plan.left_out)} tensors loaded, {kept} of them quantised"
    return f"{text}; left out: {left}" if left else text


def left_out_by_name(plan: Plan) -> str:
    """Every tensor that is not loaded, by reason, for the debug log."""
    reasons: dict[str, list[str]] = {}
    for name, reason in plan.left_out.items():
        reasons.setdefault(reason, []).append(name)
    return "\n".join(f"{reason}: {listed(names, 10_000)}" for reason, names in reasons.items())
