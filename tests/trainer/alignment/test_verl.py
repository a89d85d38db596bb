"""The example for verl, loaded and called as verl's reward managers do."""

import importlib.util
import inspect
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from labelguard.errors import LabelguardError

SOURCE = {"data_source": "ours", "ground_truth": None}


EXAMPLE = Path(__file__).parents[3] / "examples/verl_reward.py"


def write(release, prompt_key="prompt", mix=None):
    text = EXAMPLE.read_text(encoding="utf-8")
    names = {"RELEASE": str(release), "PROMPT_KEY": prompt_key, "MIX": mix or {}}
    for name, value in names.items():
        text, count = re.subn(rf"^{name} = .*$", f"{name} = {value!r}", text, flags=re.MULTILINE)
        assert count == 1
    Path("reward.py").write_text(text)
    return load(Path("reward.py"))


def load(path):
    spec = importlib.util.spec_from_file_location("custom_module", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_response_is_scored_as_the_naive_manager_asks(release, reward):
    module = write(release.path)
    names = list(inspect.signature(module.compute_score).parameters)
    assert names[:4] == ["data_source", "solution_str", "ground_truth", "extra_info"]
    result = module.compute_score(
        **SOURCE,
        solution_str="yes good",
        extra_info={"prompt": "tea?", "num_turns": None, "rollout_reward_scores": {}},
        reward_router_address="127.0.0.1:1",
        reward_model_tokenizer=None,
    )
    assert [*map(type, result.values())] == [float, float]
    assert result["score"] == pytest.approx(reward.score(["tea?"], ["yes good"])[0])
    assert result["distance"] == pytest.approx(reward.distances(["tea?"], ["yes good"])[0])


def test_a_batch_is_scored_as_the_batch_manager_asks(release, reward):
    module = write(release.path, prompt_key="question")
    chat = np.array([{"role": "user", "content": "tea?"}], object)
    results = module.compute_scores(
        data_sources=np.array(["ours"] * 2, object),
        solution_strs=["yes", "no"],
        ground_truths=[None, None],
        extra_infos=np.array([{"question": chat}, {"question": "tea?"}], object),
    )
    expected = reward.score(["tea?"] * 2, ["yes", "no"])
    np.testing.assert_allclose([result["score"] for result in results], expected, rtol=1e-5)


def test_threads_share_one_release(release, reward):
    module = write(release.path, mix={"length": -0.5})
    texts = [f"yes {'no ' * row}" for row in range(64)]
    with ThreadPoolExecutor(8) as threads:
        results = threads.map(
            lambda text: module.compute_score("", text, None, {"prompt": "tea?"})["score"], texts
        )
    mixed = reward.score(["tea?"] * 64, texts) - 0.5 * np.log1p([len(text) for text in texts])
    np.testing.assert_allclose(list(results), mixed, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_functions_of_the_file_go_to_other_processes(release):
    cloudpickle = pytest.importorskip("cloudpickle")
    module = write(release.path)
    Path("function").write_bytes(cloudpickle.dumps(module.compute_score))
    Path("reward.py").unlink()
    code = "import pickle; f = pickle.load(open('function', 'rb')); "
    code += "print(f('', 'yes', None, {'prompt': 'tea?'})['score'])"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = module.compute_score("", "yes", None, {"prompt": "tea?"})["score"]
    assert float(printed) == pytest.approx(expected)


def test_nothing_is_opened_before_the_first_response(release):
    write(release.path)
    code = "import runpy, sys; runpy.run_path('reward.py'); print('labelguard' in sys.modules)"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_what_gives_no_reward_is_told(release):
    copy = shutil.copytree(release.path, Path("copy"))
    module = write(copy, mix={"length": 5e307})
    for info in (None, {}, {"prompt": None}):
        with pytest.raises(ValueError, match="extra_info holds no prompt"):
            module.compute_score("", "yes", None, info)
    with pytest.raises(LabelguardError, match="no finite number"):
        module.compute_score("", "long " * 99, None, {"prompt": "tea?"})
    module = write(copy)
    (copy / "head.npz").write_bytes(b"another")
    with pytest.raises(LabelguardError, match="was altered"):
        module.compute_score("", "yes", None, {"prompt": "tea?"})
