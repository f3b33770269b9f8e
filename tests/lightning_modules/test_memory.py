"""Gaps between what is still in use go back to the system, and a stage asks for it."""

import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from headgates.lightning_modules import memory
from tests.lightning_modules.stages import STAGE, train

ROOT = Path(__file__).resolve().parents[2]
glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the C library is not glibc, whose heap this is about"
)

VARIED_SHAPES = """
import random
from benchmarks.product_step import product_step
from headgates.configs.settings import ModelConfig
from headgates.configs.stages import StageConfig
from headgates.data.batch import collate
from headgates.lightning_modules.memory import RELEASE_EVERY, release_memory
from headgates.models.cpu_kernels import TRAINING_PRODUCTS, bound_caches
from headgates.models.transformer import Transformer

bound_caches(TRAINING_PRODUCTS)
rng = random.Random(1)
sizes = {"d_model": 64, "heads": 4, "ffn": 256, "encoder_layers": 1, "decoder_layers": 1}
step = product_step(Transformer(ModelConfig(**sizes), 101, 101), StageConfig(), "32")
resident = lambda: int(open("/proc/self/status").read().split("VmRSS:")[1].split()[0])  # kB
highest, before = [], resident()
for number in range(4 * RELEASE_EVERY):
    source, target = rng.randint(5, 40), rng.randint(5, 40)
    pairs = [([5] * source, [7] * target)] * (1000 // max(source, target))
    step(collate(pairs, range(len(pairs)), len(pairs) * (target + 1)))
    if number % RELEASE_EVERY == 0:
        highest.append(0)
    highest[-1] = max(highest[-1], resident())
    if (number + 1) % RELEASE_EVERY == 0:
        release_memory()
print(before, *highest)
"""


def test_another_system_has_nothing_to_release(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory.release_memory() is False


def test_a_stage_releases_memory_as_it_goes_and_after_validations(translator, data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "release_memory", lambda: asked.append(1))
    monkeypatch.setattr(memory, "RELEASE_EVERY", 3)
    train(translator, data, tmp_path, stage=replace(STAGE, epochs=2))
    assert len(asked) == 2 * (data.sampler().steps // 3 + 1)


@glibc
def test_resident_memory_stays_flat_over_batches_of_all_shapes():
    done = subprocess.run(
        [sys.executable, "-c", VARIED_SHAPES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=True,
    )
    before, *highest = [int(number) / 1024 for number in done.stdout.split()]
    assert len(highest) == 4
    assert max(highest) - before < 450, (
        "MB; some 250 where caches of prepared products are bounded, 900 in bf16 where they are not"
    )
    assert max(highest[2:]) - max(highest[:2]) < 64, (
        f"the largest resident MB of each block of steps: {highest}"
    )
