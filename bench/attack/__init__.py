"""Parts of bench/preference_attack.py: models that are attacked, and what is guessed from them."""
