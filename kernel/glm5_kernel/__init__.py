"""GPU-side part of glm5-deploy: sparse MLA attention in Triton.

Importing this package needs neither torch nor triton; `glm5_kernel.ops` does.
"""

__version__ = "0.1.0"
