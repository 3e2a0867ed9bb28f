"""Tests of what an operator relies on, point by point (docs/operating.md, "What you can rely on")."""
