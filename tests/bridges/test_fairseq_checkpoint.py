"""export --to fairseq: what real fairseq would compute from the file, by a reader of its own written from the
format's description."""

import json
from pathlib import Path

import pytest
import torch

from headgates.bridges.exported import open_exported
from headgates.bridges.formats import export
from headgates.models.translator import Translator
from tests.worlds.plain_fairseq import PlainFairseq
from tests.worlds.translators import SOURCES, TARGETS, settled

FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/fairseq"
MODELS = {
    "tied, sinusoidal, pre-norm": {"joint": True, "embeddings": "tied", "final_norm": "decoder"},
    "tied to the output, fairseq's sinusoids, post-norm": {
        "embeddings": "tied-decoder",
        "norm": "post",
        "positions": "tensor2tensor",
        "first_position": 2,
        "embedding_norm": True,
    },
    "separate, learned, mixed norms, wide decoder": {
        "positions": "learned",
        "max_positions": 61,
        "decoder_norm": "post",
        "activation": "gelu",
        "decoder_heads": 11,
        "decoder_ffn": 7,
        "embedding_scale": False,
        "output_bias": True,
    },
    "without some layers and neurons": {"closed": "depth, all heads", "activation": "gelu"},
}


def written(translator: Translator, folder: Path, **languages: str) -> None:
    languages = {"src": "en", "tgt": "de", **languages}
    export(translator, "fairseq", folder, lines=SOURCES, references=TARGETS, provenance=languages)


def symbols(folder: Path, language: str) -> list[str]:
    """Every symbol at its id."""
    lines = (folder / f"dict.{language}.txt").read_bytes().decode().split("\n")[:-1]
    return ["<s>", "<pad>", "</s>", "<unk>", *(line.rpartition(" ")[0] for line in lines)]


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_fairseq_computes_what_the_model_does(make_translator, tmp_path, settings):
    translator = settled(make_translator(**settings))
    if translator.model.output.bias is not None:
        translator.model.output.bias.data.zero_()  # fairseq has none
    written(translator, tmp_path / "out")
    plain = PlainFairseq(tmp_path / "out/checkpoint.pt")
    tables = [symbols(tmp_path / "out", language) for language in ("en", "de")]
    for source, target in zip(SOURCES, TARGETS, strict=True):
        if source.strip():
            known = []
            for side, line, table in zip(("source", "target"), (source, target), tables, strict=True):
                vocab = getattr(translator, f"{side}_vocab")
                pieces = vocab.pieces(vocab.encode([line])[0])
                known.append([table.index(piece) if piece in table else 3 for piece in pieces])
            expected = torch.tensor(translator.score([source], [target])[0])
            torch.testing.assert_close(plain.log_probs(*known).detach(), expected, atol=1e-5, rtol=0)
    found = open_exported(tmp_path / "out")
    assert found.translate(SOURCES) == translator.translate(SOURCES)
    learned = {"learned": 61, "sinusoidal": 1024, "tensor2tensor": None}
    assert found.max_positions == learned[translator.model.config.positions]


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="needs ../shared/fixtures/fairseq")
@pytest.mark.parametrize(
    ("fixture", "settings"),
    [
        ("iwslt_like", {"embeddings": "tied-decoder", "norm": "post"}),
        ("prenorm_shared", {"joint": True, "embeddings": "tied"}),
    ],
)
def test_weights_and_options_have_the_names_and_shapes_of_fairseq_s_own(
    fixture, settings, make_translator, tmp_path
):
    """A model of the shape of a checkpoint that fairseq wrote: all of its names and ranks, and no others."""
    sinusoids = {"positions": "tensor2tensor", "first_position": 2}
    written(settled(make_translator(**settings, **sinusoids)), tmp_path / "out")
    plain = PlainFairseq(tmp_path / "out/checkpoint.pt")
    theirs = json.loads((FIXTURES / fixture / "checkpoint_keys.json").read_text())["model"]
    few = [name for name in theirs if name.split(".")[2:3] != ["2"]]  # our stacks have two layers, not three
    ours = {name: ["torch.float32", len(tensor.shape)] for name, tensor in plain.weights.items()}
    expected = {name: [theirs[name][0], len(theirs[name][1])] for name in few}
    assert ours == expected
    options = vars(PlainFairseq(FIXTURES / fixture / "checkpoint_legacy_style.pt").args)
    assert set(vars(plain.args)) <= set(options)
    prefixes = ("encoder_", "decoder_", "share_", "max_source", "max_target", "no_")
    structural = {name for name in options if name.startswith(prefixes) and options[name]}
    assert structural - set(vars(plain.args)) == {"no_epoch_checkpoints"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"closed": "uneven"}, "removed heads.*--to onnx.*--system base"),
        ({"norm_eps": 1e-6}, "layer norms add 1e-05"),
        ({"output_bias": True}, "bias on its logits"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_and_leaves_nothing(
    settings, message, make_translator, tmp_path
):
    with pytest.raises(ValueError, match=message):
        written(make_translator(**settings), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_two_languages_of_one_name_are_refused(make_translator, tmp_path):
    with pytest.raises(ValueError, match="both are 'en'"):
        written(make_translator(), tmp_path / "out", tgt="en")
