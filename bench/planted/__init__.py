"""A made-up language with a planted preference, small models of it, and training on releases."""
