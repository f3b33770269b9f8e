"""fairseq:CHECKPOINT against what real fairseq said, and against fairseq's Transformer in plain torch."""

import argparse
import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from headgates.bridges.fairseq import read
from headgates.configs.source import ForeignOptions
from headgates.models.translator import Translator
from tests.worlds.plain_fairseq import PlainFairseq, of_old, random_checkpoint

FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/fairseq"
needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason="needs ../shared/fixtures/fairseq")
CHECKPOINTS = [
    "iwslt_like/checkpoint_best.full.pt",
    "iwslt_like/checkpoint_legacy_style.pt",
    "prenorm_shared/checkpoint_best.pt",
    "tiny_full/checkpoint_best.pt",
]
TIE = 1e-5  # nats a token: two hypotheses nearer than this in score are equally good
OPTIONS = {
    "plain": {},
    "much at once": {
        "encoder_learned_pos": True,
        "activation_fn": "gelu",
        "layernorm_embedding": True,
        "decoder_normalize_before": True,
        "no_scale_embedding": True,
        "decoder_attention_heads": 4,
        "decoder_ffn_embed_dim": 7,
    },
    "one table, pre-norm encoder": {"share_all_embeddings": True, "encoder_normalize_before": True},
    "two tables": {
        "share_decoder_input_output_embed": True,
        "decoder_learned_pos": True,
        "activation_fn": "swish",
        "encoder_layers": 3,
    },
}


def opened(path: Path, **options) -> Translator:
    return read(str(path), ForeignOptions(**options)).convert().translator


def same_weights(a: Translator, b: Translator) -> bool:
    ours, theirs = a.model.state_dict(), b.model.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


# ---------------------------------------------------------------- what real fairseq said


@needs_fixtures
@pytest.mark.parametrize("name", CHECKPOINTS)
@torch.inference_mode()
def test_probabilities_and_encoder_outputs_are_fairseq_s(name):
    model, stored = opened(FIXTURES / name).model, np.load((FIXTURES / name).parent / "teacher_forced.npz")
    for i in range(8):
        source, before, after = (
            torch.from_numpy(stored[f"{part}_{i}"]).long()[None] for part in ("src", "prev", "tgt")
        )
        logits = model(source, before)
        found = logits.log_softmax(-1).gather(2, after[:, :, None]).flatten()
        torch.testing.assert_close(found, torch.from_numpy(stored[f"lp_{i}"]), atol=1e-4, rtol=0)
        if f"enc_{i}" in stored:
            torch.testing.assert_close(
                model.encode(source)[0][0], torch.from_numpy(stored[f"enc_{i}"]), atol=1e-5, rtol=0
            )
            torch.testing.assert_close(logits[0], torch.from_numpy(stored[f"logits_{i}"]), atol=1e-4, rtol=0)


@needs_fixtures
@pytest.mark.parametrize(
    ("fixture", "beam"), [("iwslt_like", 5), ("prenorm_shared", 5), ("tiny_full", 5), ("tiny_full", 1)]
)
def test_hypotheses_are_those_of_fairseq_generate(fixture, beam):
    """All best ones are equal, or tied. Of five, others may differ: in the step in which its fifth ends,
    fairseq keeps those that rank first in the beam, we all that end, and then the five of the best score:
    ours are as good at every rank."""
    translator = opened(FIXTURES / fixture / "checkpoint_best.pt")
    stored = np.load(FIXTURES / fixture / "teacher_forced.npz")
    name = "generate_greedy.jsonl" if beam == 1 else "generate_beam5.jsonl"
    lines = (FIXTURES / fixture / name).read_text().splitlines()
    sources = [stored[f"src_{i}"][:-1].tolist() for i in range(len(lines))]
    found = translator.n_best(sources, replace(translator.search, beam=beam))
    for ours, line in zip(found, lines, strict=True):
        expected = json.loads(line)["hyps"]
        scores = [ours[0].score, *(other["score_ln"] for other in expected)]
        tied = len(expected) > 1 and max(scores[:3]) - min(scores[:3]) < TIE
        text = translator.target_vocab.decode([ours[0].ids])[0]
        pieces = " ".join(translator.target_vocab.pieces(ours[0].ids))
        assert (pieces, text) == (expected[0]["bpe"], expected[0]["text"]) or tied
        for each, other in zip(ours, expected, strict=True):
            assert each.score > other["score_ln"] - TIE


