"""Parts of bench/dpo_utility.py: texts with a planted preference, a small model, labels, tables."""
