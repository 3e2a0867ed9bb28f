"""Crashes at every step of a change, and what a reopened directory must still hold."""
