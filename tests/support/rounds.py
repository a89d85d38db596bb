"""How long the long rounds of the slow tests are.

`LABELGUARD_ROUNDS=n make test-slow` kills commands at n times as many steps as usual, cuts n times
as many lines, looks at n times as many random tables. The usual rounds of crashes take minutes
together; with 50, what is done at some steps is done at every one, which takes hours.
"""

import os

MORE_ROUNDS = int(os.environ.get("LABELGUARD_ROUNDS", "1"))


def some(steps, apart):
    """Return steps so far apart of these, one at least; nearer each other for more rounds."""
    apart = max(1, apart // MORE_ROUNDS)
    return steps[min(apart, len(steps)) // 2 :: apart]
