"""Tokenizers of other libraries with the pieces of a text alone: that text is cut and translated as before,
and the model goes out again as one of its library."""

import json
import random
from pathlib import Path

import pytest
import torch

from headgates.bridges import fairseq, hf, marian
from headgates.bridges.exported import read_export
from headgates.bridges.formats import export
from headgates.configs.settings import SearchConfig
from headgates.configs.source import ForeignOptions
from headgates.data.hf_trim import fast
from headgates.data.hf_vocab import quiet
from headgates.data.text import DataError
from headgates.models.translator import Translator
from headgates.models.trimmed import trim_model
from headgates.records.foreign_run import foreign_run
from headgates.records.source import open_source
from tests.worlds import hugging_face
from tests.worlds.hugging_face import FAMILY_NAMES, LINES, options_of
from tests.worlds.marian_models import WORDS, write_marian, write_spm
from tests.worlds.plain_fairseq import random_checkpoint

TEXT = ["the dog sleeps .", "", "the cat"]
OTHER = ["a big cat sees the small dog .", "dogs sleep"]
SEARCH = SearchConfig(beam=1, max_ratio=0, max_extra=9)


def run_of(prefix: str, foreign, root: Path) -> Translator:
    """The translator of the run that a model of another library became."""
    translator = open_source(foreign_run(prefix, foreign, root, {}, {}).path).translator
    translator.search = SEARCH
    pieces = translator.target_vocab.pieces(range(len(translator.target_vocab)))
    unused = [i for i, piece in enumerate(pieces) if piece.startswith("<unused")]  # nobody writes these
    translator.model.output.weight.data[unused] = 0
    return translator


def trimmed(
    whole: Translator, folder: Path, text: list[str] = TEXT, *, may_need_all: bool = False
) -> Translator:
    """The translator that is left of a text; it translates that text as before."""
    folder.mkdir()
    written = [best[0].ids if best else [] for best in whole.n_best(whole.encode(text), SEARCH)]
    less, (source, target) = trim_model(whole, folder, text, text[:1], written)
    again = [best[0].ids if best else [] for best in less.n_best(less.encode(text), SEARCH)]
    assert [[source[i] for i in ids] for ids in less.encode(text)] == whole.encode(text)
    assert [[target[i] for i in ids] for ids in again] == written
    assert less.translate(text) == whole.translate(text)
    if not may_need_all:
        assert len(source) < len(whole.source_vocab)
        assert len(target) < len(whole.target_vocab)
    return less


def goes_out(less: Translator, format: str, folder: Path, **provenance) -> Path:
    """The folder of an export, which is checked to translate alike; decoding gives what was encoded."""
    lines = TEXT + OTHER
    export(less, format, folder, lines=lines, references=lines, provenance=provenance)
    return folder


