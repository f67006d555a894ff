"""glm5-kernel as a library here: its reader of GGUF headers needs neither torch nor a GPU.

It is no dependency that pip installs: a checkout has its source beside ours, and our wheel carries
its wheel, which Python imports from as it is.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from glm5_deploy.errors import Glm5Error

_PACKAGE = Path(__file__).resolve().parent


def require_kernel_package() -> None:
    """Make ``import glm5_kernel`` work.

    Raises:
        Glm5Error: this installation has no glm5-kernel.
    """
    if find_spec("glm5_kernel") is not None:
        return
    shipped = sorted((_PACKAGE / "_data" / "wheels").glob("glm5_kernel-*.whl"))
    source = _PACKAGE.parents[1] / "kernel"
    if shipped:
        sys.path.append(str(shipped[-1]))
    elif (source / "glm5_kernel").is_dir():
        sys.path.append(str(source))
    else:
        raise Glm5Error(
            "glm5-kernel is not part of this installation",
            "install glm5-deploy from a wheel, or run it from a checkout",
        )
