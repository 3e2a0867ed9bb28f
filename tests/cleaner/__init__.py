"""Tests of `siltstone.compaction`."""
