"""The command line: each module parses arguments, calls one function of the package, and prints."""
