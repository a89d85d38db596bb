"""Commands as tests type them."""

# What a first release of a few labelers takes where nobody is there to ask.
FIRST = ("--once", "--yes", "--accept-little-use")
# `privatize` by randomized response, without a question.
PRIVATIZE = ("privatize", "--mechanism", "rr", *FIRST)
