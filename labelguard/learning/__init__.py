"""Arrays in, heads out: features of pairs, linear heads, learners."""