# ---------------------------------------------------------------- what plain torch says


@pytest.fixture(params=OPTIONS.values(), ids=OPTIONS.keys())
def checkpoint(request, tmp_path) -> tuple[Path, dict]:
    return tmp_path / "model.pt", random_checkpoint(tmp_path / "model.pt", **request.param)


def test_it_computes_what_the_description_says(checkpoint):
    path, _ = checkpoint
    plain, translator = PlainFairseq(path), opened(path)
    for source, target in (([5, 6, 7, 3, 9], [4, 8, 8]), ([4], [])):
        found = translator.model(torch.tensor([[*source, 2]]), torch.tensor([[2, *target]])).log_softmax(-1)[
            0
        ]
        torch.testing.assert_close(
            found[range(len(target) + 1), [*target, 2]], plain.log_probs(source, target), atol=1e-5, rtol=0
        )


def test_old_names_are_upgraded(checkpoint):
    path, content = checkpoint
    new = opened(path)
    torch.save(of_old(content), path, _use_new_zipfile_serialization=False)
    assert same_weights(new, opened(path))


def test_options_are_found_in_args_and_in_both_kinds_of_cfg(checkpoint):
    path, content = checkpoint
    plain, args = opened(path), vars(content.pop("args"))
    task = {"_name": "translation", "source_lang": "en", "target_lang": "de"}
    nested = {stack: {} for stack in ("encoder", "decoder")}
    for name, value in args.items():
        stack, _, rest = name.partition("_")
        if name != "task":
            nested.get(stack, nested)[rest if stack in nested else name] = value
    for model in (argparse.Namespace(**args), args, nested):
        torch.save({**content, "args": None, "cfg": {"task": task, "model": model}}, path)
        assert same_weights(plain, opened(path))
        assert opened(path).model.config == plain.model.config


def test_half_precision_becomes_single(tmp_path):
    content = random_checkpoint(tmp_path / "model.pt")
    halves = {name: tensor.half() for name, tensor in content["model"].items()}
    torch.save({**content, "model": halves}, tmp_path / "model.pt")
    model = opened(tmp_path / "model.pt").model
    assert torch.equal(model.source_embedding.weight, halves["encoder.embed_tokens.weight"].float())


@pytest.mark.parametrize("version", [None, 1.0, 2.0, 3.0])
def test_norms_at_the_end_follow_the_version_buffers(version, tmp_path):
    """fairseq drops the encoder's below version 2, the decoder's up to 2, and both without a version."""
    content = random_checkpoint(
        tmp_path / "model.pt", encoder_normalize_before=True, decoder_normalize_before=True
    )
    for stack in ("encoder", "decoder"):
        content["model"][f"{stack}.version"] = torch.tensor([version or 0.0])
        if version is None:
            del content["model"][f"{stack}.version"]
    torch.save(content, tmp_path / "model.pt")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = opened(tmp_path / "model.pt").model.config
    left = {"encoder": (version or 0) >= 2, "decoder": (version or 0) >= 3}
    assert {stack: config.has_final_norm(stack) for stack in left} == left
    assert len([each for each in caught if "norm at the" in str(each.message)]) == 2 - sum(left.values())


def test_a_decoder_trained_without_a_norm_at_its_end_is_read(tmp_path):
    path = tmp_path / "model.pt"
    content = random_checkpoint(path, decoder_normalize_before=True, no_decoder_final_norm=True)
    for part in ("weight", "bias"):
        content["model"].pop(f"decoder.layer_norm.{part}", None)
    torch.save(content, path)
    assert not opened(path).model.config.has_final_norm("decoder")


# ---------------------------------------------------------------- languages and dictionaries


def test_languages_come_from_the_flags_the_checkpoint_or_the_text(tmp_path):
    path = tmp_path / "model.pt"
    random_checkpoint(path)
    settings = read(str(path), ForeignOptions()).convert().settings
    assert (settings["src"], settings["tgt"]) == ("en", "de")
    random_checkpoint(path, source_lang=None, target_lang=None)
    with pytest.raises(ValueError, match="give fairseq:FILE,src=SRC,tgt=TGT"):
        opened(path)
    assert read(str(path), ForeignOptions(src_lang="en", tgt_lang="de")).convert().settings["tgt"] == "de"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/valid.en-de.en.idx").write_bytes(b"")
    assert read(str(path), ForeignOptions()).convert().settings["tgt"] == "de"


