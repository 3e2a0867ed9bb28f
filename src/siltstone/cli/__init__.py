"""The command line: a module for a command or a few, which ``main`` puts together."""
