"""From a release to an aligned model: rewards, candidates, synthesis, reinforcement learning."""
