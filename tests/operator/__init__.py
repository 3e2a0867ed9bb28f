"""Tests of what an operator must be able to trust."""
