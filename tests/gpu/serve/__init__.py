"""Serving with our plugin proven against stock vLLM on a GPU; `run.py` is the program."""
