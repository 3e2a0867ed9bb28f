"""Tests of `siltstone.cleaner`."""