def test_dictionaries_may_lie_elsewhere(tmp_path):
    random_checkpoint(tmp_path / "model.pt")
    (tmp_path / "elsewhere").mkdir()
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").rename(tmp_path / f"elsewhere/dict.{language}.txt")
    with pytest.raises(ValueError, match=r"no file .*dict\.en\.txt"):
        opened(tmp_path / "model.pt")
    assert len(opened(tmp_path / "model.pt", dictionaries=str(tmp_path / "elsewhere")).source_vocab) == 15


def test_a_dictionary_of_another_size_is_refused(tmp_path):
    random_checkpoint(tmp_path / "model.pt")
    (tmp_path / "dict.en.txt").write_text("a 1\n")
    with pytest.raises(
        ValueError, match=r"dict\.en\.txt in .* has 5 entries, .* but the model has 15 source embeddings"
    ):
        opened(tmp_path / "model.pt")


# ---------------------------------------------------------------- what is refused


class Runs:
    """Its pickle calls a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("call", [(os.system, "touch {}"), (eval, "open('{}', 'w')")])
def test_a_pickle_that_calls_is_refused_by_name_and_runs_nothing(call, zipped, tmp_path):
    content, sign = random_checkpoint(tmp_path / "model.pt"), tmp_path / "it ran"
    function, *words = call
    name = f"{function.__module__}.{function.__name__}".removeprefix("builtins.")
    content["extra_state"] = Runs(function, *(word.format(sign) for word in words))
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=f"holds {name}, which is not read: it could run code") as caught:
        opened(tmp_path / "model.pt")
    assert len(str(caught.value).splitlines()) == 1
    assert not sign.exists()


def test_numbers_of_numpy_in_the_statistics_are_passed_over(tmp_path):
    content = random_checkpoint(tmp_path / "model.pt")
    content["extra_state"] = {
        "metrics": [np.arange(3), np.float64(0.5), np.array(["x", None], dtype=object)],
        "best": np.int64(7),
    }
    torch.save(content, tmp_path / "model.pt")
    assert len(opened(tmp_path / "model.pt").target_vocab) == 14


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_cut_short_is_one_clear_error(zipped, tmp_path):
    content = random_checkpoint(tmp_path / "model.pt")
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "model.pt").read_bytes()
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 30):
        (tmp_path / "model.pt").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"model\.pt is not a whole checkpoint") as caught:
            opened(tmp_path / "model.pt")
        assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda content: content.pop("args"),
            "neither 'cfg' nor 'args' has options",
        ),
        (
            lambda content: content.pop("model"),
            "under 'model' it has no dict of tensors; it has args, extra_state",
        ),
        (lambda content: content["model"].update(extra=3), "under 'model' it has no dict of tensors"),
        (
            lambda content: content["model"].pop("decoder.layers.1.fc2.bias"),
            "Missing key.*decoder.layers.1.feed_forward.outer.bias",
        ),
        (
            lambda content: content["model"].pop("encoder.embed_tokens.weight"),
            "has no matrix encoder.embed_tokens.weight",
        ),
        (
            lambda content: delattr(content["args"], "encoder_attention_heads"),
            "expected options encoder_attention_heads",
        ),
        (
            lambda content: setattr(content["args"], "decoder_attention_heads", 5),
            "d_model 12 cannot be split into 5 heads",
        ),
        (
            lambda content: setattr(content["args"], "adaptive_softmax_cutoff", [5]),
            r"trained with adaptive_softmax_cutoff = \[5\]",
        ),
        (
            lambda content: setattr(content["args"], "task", "multilingual_translation"),
            "of the task 'multilingual_translation'",
        ),
    ],
)
def test_what_is_wrong_or_not_ours_is_named(change, message, tmp_path):
    content = random_checkpoint(tmp_path / "model.pt")
    change(content)
    torch.save(content, tmp_path / "model.pt")
    with pytest.raises(ValueError, match=message):
        opened(tmp_path / "model.pt")


def test_a_folder_and_a_file_that_is_not_there_are_named(tmp_path):
    random_checkpoint(tmp_path / "model.pt")
    with pytest.raises(ValueError, match=r"is a folder; give a checkpoint in it, .*: it has model\.pt"):
        read(str(tmp_path), ForeignOptions())
    with pytest.raises(ValueError, match=r"no checkpoint at .*none\.pt"):
        read(str(tmp_path / "none.pt"), ForeignOptions())
