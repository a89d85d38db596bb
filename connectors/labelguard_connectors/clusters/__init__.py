"""Engines that run the work on buckets in other processes or on other machines.

All of them need the project and its inputs on a file system that every worker sees under the same
path. An engine schedules, retries and places work; the ledger stays with the one command that plans
and charges.
"""
