"""Holding a plan against what XLA compiles from it."""
