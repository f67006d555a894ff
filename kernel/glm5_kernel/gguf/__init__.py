"""GLM-5 from GGUF: reading, checking and inspecting files, and making tiny ones.

Importing this package, reading a header and inspecting need neither torch nor numpy.
"""
