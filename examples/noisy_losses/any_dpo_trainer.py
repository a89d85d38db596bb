"""A subclass of any `DPOTrainer`, of TRL or built on it, that takes the γ of each row.

The loss has to be `robust`, and the rows need the column `flip_probability` (`release export --to
trl` or `--to axolotl` writes it). TRL's `robust` is the unbiased one of `labelguard_trainer.losses`
with one rate for all rows; here that rate is a tensor, of a batch's rows.
"""

import torch
from trl import DPOTrainer


def honour_flips(trainer):
    """Give each row's γ to the robust loss of a trainer that is about to train."""
    collate, compute_loss = trainer.data_collator, trainer.compute_loss

    def collate_with_flips(rows):
        flips = torch.tensor([row["flip_probability"] or 0.0 for row in rows])
        return {**collate(rows), "flip_probability": flips}

    def compute_noisy_loss(model, inputs, *args, **options):
        trainer.label_smoothing = inputs.pop("flip_probability")
        return compute_loss(model, inputs, *args, **options)

    trainer.data_collator, trainer.compute_loss = collate_with_flips, compute_noisy_loss
    trainer.args.remove_unused_columns = False


class NoisyDPOTrainer(DPOTrainer):
    """TRL's trainer, of whichever version."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        honour_flips(self)
