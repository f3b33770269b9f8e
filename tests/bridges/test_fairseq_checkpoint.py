"""export --to fairseq: what real fairseq would compute from the file, by a reader of its own written from the
format's description."""

import json
from pathlib import Path

import pytest
import torch

from headgates.bridges.formats import export, open_exported, read_about
from headgates.data.batch import pad
from headgates.models.translator import Translator
from tests.worlds.plain_fairseq import PlainFairseq
from tests.worlds.translators import SOURCES, TARGETS

FACTS = {"run": "toy", "system": "base", "src": "en", "tgt": "de"}
FIXTURES = Path(__file__).parents[2] / "../shared/fixtures/fairseq"
MODELS = {
    "tied, sinusoidal, pre-norm": {"joint": True, "embeddings": "tied"},
    "tied to the output, fairseq's sinusoids, post-norm": {
        "embeddings": "tied-decoder",
        "norm": "post",
        "positions": "tensor2tensor",
        "first_position": 2,
    },
    "separate, learned, mixed norms": {
        "positions": "learned",
        "max_positions": 61,
        "decoder_norm": "post",
        "activation": "gelu",
    },
    "no norm at one end, swish, wide decoder": {
        "final_norm": "decoder",
        "activation": "swish",
        "decoder_ffn": 7,
        "embedding_scale": False,
        "embedding_norm": True,
    },
    "other sinusoids, more heads in the decoder": {
        "positions": "sinusoidal-halves",
        "decoder_heads": 11,
        "output_bias": True,
    },
}


def without_beginning(translator: Translator) -> Translator:
    """Give the beginning no probability, as training does: our search rules it out, fairseq's does not."""
    model = translator.model
    norm = (
        model.decoder.norm
        if isinstance(model.decoder.norm, torch.nn.LayerNorm)
        else model.decoder.layers[-1].feed_residual.norm
    )
    with torch.no_grad():
        norm.weight[0], norm.bias[0] = 0.0, 9.0
        model.output.weight[model.target_specials.beginning] = 0.0
        model.output.weight[model.target_specials.beginning, 0] = -5.0
        if model.output.bias is not None:
            model.output.bias.zero_()
    return translator


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def exported(request, make_translator, tmp_path) -> tuple[Translator, Path]:
    translator = without_beginning(make_translator(**request.param))
    export(translator, "fairseq", tmp_path / "out", lines=SOURCES, references=TARGETS, facts=FACTS)
    return translator, tmp_path / "out"


def symbols(folder: Path, language: str) -> list[str]:
    """Every symbol at its id."""
    lines = (folder / f"dict.{language}.txt").read_bytes().decode().split("\n")[:-1]
    return ["<s>", "<pad>", "</s>", "<unk>", *(line.rpartition(" ")[0] for line in lines)]


def test_fairseq_computes_what_the_model_does(exported):
    translator, folder = exported
    plain, ids = (
        PlainFairseq(folder / "checkpoint.pt"),
        [symbols(folder, language) for language in ("en", "de")],
    )
    for source, target in zip(SOURCES, TARGETS, strict=True):
        if source.strip():
            pieces = [
                vocab.pieces(vocab.encode([line])[0])
                for vocab, line in ((translator.source_vocab, source), (translator.target_vocab, target))
            ]
            known = [
                [table.index(piece) if piece in table else 3 for piece in side]
                for side, table in zip(pieces, ids, strict=True)
            ]
            expected = torch.tensor(translator.score([source], [target])[0])
            torch.testing.assert_close(plain.log_probs(*known).detach(), expected, atol=1e-5, rtol=0)
            memory = translator.model.encode(
                pad(translator.source_vocab.encode([source]), translator.source_vocab.specials, end=True)
            )[0]
            torch.testing.assert_close(plain.encode(known[0]), memory[0], atol=1e-5, rtol=0)


def test_the_folder_translates_as_the_model_does(exported):
    translator, folder = exported
    found = open_exported(folder)
    assert found.translate(SOURCES) == translator.translate(SOURCES)
    assert set(read_about(folder)["files"]) >= {"checkpoint.pt", "dict.en.txt", "dict.de.txt"}
    learned = translator.model.config.positions != "tensor2tensor"
    assert found.max_positions == (
        (61 if translator.model.config.positions == "learned" else 1024) if learned else None
    )


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="needs ../shared/fixtures/fairseq")
@pytest.mark.parametrize("fixture", ["iwslt_like", "prenorm_shared", "tiny_full"])
def test_weights_and_options_have_the_names_and_shapes_of_fairseq_s_own(fixture, make_translator, tmp_path):
    """A model of the shape of each checkpoint that fairseq wrote: all of its names and ranks, and no
    others."""
    settings = {
        "iwslt_like": {
            "embeddings": "tied-decoder",
            "norm": "post",
            "positions": "tensor2tensor",
            "first_position": 2,
        },
        "prenorm_shared": {
            "joint": True,
            "embeddings": "tied",
            "positions": "tensor2tensor",
            "first_position": 2,
        },
        "tiny_full": {
            "norm": "post",
            "decoder_norm": "pre",
            "embedding_norm": True,
            "positions": "learned",
            "max_positions": 61,
            "encoder_layers": 1,
        },
    }[fixture]
    translator = without_beginning(make_translator(**settings))
    export(translator, "fairseq", tmp_path / "out", lines=SOURCES, references=TARGETS, facts=FACTS)
    plain = PlainFairseq(tmp_path / "out/checkpoint.pt")
    theirs = json.loads((FIXTURES / fixture / "checkpoint_keys.json").read_text())["model"]
    few = [name for name in theirs if name.split(".")[2:3] != ["2"]]  # our stacks have two layers, not three
    ours = {name: ["torch.float32", len(tensor.shape)] for name, tensor in plain.weights.items()}
    expected = {name: [theirs[name][0], len(theirs[name][1])] for name in few}
    if fixture == "tiny_full":  # its decoder has sinusoids
        expected["decoder.embed_positions.weight"] = ["torch.float32", 2]
    assert ours == expected
    genuine = FIXTURES / fixture / "checkpoint_legacy_style.pt"
    if genuine.is_file():
        options = vars(PlainFairseq(genuine).args)
        assert set(vars(plain.args)) <= set(options)
        structural = {
            name
            for name in options
            if name.startswith(("encoder_", "decoder_", "share_", "max_source", "max_target", "no_"))
        }
        assert {name for name in structural if options[name]} - set(vars(plain.args)) == {
            "no_epoch_checkpoints"
        }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"closed": "uneven"}, "removed heads.*--system base"),
        ({"norm_eps": 1e-6}, "layer norms add 1e-05"),
        ({"output_bias": True}, "bias on its logits"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_and_leaves_nothing(
    settings, message, make_translator, tmp_path
):
    with pytest.raises(ValueError, match=message):
        export(
            make_translator(**settings),
            "fairseq",
            tmp_path / "out",
            lines=SOURCES,
            references=TARGETS,
            facts=FACTS,
        )
    assert not list(tmp_path.iterdir())


def test_two_languages_of_one_name_are_refused(make_translator, tmp_path):
    with pytest.raises(ValueError, match="both are 'en'"):
        export(
            make_translator(),
            "fairseq",
            tmp_path / "out",
            lines=SOURCES,
            references=TARGETS,
            facts={**FACTS, "tgt": "en"},
        )
