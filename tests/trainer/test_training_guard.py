"""What is refused before a step is taken, each by one line that says what to do."""

import logging
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from labelguard_trainer.training import check_trl_version, models
from labelguard_trainer.training.rows import RawLabels
from labelguard_trainer.training.settings import check_fields, parse_lora, read_config
from support import tiny_models as tiny

from labelguard.errors import LabelguardError

ROWS = tiny.release(8, flip_probability=0.2)


def config(**given):
    settings = {"max_length": 64, "report_to": "none", "max_steps": 1, "disable_tqdm": True}
    return DPOConfig("out", **{**settings, **given})


def read_refusal(*args, trainer=DPOTrainer, **given):
    """The one line that a trainer refuses with."""
    with pytest.raises(LabelguardError) as raised:
        trainer(*args, **given)
    message = str(raised.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"loss_type": ["hinge"]}, "loss_type ['hinge'] cannot be used here: preference_loss"),
        ({"loss_type": ["sigmoid", "sft"]}, "sft"),
        ({"label_smoothing": 0.1}, "preference_loss='robust'"),
        ({"loss_weights": [0.5]}, "there is one loss"),
        ({"use_weighting": True}, "weighted by their noise"),
        ({"ld_alpha": 0.5}, "ld_alpha"),
        ({"f_divergence_type": "js_divergence"}, "js_divergence"),
        ({"padding_free": True}, "switched it off"),
        pytest.param(
            {"truncation_mode": "keep_end"},
            "keep_end",
            marks=pytest.mark.filterwarnings("ignore::FutureWarning"),
        ),
    ],
)
def test_settings_that_contradict_the_loss_are_refused(given, reason, base):
    assert reason in read_refusal(base, config(**given), train_dataset=ROWS)


def test_fsdp2_without_a_reference_model_cannot_precompute(base, monkeypatch):
    args = config(precompute_ref_log_probs=True)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_VERSION", "2")
    assert "pass a ref_model" in read_refusal(base, args, train_dataset=ROWS)


def wide():
    """Another model's tokenizer."""
    words = tiny.tokenizer()
    words.add_tokens(["<one>", "<more>"])
    return words


@pytest.mark.parametrize(
    ("rows", "given", "arguments", "reason"),
    [
        (ROWS, {}, {"compute_metrics": lambda found: {}}, "use margins()"),
        (ROWS.to_iterable_dataset(), {}, {}, "IterableDataset"),
        (None, {}, {}, "train_dataset is missing"),
        (ROWS.select([]), {}, {}, "no rows"),
        (ROWS.add_column("images", [[]] * 8), {}, {}, "pictures"),
        (ROWS.add_column("margin", [0.5] * 8), {}, {}, "margin column"),
        (ROWS, {"max_length": 257}, {}, "set max_length=256 or less"),
        (ROWS, {"max_length": None}, {}, "max_length is None"),
        (ROWS, {"max_length": 2}, {}, "no row of the train data is left"),
        (ROWS, {}, {"processing_class": wide()}, "260 tokens and the model 258"),
        (tiny.release(8, flip_probability=0.2, chat=True), {}, {}, "no chat template"),
    ],
)
def test_what_does_not_fit_together_is_refused(rows, given, arguments, reason, base):
    args = config(**given)
    assert reason in read_refusal(base, args, train_dataset=rows, **arguments)


def test_what_is_no_model_of_ours_is_named(base):
    nowhere = "nowhere"
    assert nowhere in read_refusal(nowhere, config(), train_dataset=ROWS)
    assert "pass processing_class" in read_refusal(tiny.gpt2(), config(), train_dataset=ROWS)
    theirs = trl.RewardConfig("out", bf16=False)
    assert "DPOConfig" in read_refusal(base, theirs, train_dataset=ROWS)


@pytest.mark.parametrize("trainer", [DPOTrainer, RewardTrainer])
def test_raw_labels_are_refused_unless_they_are_said_to_be_nobodys_secret(trainer, base):
    kind = DPOConfig if trainer is DPOTrainer else RewardConfig
    raw = Dataset(tiny.planted(8))
    with pytest.raises(RawLabels, match="non_private"):
        trainer(base, kind("out", max_length=64), train_dataset=raw)
    held_out = {"train_dataset": tiny.release(8, flip_probability=0.1), "eval_dataset": raw}
    with pytest.raises(RawLabels):
        trainer(base, kind("out", max_length=64), **held_out)
    trainer(base, kind("out", max_length=64, non_private=True), train_dataset=raw)


def test_damaged_weights_are_told():
    path = tiny.saved(Path("cut"))
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    message = read_refusal(str(path), config(), train_dataset=ROWS)
    assert "damaged or half-written" in message
    with pytest.raises(LabelguardError, match="cannot be loaded as a model"):
        models.load_model("dpo", str(path))


