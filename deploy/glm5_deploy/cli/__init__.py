"""The command line: one module a command, nothing but options and output."""
