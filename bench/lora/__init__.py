"""Parts of bench/lora_utility.py: what labelers say of pairs, ways to learn from it, tables."""
