"""Texts encoded by the workers of an engine: the vectors of one process, to the last bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_connectors.clusters.processes import Processes
from labelguard_connectors.clusters.sealing import new_key, open_result, run_sealed_task, seal_task
from labelguard_trainer.features import encoder
from labelguard_trainer.features.encoder import EncodingTask, FrozenEncoder, encode_portion
from support import world
from support.commands import run
from support.preferences import STATISTIC, TABLE, files
from support.releases import make_release
from support.tiny_models import OTHERS, PREFERRED, TOPICS, saved
from support.twice import Twice

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.learning.providers import open_part
from labelguard.storage.executor import Executor, Threads, Workers

PORTION = 16
BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "once": True}

# What an engine does before texts are encoded.
READING = ("stage_file", "sort_bucket", "write_distinct_pairs")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A language model with random weights and a chat template."""
    return saved(tmp_path_factory.mktemp("model"), chat=True)


@pytest.fixture(autouse=True)
def small_portions(tmp_path, monkeypatch):
    """Many tasks of few texts, whose files are in a directory that each test has alone."""
    monkeypatch.setattr(encoder, "_PORTION", PORTION)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    use_cache(tmp_path / "cache", monkeypatch)


def use_cache(directory, patch):
    """Vectors are cached here from now on."""
    patch.setenv("LABELGUARD_CACHE", str(directory))
    return directory


def pairs(count=40):
    """Pairs of texts of different lengths; every fourth first side is the same."""
    draw = np.random.default_rng(0)
    words = (*PREFERRED, *OTHERS, *TOPICS)
    sides = [
        [" ".join(draw.choice(words, size)) for size in draw.integers(1, 30, count)]
        for _ in range(2)
    ]
    sides[0][::4] = ["the same"] * len(sides[0][::4])
    prompts = [f"{TOPICS[row % 4]}?" for row in range(count)]
    return pa.table({"prompt": prompts, "first": sides[0], "second": sides[1]})


def chats():
    """The same as chats."""
    roles = {"prompt": "user", "first": "assistant", "second": "assistant"}
    return pa.table(
        {
            name: [[{"role": role, "content": text}] for text in pairs()[name].to_pylist()]
            for name, role in roles.items()
        }
    )


def encode(spec: str, table: pa.Table, executor: Executor) -> Any:
    """The vectors of a provider whose texts an executor may encode."""
    provider: Any = open_part(spec)
    provider.workers = Workers(executor)
    return provider(table)


@pytest.mark.quick("texts-hf", "chats-verdict")
@pytest.mark.parametrize(
    "spec",
    ["hf:{}", "hf:{},template=chat,pooling=last", "verdict:model={}"],
    ids=["hf", "last", "verdict"],
)
@pytest.mark.parametrize("table", [pairs(), chats()], ids=["texts", "chats"])
def test_what_an_engine_runs_twice_is_cached_once(spec, table, model, tmp_path, monkeypatch):
    spec = spec.format(model)
    seen = []
    for executor in (Threads(2), engine := Twice()):
        cache = use_cache(tmp_path / type(executor).__name__, monkeypatch)
        seen.append((encode(spec, table, executor).tobytes(), files(cache)))
    assert seen[0] == seen[1] and len(seen[0][1]) > 3
    assert engine.works == ["encode_portion"]
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_processes_encode_the_bits_of_threads(workers, model, tmp_path, monkeypatch):
    seen = []
    for executor in (Threads(2), Processes(workers)):
        cache = use_cache(tmp_path / type(executor).__name__, monkeypatch)
        seen.append((encode(f"hf:{model}", pairs(), executor).tobytes(), files(cache)))
        executor.close()
    assert seen[0] == seen[1] and len(seen[0][1]) > 3


def release_and_score(where: Path, spec: str, patch: Any, **place: Any) -> Any:
    """The files of a release, and of its scored input, of vectors that were not cached before."""
    world.fix(patch, world.repeatable_bytes())
    use_cache(where / "cache", patch)
    project = lg.init(where / "project")
    made = make_release(TABLE, project=project, **STATISTIC | {"features": spec} | BUDGET | place)
    use_cache(where / "cache of scores", patch)
    for number in range(2):
        pq.write_table(TABLE.slice(20 * number, 40), where / f"{number}.parquet")
    words = [word for name, value in place.items() for word in (f"--{name}", value)]
    scored = where / "scored.parquet"
    run("score", made.path, where / "0.parquet", where / "1.parquet", "-o", scored, *words)
    return files(made.path), scored.read_bytes()


@pytest.mark.slow
def test_processes_release_and_score_the_bytes_of_threads(model, tmp_path, monkeypatch):
    spec = f"length+hf:{model}"
    here = release_and_score(tmp_path / "here", spec, monkeypatch)
    there = release_and_score(tmp_path / "there", spec, monkeypatch, engine="processes", workers=2)
    assert here == there and "head.npz" in here[0]


