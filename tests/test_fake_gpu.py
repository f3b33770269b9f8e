"""All that the library does with a model on an emulated GPU (tests/worlds/fake_gpu.py): the same numbers as
on the CPU, and no mixture of devices. One process does all of it, so that the device's name stays there."""

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.worlds.ranks import Command

ROOT = Path(__file__).parents[1]
# functions with a model or tensors that no job has to call, and why
ELSEWHERE = {
    "analysis/batches.py:without_loss": "words for an error",
    "analysis/causal_gating.py": "causal_scores is causal_gates with more updates; the others read its maps",
    "analysis/linear_pass.py:tanh": "one product, as in gelu",
    "analysis/roles.py": "reads maps, which lie on the CPU",
    "analysis/word_links.py": "counts the words of a text, on the CPU",
    "analysis/knapsack.py": "tables of losses, which lie on the CPU",
    "analysis/survival.py": "reads maps, which lie on the CPU",
    "gates/unknown.py": "words for an error",
    "gates/rules.py:fits": "reads signatures and sizes",
    "gates/rules.py:calls_output": "reads a class's code",
    "gates/rules.py:has_more_neurons": "reads sizes",
    "gates/depth.py:generated": "of models that generate and are given a batch of their own",
    "gates/own_heads.py:own_outputs": "picks the outputs of a norm over all heads by a mask beside it",
    "gates/position_bias.py:without_bias": "a hook of MPNet",
    "gates/proof.py:tried": "the proof of a rule that a user added",
    "gates/proof.py:noticed": "which modules run, as above",
    "analysis/batches.py:kinds_of": "of models that are none of transformers'",
    "gates/longformer_attention.py": "not run: Longformer and LED take this test beyond its time",
    "gates/wavlm_attention.py": "not run, as above",
    "gates/pruned_folder.py:gone_before": "reads a configuration",
    "gates/alignment_list.py": "numbers of heads in a configuration",
    "gates/torch_attention.py:padded": "nested tensors, of which the emulation has none",
    "gates/torch_attention.py:added": "two masks of torch's attention at once",
}


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, Any]:
    words = [str(ROOT / "tests/worlds/fake_gpu_jobs.py")]
    ((code, out, error),) = Command(words, tmp_path_factory.mktemp("gpu")).end()
    assert code == 0, error[-3000:]
    return json.loads(out.splitlines()[-1])


def test_a_gpu_gives_what_the_cpu_gives_and_no_tensor_is_left_behind(done):
    assert len(done["wrong"]) > 20
    assert {name: why[-1500:] for name, why in done["wrong"].items() if why} == {}


def test_no_function_that_takes_a_model_or_tensors_is_forgotten_on_the_gpu(done):
    wanted = {f"{path}:{name}" for path, name in with_tensors()}
    assert len(wanted) > 150
    missing = wanted - set(done["called"])
    assert {each for each in missing if not {each, each.split(":")[0]} & set(ELSEWHERE)} == set()


def test_the_emulated_gpu_refuses_what_a_gpu_refuses(done):
    assert done["refused"] == {
        "a batch on the CPU": True,
        "an index on the device": True,
        "a generator of the CPU": True,
        "numpy": True,
        "an index on the CPU": False,
        "a number of no dimension": False,
        "a copy": False,
    }


def test_the_emulated_gpu_does_not_leak_into_this_process(done):
    assert not hasattr(torch, "fakegpu")
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"
    assert "tests.worlds.fake_gpu" not in sys.modules


def with_tensors() -> Iterator[tuple[str, str]]:
    """(file, function) of gates/ and analysis/ that has an argument `model`, or of a module or a tensor."""
    for room in ("gates", "analysis"):
        for path in sorted((ROOT / room).rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    kinds = " ".join(ast.unparse(each.annotation) for each in arguments if each.annotation)
                    if "Tensor" in kinds or "Module" in kinds or "model" in {each.arg for each in arguments}:
                        yield path.relative_to(ROOT).as_posix(), node.name
