"""Exports for other trainers, tried in their own environments and by their own code.

    python bench/other_trainers.py make WORK              # here: a model, releases, exports
    ENV/bin/python bench/other_trainers.py run NAME WORK  # NAME (trl, llama-factory, axolotl) is in
                                                          # ENV; labelguard need not be: 3 steps
    python bench/other_trainers.py read NAME WORK SOURCE  # by a checkout of NAME: openrlhf,
                                                          # open-instruct, nemo-rl

On a CPU install torch first. LLaMA-Factory then runs without torchvision, and with a torchaudio
whose libraries are removed; axolotl with its requirements but xformers, torchao and triton.
"""

from __future__ import annotations

import ast
import importlib
import logging
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

STEPS = 3
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
EXAMPLES = Path(__file__).parents[1] / "examples" / "noisy_losses"


def make(work: Path) -> None:
    """Make a model of bytes, releases of texts and of chats, and an export of each."""
    import numpy as np
    import pyarrow as pa

    import labelguard as lg
    from labelguard.release.frameworks import FRAMEWORKS

    make_model(work / "model")
    draw = np.random.default_rng(0)
    words = [" ".join(draw.choice(["yes", "no", "fine", "poor"], 3)) for _ in range(600)]
    texts = {
        "prompt": [f"{n}?" for n in range(300)],
        "chosen": words[:300],
        "rejected": words[300:],
    }
    for kind in ("text", "chat"):
        columns = {
            name: [[{"role": "user" if name == "prompt" else "assistant", "content": t}] for t in c]
            if kind == "chat"
            else c
            for name, c in texts.items()
        }
        table = pa.table({**columns, "labeler_id": [f"w{n % 50}" for n in range(300)]})
        for mechanism, more in {"rr": {}, "statistic": {"features": "length"}}.items():
            project = lg.init(work / f"{kind}-{mechanism}")
            release = lg.privatize(
                table, mechanism=mechanism, epsilon=3, delta=1e-5, project=project, **more
            )
            for name in FRAMEWORKS:
                out = work / name / f"{kind}-{mechanism}"
                copies = 1 if mechanism == "rr" else 4
                exported = lg.export(release, out, to=name, copies=copies)
                (out / "command").write_text(exported.command)
                print(f"{out}: {exported.rows} rows, noise {exported.noise}, {exported.rate}")


def make_model(directory: Path) -> None:
    """Save a GPT-2 of two narrow layers, whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, set_seed

    set_seed(0)
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "<pad>"]
    backend = Tokenizer(models.BPE(vocab={name: n for n, name in enumerate(names)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", pad_token="<pad>", model_max_length=256
    )
    tokenizer.chat_template = TEMPLATE
    sizes = {"vocab_size": len(names), "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 256, "eos_token_id": 256, "pad_token_id": 257}
    GPT2LMHeadModel(GPT2Config(**sizes, **ends)).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


MORE = {
    "trl": f"--max_steps {STEPS} --per_device_train_batch_size 4 --bf16 False --max_length 200 "
    "--report_to none --logging_steps 1 --save_strategy no",
    "llama-factory": f"--max_steps {STEPS} --per_device_train_batch_size 4 --finetuning_type full "
    "--cutoff_len 200 --logging_steps 1 --report_to none --save_strategy no --overwrite_cache "
    "--overwrite_output_dir",
    "axolotl": "",
}


def run(name: str, work: Path) -> None:
    """Take steps on all exports for a trainer, by the command that export printed."""
    bin_directory = Path(sys.executable).parent
    paths = {"PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}"}
    offline = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "AXOLOTL_DO_NOT_TRACK": "1"}
    for export in sorted((work / name).iterdir()):
        command = (export / "command").read_text().replace("MODEL", str(work / "model"))
        command = command.replace("DIR", str(export))
        command = command.replace("OUT", str(work / "out" / name / export.name))
        command = command.replace("TEMPLATE", "default")
        words = [*shlex.split(command), *shlex.split(MORE[name])]
        environment = {**os.environ, **paths, **offline}
        if name == "axolotl":
            (export / "axolotl.yaml").write_text(cpu_only((export / "axolotl.yaml").read_text()))
        if name == "axolotl" and export.name == "text-rr":  # once with the rate of each row
            text = (export / "axolotl.yaml").read_text()
            (export / "axolotl.yaml").write_text(text + "plugins:\n- axolotl_plugin.NoisePlugin\n")
            environment["PYTHONPATH"] = str(EXAMPLES)
        done = subprocess.run(words, cwd=export, env=environment, capture_output=True, text=True)
        output = done.stdout + done.stderr
        steps = [line for line in output.replace("\r", "\n").split("\n") if "'loss'" in line]
        print(f"{name} {export.name}: exit code {done.returncode}, {len(steps)} steps")
        print("\n".join(step.strip()[:100] for step in steps) or output[-2000:])


def cpu_only(section: str) -> str:
    """Return the section for a machine without a GPU."""
    settings = f"bf16: false\nfp16: false\ntf32: false\nuse_cpu: true\nmax_steps: {STEPS}\n"
    settings += "optimizer: adamw_torch\nsequence_len: 200\nlogging_steps: 1\n"
    return section if settings in section else section + settings


def open_packages(source: Path, *names: str) -> None:
    """Let modules of packages be imported without what their `__init__` imports."""
    for name in names:
        package = ModuleType(name)
        package.__path__ = [str(source.joinpath(*name.split(".")))]
        sys.modules[name] = package


def stand_in(name: str, **members: object) -> None:
    """Put a module with these members in place of one that needs a cluster."""
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
    parent, _, child = name.rpartition(".")
    setattr(sys.modules[parent], child, module)


def read_openrlhf(export: Path, tokenizer: Any, source: Path) -> None:
    """Read an export as OpenRLHF's `train_dpo` does."""
    open_packages(source, "openrlhf", "openrlhf.datasets", "openrlhf.utils")
    blend = importlib.import_module("openrlhf.datasets.utils").blending_datasets
    rewards = importlib.import_module("openrlhf.datasets.reward_dataset").RewardDataset
    keys = {f"{name}_key": name for name in ("prompt", "chosen", "rejected")}
    data = SimpleNamespace(**keys, apply_chat_template=export.name.startswith("chat"))
    strategy = SimpleNamespace(
        args=SimpleNamespace(data=data), print=lambda *_: None, is_rank_0=lambda: False
    )
    rows = blend(str(export / "pairs.parquet"), strategy=strategy)
    dataset = rewards(rows, tokenizer, 200, strategy, is_dpo=True, num_processors=1)
    chosen, _, rejected, _, _ = dataset[0]
    shown = [tokenizer.decode(side[0]) for side in (chosen, rejected)]
    print(f"{len(dataset)} rows: {shown[0]!r} over {shown[1]!r}")