@pytest.mark.slow
def test_a_release_and_its_scores_have_texts_encoded_by_the_engine(model, tmp_path, monkeypatch):
    engines = []

    def open_twice(*place: Any) -> Twice:
        engines.append(Twice())
        return engines[-1]

    for module in ("release.privatize", "analysis.agreement"):
        monkeypatch.setattr(f"labelguard.{module}.open_executor", open_twice)
    release_and_score(tmp_path, f"length+hf:{model}", monkeypatch)
    assert [engine.works.count("encode_portion") for engine in engines] == [1, 1]
    assert engines[1].works == [*READING, "encode_portion"]


@pytest.mark.parametrize("named", [True, False], ids=["named", "by default"])
def test_a_plan_has_its_files_read_and_its_texts_encoded_by_the_engine(
    named, model, tmp_path, monkeypatch
):
    engine, spec = Twice(), f"length+hf:{model}"
    monkeypatch.setattr("labelguard.planner.forecast.open_executor", lambda *place: engine)
    monkeypatch.setattr("labelguard.planner.forecast.default_features", lambda: spec)
    pq.write_table(TABLE, tmp_path / "labels.parquet")
    features = spec if named else None
    lg.plan(tmp_path / "labels.parquet", label_values="1-0", epsilons=3, features=features)
    assert engine.works == [*READING, "encode_portion"]


class Interrupted(Twice):
    """An engine that is lost after two results."""

    def map(self, work: Any, task: Any, buckets: Any) -> Iterator[Any]:
        for number, result in enumerate(super().map(work, task, buckets)):
            if number == 2:
                raise LabelguardError("lost")
            yield result


def test_what_came_back_before_an_engine_is_lost_is_not_encoded_again(model, tmp_path, monkeypatch):
    spec = f"hf:{model}"
    with pytest.raises(LabelguardError, match="lost"):
        encode(spec, pairs(), Interrupted())
    encoded = world.note_calls(
        monkeypatch, FrozenEncoder, "encode", lambda own, prompts, *rest: len(prompts)
    )
    encode(spec, pairs(), Threads(1))
    again = sum(encoded)
    use_cache(tmp_path / "empty", monkeypatch)
    encode(spec, pairs(), Threads(1))
    assert sum(encoded) - again == again + 2 * PORTION


def test_few_texts_are_encoded_here(model):
    engine = Twice()
    encode(f"hf:{model}", pairs(PORTION // 2), engine)
    assert not engine.works


def test_a_command_with_a_gpu_encodes_on_it(model, tmp_path, monkeypatch):
    monkeypatch.setattr(FrozenEncoder, "encode", lambda own, *texts: np.ones((len(texts[0]), 3)))
    config, engine = open_part(f"hf:{model}").config, Twice()  # type: ignore[attr-defined]
    for runs_on in ("cuda", "cpu"):
        assert not engine.works
        use_cache(tmp_path / runs_on, monkeypatch)
        provider = FrozenEncoder(config, runs_on=runs_on)
        provider.workers = Workers(engine)
        provider(pairs())
    assert engine.works == ["encode_portion"]


def make_task(directory, model, identity=None):
    """The task of one portion of two texts."""
    provider: Any = open_part(f"hf:{model}")
    task = EncodingTask(FrozenEncoder, provider.config, identity or provider.identity(), directory)
    texts = [pa.array(two, pa.large_string()) for two in (["a?", "b?"], ["yes", "no"])]
    task.write(0, pa.record_batch(texts, names=["prompt", "response"]))
    return task


def run_in_worker(task, number):
    """The result of a task as a cluster runs it."""
    key = new_key()
    return open_result(key, run_sealed_task(seal_task(key, encode_portion, task), key, number))


def test_a_worker_with_another_encoder_encodes_nothing(model, tmp_path):
    assert run_in_worker(make_task(tmp_path, model), 0).shape == (2, 32)
    with pytest.raises(LabelguardError, match=r"^worker .* has no encoder in .*, or another one"):
        run_in_worker(make_task(tmp_path, model, "another"), 0)


def test_a_worker_that_does_not_see_the_texts_encodes_nothing(model, tmp_path):
    task = make_task(tmp_path, model)
    with pytest.raises(LabelguardError, match=r"does not find .*000001\.arrow; an engine needs"):
        run_in_worker(task, 1)


def test_vectors_do_not_depend_on_the_number_of_cores():
    import torch

    prompts, responses = (  # short ones, whose sums threads would share otherwise
        pa.array([f"{word} {row}" for row in range(16)], pa.large_string())
        for word in ("question", "answer")
    )
    config: Any = open_part("minilm").config  # type: ignore[attr-defined]
    before, seen = torch.get_num_threads(), set()
    try:
        for cores in (1, 2, 4):
            torch.set_num_threads(cores)
            seen.add(FrozenEncoder(config).encode(prompts, responses).tobytes())
            assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(before)
    assert len(seen) == 1
