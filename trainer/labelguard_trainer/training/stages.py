"""Stages of PROPS with language models: each trains on from the model of the stage before.

The reference is the base model in all stages; its log-probabilities are functions of public pairs,
computed once. Models are kept under names that tell what they were trained on, and appear whole:
what is there need not be trained again, and what was interrupted goes on from its last checkpoint.
On a CPU the outcome is the same to the last bit.
"""

from __future__ import annotations

import gc
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from numpy.typing import NDArray
from peft import LoraConfig, PeftModel, load_peft_weights, set_peft_model_state_dict
from transformers import PrinterCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from labelguard.errors import LabelguardError
from labelguard.learning.learners import Scorer, State
from labelguard.storage import arrays
from labelguard.storage.files import fresh_directory, publish_directory, write_atomically
from labelguard.terms import Progress
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from labelguard_trainer.training import models
from labelguard_trainer.training.pair_tokens import tokenized
from labelguard_trainer.training.rows import FLIP, TARGET, WEIGHT
from labelguard_trainer.training.settings import Kind

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

_TRAINERS = {"dpo": (DPOConfig, DPOTrainer), "reward": (RewardConfig, RewardTrainer)}
_REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")
_QUIET = {"report_to": "none", "disable_tqdm": True}
_SCORING = {"per_device_eval_batch_size": 16}


