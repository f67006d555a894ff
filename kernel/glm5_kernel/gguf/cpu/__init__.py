"""GLM-5 on vLLM for the CPU: attention that is dense, and GGUF's operations without a GPU.

`dense` builds the model without its indexer where that changes nothing, `ops` computes with
quantised weights, `install` puts both in place.
"""
