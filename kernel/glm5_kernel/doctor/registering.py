"""What the plugin registers in a process like the server's, and what it then chooses here."""
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from glm5_kernel.doctor.child import Answer, Emit, Ended
from glm5_kernel.doctor.report import ABSENT, Check, PartState, failed, passed, skipped
from glm5_kernel.doctor.selftest import unavailable
from glm5_kernel.registration import Part

_SHOWN = 3
_REPORT = "report this, unless the row of torch has failed too"
_STEPS = {"names": "vLLM's names", "indexer": "choosing an indexer"}


def answer(emit: Emit) -> None:
    """In a child: what `register()` returns; then, where a GPU is to be served on, whether vLLM has
    the names that the parts use, and which indexer runs.
    """
    from glm5_kernel.plugin import register

    done = register()
    emit({
        "vllm": done.vllm,
        "message": done.message,
        "parts": [asdict(part) for part in done.parts],
    })  # fmt: skip
    parts = [part.name for part in done.parts if part.state == "registered"]
    idle = _idle(parts)
    if idle is not None:
        emit({"idle": idle})
        return
    emit({"begin": "names"})
    emit({"step": "names"} | _names(parts))
    emit({"begin": "indexer"})
    emit({"step": "indexer"} | _indexer(done.part("indexer")))


def _idle(parts: Sequence[str]) -> str | None:
    """Why nothing more is to be asked."""
    if not parts:
        return "no part is registered"
    import torch

    return None if torch.cuda.is_available() else "no GPU"


def _names(parts: Sequence[str]) -> Answer:
    from glm5_kernel.compat import names

    needs = dict.fromkeys(need for part in parts for need in getattr(names, part.upper()))
    return {"count": len(needs), "missing": names.missing(needs)}


def _indexer(part: Part) -> Answer:
    if part.state != "registered":
        return {"unknown": part.reason}
    import torch

    from glm5_kernel.indexer.choice import decide
    from glm5_kernel.settings import read_settings

    try:
        torch.zeros(1, device="cuda")
    except RuntimeError as error:
        if reason := unavailable(error):
            return {"unknown": reason}
        raise
    decision = decide(read_settings(), torch.cuda.get_device_capability())
    return {"choice": decision.name, "reason": decision.reason}


def parts_of(ended: Ended) -> tuple[PartState, ...]:
    """The parts that a child reported; of the indexer, what is chosen on this GPU."""
    found = tuple(
        PartState(part["name"], part["state"], part["reason"])
        for answer in ended.answers
        for part in answer.get("parts", ())
    )
    choice = _step(ended, "indexer")
    if choice is None or "choice" not in choice:
        return found
    state = "registered" if choice["choice"] == "triton" else "stock"
    chosen = PartState("indexer", state, choice["reason"])
    return tuple(chosen if part.name == "indexer" else part for part in found)


def vllm_check(installed: str) -> Check:
    """Whether there is a vLLM to plug into."""
    if installed == ABSENT:
        return failed("vLLM", "absent", "install it into this environment: 0.26.0 serves GLM-5")
    return passed("vLLM", installed)


def registration_checks(ended: Ended) -> tuple[Check, ...]:
    """Whether `register()` did its work, and what it found.

    A vLLM that it does not know, or that lacks what it needs, is a failure.
    """
    first = _registration(ended)
    if first.status == "failed":
        return (first,)
    return (first, *(_step_check(ended, name) for name in _STEPS))


def _registration(ended: Ended) -> Check:
    name = "registration"
    found = next((a for a in ended.answers if "parts" in a), None)
    if found is None:
        hint = "vLLM would end with the same: mend what it says, or report it"
        return failed(name, f"register() failed: {ended.why()}", hint)
    refused = [part for part in parts_of(ended) if part.state == "refused"]
    if not refused:
        return passed(name, found["message"])
    said = all(part.reason == found["message"] for part in refused)
    detail = "; ".join(f"{part.name}: {part.reason}" for part in refused)
    hint = "install a vLLM that works, or serve without glm5-kernel"
    if all(part.reason.startswith("GLM5_") for part in refused):
        hint = "set it to one of these, or leave it out: a model that needs this part is refused"
    return failed(name, found["message"] if said else detail, hint)


def _step_check(ended: Ended, name: str) -> Check:
    title, found = _STEPS[name], _step(ended, name)
    if found is None:
        return _without_answer(ended, name)
    if name == "indexer":
        if "unknown" in found:
            return skipped(title, found["unknown"])
        return passed(title, f"{found['choice']}: {found['reason']}")
    if found["missing"]:
        missing = list(dict.fromkeys(found["missing"]))
        more = f" (and {len(missing) - _SHOWN} more)" if len(missing) > _SHOWN else ""
        hint = "this vLLM is not as released: install the version from its lock anew"
        return failed(title, "; ".join(missing[:_SHOWN]) + more, hint)
    return passed(title, f"{found['count']} that the parts use are as known")


def _without_answer(ended: Ended, name: str) -> Check:
    """Nothing to do, or the process ended in this step or in one before it."""
    idle = next((answer["idle"] for answer in ended.answers if "idle" in answer), None)
    unanswered = next(step for step in _STEPS if _step(ended, step) is None)
    if idle is not None or unanswered != name:
        return skipped(_STEPS[name], idle or "not reached")
    hint = "GLM5_INDEXER=triton keeps DeepGEMM out" if name == "indexer" else _REPORT
    return failed(_STEPS[name], ended.why(), hint)


def _step(ended: Ended, name: str) -> Answer | None:
    return next((answer for answer in ended.answers if answer.get("step") == name), None)
