"""`labelguard` as a script whose processes shard weights on CPUs, where accelerate would not.

Everything after that is FSDP's own: shards are sent by gloo in place of NCCL.
"""

from accelerate.state import PartialState
from accelerate.utils import DistributedType

from labelguard.cli.main import main

begin = PartialState.__init__


def take_cpus_for_gpus(state, *arguments, **options):
    """Begin as accelerate does; then FSDP is not refused."""
    begin(state, *arguments, **options)
    if state.distributed_type == DistributedType.MULTI_CPU:
        state.distributed_type = DistributedType.MULTI_GPU


if __name__ == "__main__":
    PartialState.__init__ = take_cpus_for_gpus
    main()