def test_a_reward_model_is_no_language_model():
    from transformers import GPT2ForSequenceClassification

    settings = tiny.config()
    settings.num_labels = 3
    GPT2ForSequenceClassification(settings).save_pretrained(Path("scores"))
    tiny.tokenizer().save_pretrained(Path("scores"))
    name = "scores"
    assert "not a causal language model" in read_refusal(name, config(), train_dataset=ROWS)
    args = RewardConfig("out", max_length=64)
    message = read_refusal(name, args, trainer=RewardTrainer, train_dataset=ROWS)
    assert "has 3 outputs" in message


def test_rows_whose_sides_are_equal_after_truncation_are_left_out_and_counted(base, caplog):
    same = [{**row, "rejected": row["chosen"]} for row in ROWS.select([0, 1])]
    long = {**ROWS[2], "chosen": "x" * 60 + "yes", "rejected": "x" * 60 + "no"}
    mixed = Dataset.from_list([*ROWS, *same, long])
    with caplog.at_level(logging.WARNING):
        trainer = DPOTrainer(base, config(preference_loss="robust"), train_dataset=mixed)
    assert trainer.left_out == 3
    assert "3 of 11 rows of the train data are left out" in caplog.text
    assert trainer.train_dataset["row_weight"][:] == pytest.approx([1.0] * 8)
    assert trainer.margins(mixed)[-3:] == pytest.approx([0, 0, 0], abs=1e-6)


def test_another_trl_is_refused():
    check_trl_version("1.16.3")
    for found in ("1.15.2", "1.17.0", "2.0.0"):
        with pytest.raises(LabelguardError, match=r"trl>=1\.16,<1\.17"):
            check_trl_version(found)


def test_no_text_of_a_prompt_is_logged(caplog):
    model = tiny.saved(Path("merging"))
    words = tiny.tokenizer(chat=True)
    # Written alone, a prompt ends with its own text; written with an answer, with another mark.
    words.chat_template = (
        "{% for message in messages %}{{ message['content'] }}"
        "{% if loop.last and add_generation_prompt %}SECRET{% endif %}|{% endfor %}"
    )
    words.save_pretrained(model)
    with caplog.at_level(logging.WARNING):
        DPOTrainer(
            str(model), config(), train_dataset=tiny.release(8, flip_probability=0.2, chat=True)
        )
    assert "is not a prefix" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_model_without_a_tokenizer_is_told():
    tiny.gpt2().save_pretrained(Path("bare"))
    with pytest.raises(LabelguardError, match="cannot be loaded as a tokenizer"):
        models.load_tokenizer("bare")


def test_a_tokenizer_pads_by_its_end_of_text_where_it_has_nothing_else():
    words = tiny.tokenizer()
    words.pad_token = None
    words.save_pretrained(Path("words"))
    assert models.load_tokenizer("words").pad_token == "<eos>"


# Settings of a run, as a user writes them.


def test_lora_on_one_line():
    assert parse_lora("r=16, alpha=32") == {"r": 16, "lora_alpha": 32}
    assert parse_lora("r=4,alpha=8,dropout=.05,targets=c_attn+c_proj") == {
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.05,
        "target_modules": ["c_attn", "c_proj"],
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("r=16", "alpha is missing"),
        ("r=16,alpha=32,rank=2", "'rank=2'"),
        ("r=0,alpha=32", "LoRA's r must be"),
        ("r=16,alpha=1.5", "alpha must be"),
        ("r=16,alpha=32,dropout=1", "dropout must be"),
        ("r=16,alpha=32,targets=a++b", "LoRA's targets must be"),
    ],
)
def test_what_is_wrong_with_lora_is_named(text, named):
    with pytest.raises(LabelguardError, match="LoRA") as raised:
        parse_lora(text)
    assert named in str(raised.value)


def test_a_config_is_a_mapping_in_yaml():
    path = Path("train.yaml")
    path.write_text("learning_rate: 1.0e-5\nnum_train_epochs: 3\n")
    assert read_config(path) == {"learning_rate": 1e-5, "num_train_epochs": 3}
    path.write_text("learning_rate: 1e-5\nlr_scheduler_kwargs: {eta: 2e3, name: e5}\n")
    settings = {"eta": 2e3, "name": "e5"}
    assert read_config(path) == {"learning_rate": 1e-5, "lr_scheduler_kwargs": settings}
    path.write_text("# nothing\n")
    assert read_config(path) == {}


def test_an_unknown_field_is_told_with_the_nearest():
    with pytest.raises(LabelguardError, match="did you mean learning_rate"):
        check_fields("dpo", {"learning_rat": 1e-5})
    with pytest.raises(LabelguardError, match="RewardConfig has no field 'ref_model_sync_steps'"):
        check_fields("reward", {"ref_model_sync_steps": 3})


@pytest.mark.parametrize("name", ["output_dir", "non_private", "preference_loss"])
def test_fields_that_the_command_sets_are_refused(name):
    with pytest.raises(LabelguardError, match=f"{name} cannot be set in a config"):
        check_fields("dpo", {name: "x"})
