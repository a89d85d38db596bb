"""Training on releases: losses that know each row's noise, TRL trainers, reward models."""
