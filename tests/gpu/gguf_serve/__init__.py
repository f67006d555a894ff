"""GLM-5 from GGUF served by vLLM on a CUDA device; `run.py` is the program."""
