"""The base of all other packages: the record format, settings, file access, the clock, errors."""
