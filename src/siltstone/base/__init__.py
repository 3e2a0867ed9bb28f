"""What all other packages build on: the record format, settings, file access, the clock, errors."""
