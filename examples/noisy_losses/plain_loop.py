"""DPO on a release in a plain loop: `python plain_loop.py RELEASE BASE OUT`.

It takes torch, transformers and `labelguard_trainer.losses`; TRL is not needed.
"""

import sys

import torch
from labelguard_trainer import losses
from transformers import AutoModelForCausalLM, AutoTokenizer

import labelguard as lg

release, base, out = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(base)
model, reference = (AutoModelForCausalLM.from_pretrained(base) for _ in range(2))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)


def log_prob(model, prompt, answer):
    """Return the log-probability of an answer, shape (1,)."""
    begin = len(tokenizer(prompt)["input_ids"])
    ids = torch.tensor([tokenizer(prompt + answer)["input_ids"]])
    steps = model(ids).logits[:, :-1].log_softmax(-1)
    return steps.gather(2, ids[:, 1:, None])[:, begin - 1 :, 0].sum(1)


for row in lg.load(release).iter_rows(named=True):
    sides = [(row["prompt"], row[side]) for side in ("chosen", "rejected")]
    with torch.no_grad():
        theirs = [log_prob(reference, *side) for side in sides]
    probability, flip = row["label_probability"], row["flip_probability"]
    noise = {"target": 1.0 if probability is None else probability, "flip_probability": flip or 0.0}
    losses.dpo(*(log_prob(model, *side) for side in sides), *theirs, **noise).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
model.save_pretrained(out)
