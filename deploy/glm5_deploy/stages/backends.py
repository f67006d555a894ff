"""Which GPUs the attention backends of vLLM 0.26 serve, so far as preflight must know."""

from __future__ import annotations

from glm5_deploy.config.models import Profile
from glm5_deploy.stages.cuda import shown

_MAJORS: dict[str, tuple[int, ...]] = {
    "CUTLASS_MLA": (10,),
    "FLASH_ATTN_MLA": (9,),
    "FLASH_ATTN_MLA_SPARSE": (9,),
    "FLASHINFER_MLA": (10,),
    "FLASHINFER_MLA_SPARSE": (10,),
    "FLASHINFER_MLA_SPARSE_SM120": (12,),
    "FLASHMLA": (9, 10),
    "FLASHMLA_SPARSE": (9, 10),
    "TOKENSPEED_MLA": (10,),
}
"""By each backend's own `supports_compute_capability`; those that serve any GPU are left out."""

_FP8_IN_HARDWARE = (8, 9)


def backend_problem(name: str, capability: tuple[int, int]) -> str | None:
    """Why a backend that was asked for will be refused on this GPU; None where it will not."""
    majors = _MAJORS.get(name.upper())
    if majors is None or capability[0] in majors:
        return None
    served = " and ".join(f"{major}.x" for major in majors)
    return (
        f"attention backend {name} serves capability {served}, these GPUs have {shown(capability)}"
    )


def oldest_capability(profile: Profile) -> tuple[int, int] | None:
    """The oldest GPU that can serve what the profile asks for; None where nothing says.

    A sparse MLA model and an fp8 KV cache need fp8 in hardware: vLLM's
    `_fused_indexer_q_rope_quant_kernel` does not compile before capability 8.9.
    """
    options = profile.serve.options
    cache, backend = (str(options.get(key)) for key in ("kv-cache-dtype", "attention-backend"))
    ours = profile.engine.kernel and backend.upper() == "CUSTOM"
    return _FP8_IN_HARDWARE if ours or cache.startswith("fp8") else None
