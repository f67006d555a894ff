"""A throwaway host on this machine, a tiny model and real vLLM on the CPU."""
