"""Tests of the Spark engine."""
