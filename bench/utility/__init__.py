"""The parts of `bench/privacy_utility.py` and `bench/calibration.py`."""
