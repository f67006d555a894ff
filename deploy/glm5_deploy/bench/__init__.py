"""The benchmark of a served host: what is measured, on the host, and what the results say."""
