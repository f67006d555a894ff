"""The NVIDIA driver's error numbers (Xid) that matter here, in words (NVIDIA's Xid catalogue)."""

from __future__ import annotations

_APPLICATION = frozenset({13, 31, 32, 43, 45, 68, 69})
"""A faulty or killed program leaves these; the GPU is well."""

_MEANINGS = {
    46: "the GPU stopped answering",
    48: "memory lost two bits (ECC)",
    61: "an internal microcontroller stopped",
    62: "an internal microcontroller halted",
    63: "a faulty memory row was replaced",
    64: "a faulty memory row could not be replaced",
    74: "an NVLink error",
    79: "the GPU fell off the bus: power, slot or heat",
    92: "many single-bit memory errors",
    94: "a memory error that one program was ended for",
    95: "a memory error that could not be contained",
    119: "the GPU's system processor (GSP) did not answer",
    120: "the GPU's system processor (GSP) failed",
    140: "a memory error that ECC could not mend",
    143: "the GPU could not be initialised",
    154: "the GPU wants to be reset",
}


def application_error(number: int) -> bool:
    """Whether a program caused it rather than the GPU."""
    return number in _APPLICATION


def meaning(number: int) -> str:
    return _MEANINGS.get(number, "see NVIDIA's list of Xid errors")
