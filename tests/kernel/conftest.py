"""Without a CUDA device the kernel tests run in Triton's interpreter.

Triton decides when a kernel is decorated, so this must be set before the kernels are imported.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

    from triton.runtime import interpreter

    _patch_tensor = interpreter._patch_lang_tensor

    def _patch_tensor_for_numpy(tensor: Any, scope: Any) -> None:  # noqa: ANN401
        """Triton 3.6 turns one-element arrays into Python integers in a way numpy 2.4 forbids."""
        _patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = _patch_tensor_for_numpy


@pytest.fixture(autouse=True)
def _nothing_remembered() -> None:
    """Tests replace what is remembered of a call's form: a device, a table, a size."""
    from glm5_kernel.ops.forms import forget

    forget()
