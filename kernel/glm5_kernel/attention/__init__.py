"""The sparse MLA attention backend for vLLM: `backend` and `selection`."""

NAME = "TRITON_MLA_SPARSE"
CLASS_PATH = "glm5_kernel.attention.backend.TritonMLASparseBackend"
