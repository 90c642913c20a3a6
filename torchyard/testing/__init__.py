"""Checks for code that extends torchyard: the contract that every launcher must keep (docs/extend.md)."""

from torchyard.testing.launcher_contract import RULES, BrokenRule, check_launcher, check_plan

__all__ = ["RULES", "BrokenRule", "check_launcher", "check_plan"]