@pytest.mark.parametrize("name", [name for name in FAMILY_NAMES if name not in ("fsmt", "byt5")])
def test_a_hugging_face_model_goes_out_as_one_that_its_library_reads(hf_folder, tmp_path, name):
    import transformers

    folder = hf_folder(name)
    whole = run_of("hf", hf.read(str(folder), options_of(name)), tmp_path)
    less = trimmed(whole, tmp_path / "less", may_need_all=name in ("bart", "nllb"))  # they have next to none
    for line in OTHER:  # in letters where a word's own piece is gone
        assert less.source_vocab.decode(less.source_vocab.encode([line])) == whole.source_vocab.decode(
            whole.source_vocab.encode([line])
        )
    out = goes_out(less, "hf", tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(out)
    assert theirs.get_input_embeddings().weight.shape[0] == max(
        len(less.source_vocab), len(less.target_vocab) if name == "marian-two-vocabularies" else 0
    )
    again = run_of("hf", hf.read(str(out), options_of(name)), tmp_path / "again")
    assert again.translate(TEXT) == less.translate(TEXT)


@pytest.mark.parametrize("targets", [[], OTHER], ids=["sources", "both sides"])
def test_two_vocabularies_with_their_padding_last_stay_of_one_size(tmp_path, targets):
    """As OPUS-MT's converter writes them: the tokenizer has one number for the padding of both."""
    import transformers

    torch.manual_seed(0)
    folder, names = tmp_path / "tiny", ("vocab.json", "target_vocab.json")
    folder.mkdir()
    pieces = hugging_face.sentencepiece_model(tmp_path)
    for side, name, own in zip(("source", "target"), names, (pieces, pieces[::-1]), strict=True):
        (folder / f"{side}.spm").write_bytes((tmp_path / "sp.model").read_bytes())
        numbers = {piece: i for i, piece in enumerate(["</s>", "<unk>", *own, "<pad>"])}
        (folder / name).write_text(json.dumps(numbers))
    (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}')
    size = len(pieces) + 3
    special = hugging_face.special_ids(size - 1, 0, size - 1)
    alike = dict(vocab_size=size, decoder_vocab_size=size, share_encoder_decoder_embeddings=False)
    config = transformers.MarianConfig(
        **hugging_face.SHAPE, **alike, **special, activation_function="swish", scale_embedding=True
    )
    with quiet():
        transformers.MarianMTModel(config).save_pretrained(folder)
    whole = run_of("hf", hf.read(str(folder), ForeignOptions()), tmp_path / "runs")
    (tmp_path / "less").mkdir()
    written = [best[0].ids if best else [] for best in whole.n_best(whole.encode(TEXT), SEARCH)]
    less, _ = trim_model(whole, tmp_path / "less", TEXT, targets, written)
    sides = less.source_vocab, less.target_vocab
    assert len({len(side) for side in sides}) == len({side.specials.padding for side in sides}) == 1
    assert len(sides[0]) < size
    assert less.translate(TEXT) == whole.translate(TEXT)
    for line in targets:
        encoded = [vocab.encode([line]) for vocab in (less.target_vocab, whole.target_vocab)]
        assert less.target_vocab.decode(encoded[0]) == whole.target_vocab.decode(encoded[1])
    goes_out(less, "hf", tmp_path / "out")


@pytest.mark.parametrize("kind", ["Unigram", "BPE"])
def test_a_tokenizer_json_cuts_the_text_as_before_with_fewer_pieces(kind):
    tokenizers = pytest.importorskip("tokenizers", reason="it is in the extra hf")
    from tokenizers import models, pre_tokenizers, processors, trainers

    rng = random.Random(5)
    words = ["".join(rng.choices(["ka", "to", "mi", "sol", "ñu"], k=rng.randint(1, 4))) for _ in range(53)]
    whole = tokenizers.Tokenizer(getattr(models, kind)())
    whole.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"special_tokens": ["<s>", "<unk>", "</s>"], "vocab_size": 149, "show_progress": False}
    trainer = (
        trainers.BpeTrainer(**options)
        if kind == "BPE"
        else trainers.UnigramTrainer(**options, unk_token="<unk>")
    )
    whole.train_from_iterator([" ".join(rng.choices(words, k=6)) for _ in range(211)], trainer)
    whole.add_special_tokens(["eng_Latn"])
    language = "eng_Latn", whole.token_to_id("eng_Latn")
    whole.post_processor = processors.RobertaProcessing(language, ("<s>", 0))
    if kind == "Unigram":
        specials = [language, ("</s>", 2)]
        whole.post_processor = processors.TemplateProcessing(
            single="eng_Latn $A </s>", special_tokens=specials
        )
    text = [" ".join(rng.choices(words[:11], k=5)) for _ in range(31)]
    kept, files = fast(json.loads(whole.to_str()), {i for each in whole.encode_batch(text) for i in each.ids})
    less = tokenizers.Tokenizer.from_str(files["tokenizer.json"].decode())
    assert less.get_vocab_size() == len(kept) < whole.get_vocab_size()
    assert [less.id_to_token(new) for new in range(len(kept))] == [whole.id_to_token(old) for old in kept]
    assert [[kept[i] for i in less.encode(line).ids] for line in text] == [
        whole.encode(line).ids for line in text
    ]
    for line in words[11:]:
        assert "".join(less.encode(line).tokens) == "".join(whole.encode(line).tokens)


def test_a_tokenizer_that_cannot_be_trimmed_is_refused_with_what_to_do_instead(hf_folder, tmp_path):
    random_checkpoint(tmp_path / "a.pt", joined=True, source_lang="en", target_lang="de")
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_text("".join(f"{word} 7\n" for word in WORDS[2:]))
    none = ForeignOptions()
    refused = {
        "^a FSMTTokenizer cannot be trimmed; close heads or neurons": hf.read(str(hf_folder("fsmt")), none),
        "^a ByT5Tokenizer cannot be trimmed": hf.read(str(hf_folder("byt5")), none),
        "YAML, which cannot be trimmed; take the same model as hf:NAME": marian.read(
            str(write_marian(tmp_path / "model")), none
        ),
        "kind fairseq cannot be trimmed; these can: huggingface, marian": fairseq.read(
            str(tmp_path / "a.pt"), none
        ),
    }
    for i, (message, foreign) in enumerate(refused.items()):
        whole = run_of("x", foreign, tmp_path / str(i))
        with pytest.raises(DataError, match=message):
            trim_model(whole, tmp_path, ["the dog"], [], [])


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_a_marian_model_with_pieces_goes_out_as_one(tmp_path, monkeypatch, kind):
    folder = tmp_path / "model"
    folder.mkdir()
    processor = write_spm(folder / "vocab.spm", LINES, 61, kind)
    pieces = [processor.id_to_piece(i) for i in range(len(processor))]
    monkeypatch.setattr("tests.worlds.marian_models.WORDS", pieces)
    path = write_marian(folder, "model.int8.bin")
    decoder = folder / "decoder.yml"
    decoder.write_text(decoder.read_text().replace("vocab.yml", "vocab.spm"))
    whole = run_of("marian", marian.read(str(path), ForeignOptions()), tmp_path / "runs")
    less = trimmed(whole, tmp_path / "less")
    assert less.source_vocab.decode(less.source_vocab.encode(OTHER)) == whole.source_vocab.decode(
        whole.source_vocab.encode(OTHER)
    )
    about = read_export(goes_out(less, "marian", tmp_path / "out"))
    assert (len(less.source_vocab) - 1) % 8 == 0, "int8 engines multiply eight columns at once"
    assert about["rounded"] is False, "its int8 numbers are those that were read"
