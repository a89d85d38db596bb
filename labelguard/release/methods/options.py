"""The options of mechanisms under the name that an older installation's entry points have."""

from labelguard.release.mechanisms.options import (
    EvaluationOptions as EvaluationOptions,
)
from labelguard.release.mechanisms.options import (
    PropsOptions as PropsOptions,
)
from labelguard.release.mechanisms.options import (
    RandomizedResponseOptions as RandomizedResponseOptions,
)
from labelguard.release.mechanisms.options import (
    StatisticOptions as StatisticOptions,
)
