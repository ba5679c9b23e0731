"""Holding a plan against what XLA compiles from it.

In: a plan and its program. Out: a `Verification`: per stage the collectives, memory and resharding that the plan says,
beside those that XLA makes.
"""

from alpaviz.verify.process import verify_plan
from alpaviz.verify.report import CollectiveCheck, MemoryCheck, StageCheck, UnmatchedCollective, Verification

__all__ = ["CollectiveCheck", "MemoryCheck", "StageCheck", "UnmatchedCollective", "Verification", "verify_plan"]
