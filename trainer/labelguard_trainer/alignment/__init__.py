"""From a release to an aligned model: supervised fine-tuning, a reward, reinforcement learning."""
