"""A plug-in of axolotl that takes the γ of each row. In the YAML, beside `release export`'s:

    plugins:
      - axolotl_plugin.NoisePlugin
    dpo_loss_type: [robust]

with this directory on PYTHONPATH.
"""

from any_dpo_trainer import honour_flips
from axolotl.integrations.base import BasePlugin


class NoisePlugin(BasePlugin):
    """Honours `flip_probability`. axolotl gives a plug-in's own trainer class no model for DPO."""

    def post_trainer_create(self, cfg, trainer):
        """Called by axolotl once the trainer is there."""
        honour_flips(trainer)
