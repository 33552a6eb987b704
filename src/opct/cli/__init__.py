"""The command line: each module parses, calls one function of the package, and prints."""
