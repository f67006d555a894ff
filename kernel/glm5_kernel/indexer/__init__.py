"""The DSA indexer for vLLM: `choice` decides, `layer` takes the place of vLLM's, `op` computes."""

OP = "glm5_kernel::sparse_attn_indexer"