def read_open_instruct(export: Path, tokenizer: Any, source: Path) -> None:
    """Read an export as open-instruct's `dpo.py` does."""
    open_packages(source, "open_instruct")
    members = {"hf_whoami": None, "max_num_processes": lambda: 1, "setup_logger": logging.getLogger}
    for name in ("launch_utils", "logger_utils", "utils"):
        stand_in(f"open_instruct.{name}", **members)
    code = importlib.import_module("open_instruct.dataset_transformation")
    config = code.DatasetConfig(str(export / "pairs.parquet"), "train", "main")
    row = code.preference_tulu_tokenize_and_truncate_v1(config.dataset[0], tokenizer, 200)
    shown = [tokenizer.decode(row[f"{side}_input_ids"]) for side in ("chosen", "rejected")]
    print(f"{len(config.dataset)} rows: {shown[0]!r} over {shown[1]!r}")


def read_nemo_rl(export: Path, tokenizer: Any, source: Path) -> None:
    """Read an export as NeMo-RL's `run_dpo.py` does, and see what a row's multiplier does."""
    import torch

    packages = ("", ".data.datasets", ".data.datasets.preference_datasets")
    open_packages(source, *(f"nemo_rl{name}" for name in packages))
    home = "nemo_rl.data.datasets.preference_datasets.preference_dataset"
    dataset = importlib.import_module(home).PreferenceDataset(
        str(export / "pairs.jsonl"), split="train"
    )
    process = importlib.import_module("nemo_rl.data.processors").preference_preprocessor
    task = importlib.import_module("nemo_rl.data.interfaces").TaskDataSpec(task_name="labelguard")
    row = process(dataset.dataset[0], task, tokenizer, 200, 0)
    shown = ["".join(m["content"] for m in row[f"message_log_{s}"]) for s in ("chosen", "rejected")]
    print(f"{len(dataset.dataset)} rows: {shown[0]!r} over {shown[1]!r}, {row['loss_multiplier']}")
    names = {"torch": torch, "Tensor": torch.Tensor, "Optional": Optional}
    define(source / "nemo_rl/algorithms/utils.py", ["masked_mean"], names)
    methods = ["_preference_loss", "split_output_tensor"]
    define(source / "nemo_rl/algorithms/loss/loss_functions.py", methods, names)
    split = SimpleNamespace(split_output_tensor=lambda t: names["split_output_tensor"](None, t))
    whole, half = (
        names["_preference_loss"](
            split, torch.tensor([1.0, 0, 1, 0]), torch.tensor([1, 1, w, w]), torch.tensor(4.0)
        )[0]
        for w in (1.0, 0.5)
    )
    print(f"a row at multiplier 0.5 counts {float(2 * half / whole - 1):.3f} in NeMo-RL's loss")


def define(file: Path, functions: list[str], names: dict[str, object]) -> None:
    """Define functions of a file that imports what is not here."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            exec(compile(ast.Module([node], []), file.name, "exec"), names)


READERS = {
    "openrlhf": read_openrlhf,
    "open-instruct": read_open_instruct,
    "nemo-rl": read_nemo_rl,
}


def read(name: str, work: Path, source: Path) -> None:
    """Read all exports for a trainer by the code of its checkout."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(work / "model")
    for export in sorted((work / name).iterdir()):
        print(f"{name} {export.name}:", end=" ")
        READERS[name](export, tokenizer, source)


if __name__ == "__main__":
    action, *words = sys.argv[1:]
    names = words[: len(words) - (2 if action == "read" else 1)]
    {"make": make, "run": run, "read": read}[action](
        *names, *(Path(w) for w in words[len(names) :])
    )
