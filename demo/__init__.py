"""The demonstration that `make demo` runs; no part of the package."""
