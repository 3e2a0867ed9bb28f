"""Tests of `siltstone.log.tiered`."""
