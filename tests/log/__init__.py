"""Tests of `siltstone.log`."""
