"""The parts of `bench/privacy_utility.py`."""
