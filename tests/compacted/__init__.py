"""Tests of compaction beside the originals."""
