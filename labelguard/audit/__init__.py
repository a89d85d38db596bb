"""Audits: lower bounds on what a mechanism costs, found by attacking it with synthetic canaries.

An audit runs the code that releases labels in two worlds that differ in the labels of one made-up
labeler, the canary, and measures how well an attacker tells the outputs apart. Nobody's labels are
read. A bound above the claim proves that the claim is false; a bound below it proves nothing, but
leaves a mistake little room (Jagielski, Ullman and Oprea 2020; Nasr et al. 2023).
"""

from __future__ import annotations

from labelguard.audit.result import FALSE_ALARM, AuditResult, Check

__all__ = ["FALSE_ALARM", "AuditResult", "Check"]
