"""A classifier is transformers' own model: the same logits from the same tokenizer, removal by the rules, and
a checkpoint of both."""

import shutil

import pytest
import torch

from headgates.bridges.classifier import (
    Labeller,
    build_classifier,
    describe,
    encoder_digest,
    encoder_folder,
    load_classifier,
    longest_input,
    new_classifier,
    save_classifier,
)
from headgates.data.batch import pad
from headgates.data.encoder_vocab import EncoderVocab, LabelVocab, write_vocabs
from headgates.data.text import DataError
from headgates.data.vocab import load_vocabs
from headgates.gates import HeadMap, attach, detach, find_sites, heads_left, remove
from headgates.models.checkpoint import load_file, save_file
from tests.worlds.tiny_encoder import LABELS, PIECES, SHAPE

LINES = [
    "the funny film",
    "a dull plot of actors and scenes",
    "film\tthe end",
    "[SEP] film [PAD] xyz",
    "poor",
]


@pytest.fixture(scope="module")
def folder(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabs")
    write_vocabs(encoder, folder, LABELS, max_positions=longest_input(encoder))
    return folder


@pytest.fixture
def vocabs(folder) -> tuple[EncoderVocab, LabelVocab]:
    return load_vocabs(folder)


@pytest.fixture
def model(encoder, vocabs):
    torch.manual_seed(5)
    return new_classifier(encoder, len(LABELS), vocabs[0].specials).eval()


@pytest.fixture
def source(vocabs):
    return pad(vocabs[0].encode(LINES), vocabs[0].specials, end=True)


def theirs(encoder, lines: list[str]) -> dict:
    """What the library's own tokenizer makes of lines, tabs between pairs."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(encoder)
    rows = [tokenizer(*line.split("\t"), split_special_tokens=True) for line in lines]
    return tokenizer.pad(rows, return_tensors="pt")


def test_a_folder_among_an_encoders_files_is_passed_over(encoder, tmp_path):
    copy = shutil.copytree(encoder, tmp_path / "copy")
    (copy / "tokenizer").mkdir()
    assert encoder_digest(copy) == encoder_digest(encoder)


def test_ids_and_logits_are_those_of_the_librarys_own_tokenizer_and_model(encoder, model, source):
    expected = theirs(encoder, LINES)
    assert torch.equal(source, expected["input_ids"])
    assert expected["token_type_ids"].any()
    with torch.no_grad():
        torch.testing.assert_close(model(source), model.net(**expected).logits)


def test_the_name_of_a_special_token_in_a_text_is_text(vocabs):
    assert vocabs[0].pieces(vocabs[0].encode(["[SEP] film"])[0]) == ["[CLS]", "[", "sep", "]", "film"]


def test_long_inputs_are_cut_to_what_the_encoder_has_positions_for(vocabs, model):
    source = pad(
        vocabs[0].encode([" ".join(["film"] * 40), "\t".join([" ".join(["plot"] * 30)] * 2)]),
        vocabs[0].specials,
        end=True,
    )
    assert source.shape == (2, 23)
    assert model(source).shape == (2, 2)


def test_pieces_say_which_characters_they_stand_for(vocabs):
    for text, words in {
        "the  funny films": ["", "the", "funny", "film", "s"],
        "The film\tan end": ["", "The", "film", "", "an", "end"],
    }.items():
        ids, characters = vocabs[0].encode([text])[0], vocabs[0].characters(text)
        assert len(ids) == len(characters)
        assert ["".join(text[i] for i in own) for own in characters] == words


def test_a_label_that_the_model_does_not_know_is_an_error(vocabs):
    assert [len(vocab) for vocab in vocabs] == [len(PIECES), 2]
    assert vocabs[1].decode(vocabs[1].encode(["good", "bad"])) == ["good", "bad"]
    with pytest.raises(DataError, match="the label 'fair' is none of the model's, which are bad, good"):
        vocabs[1].encode(["good", "fair"])


@pytest.mark.parametrize("batch_tokens", [13, 1000])
def test_labels_are_those_of_the_lines_one_by_one(model, vocabs, batch_tokens):
    labeller = Labeller(model, *vocabs, batch_tokens=batch_tokens)
    alone = [
        LABELS[int(model(pad(vocabs[0].encode([line]), vocabs[0].specials, end=True)).argmax())]
        for line in LINES
    ]
    model.train()
    assert labeller.label(LINES) == alone
    assert model.training
    assert labeller.label([]) == []


def test_its_attention_weights_are_those_of_the_library_and_the_kernel_is_put_back(encoder, model, source):
    kernel, weights = model.net.config._attn_implementation, {}
    with torch.no_grad():
        states, _ = model.encode(source, weights)
    assert model.net.config._attn_implementation == kernel
    assert list(weights) == ["encoder.0.enc-self", "encoder.1.enc-self"]
    assert states.shape == (5, source.shape[1], 28)
    with torch.no_grad():
        model.net.set_attn_implementation("eager")
        expected = model.net(**theirs(encoder, LINES), output_attentions=True).attentions
    torch.testing.assert_close(tuple(weights.values()), expected)


def uneven(model, *, whole_layer: bool) -> HeadMap:
    first, second = find_sites(model)
    return HeadMap(
        {
            first: [True] * 4 if whole_layer else [True, False, False, False],
            second: [False, True, False, True],
        }
    )


ENCODERS = {
    "Bert": SHAPE,
    "DistilBert": {"dim": 28, "n_heads": 4, "n_layers": 2, "hidden_dim": 13, "max_position_embeddings": 23},
    "Roberta": SHAPE | {"max_position_embeddings": 24, "type_vocab_size": 1},
}


@pytest.mark.parametrize("name", ["MPNet", "Data2VecText", "XLMRobertaXL", "Bert"])
def test_the_longest_input_is_one_that_the_encoder_reads(tmp_path, name):
    import transformers

    sizes = SHAPE | {"max_position_embeddings": 24, "type_vocab_size": 1}
    config = getattr(transformers, f"{name}Config")(vocab_size=len(PIECES), pad_token_id=1, **sizes)
    net = getattr(transformers, f"{name}Model")(config).eval()
    net.save_pretrained(tmp_path)
    longest = longest_input(tmp_path)
    assert longest == (24 if name == "Bert" else 22)
    net(torch.full((1, longest), 5))
    with pytest.raises((IndexError, RuntimeError)):
        net(torch.full((1, longest + 1), 5))


def test_the_head_of_another_classifier_does_not_come_along(encoder, vocabs, tmp_path):
    import transformers

    config = transformers.BertConfig(vocab_size=len(PIECES), num_labels=len(LABELS), **SHAPE)
    own = transformers.BertForSequenceClassification(config)
    own.save_pretrained(tmp_path)
    found = new_classifier(tmp_path, len(LABELS), vocabs[0].specials).net
    assert not torch.equal(found.classifier.weight, own.classifier.weight)
    torch.testing.assert_close(
        found.bert.embeddings.word_embeddings.weight, own.bert.embeddings.word_embeddings.weight
    )


@pytest.mark.parametrize("name", ENCODERS)
def test_without_closed_heads_it_says_the_same_and_comes_back_from_its_file(vocabs, source, tmp_path, name):
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=len(PIECES), pad_token_id=0, **ENCODERS[name])
    getattr(transformers, f"{name}Model")(config).save_pretrained(tmp_path / "encoder")
    assert longest_input(tmp_path / "encoder") == 23
    model = new_classifier(tmp_path / "encoder", 2, vocabs[0].specials).eval()
    closed = uneven(model, whole_layer=name == "Bert")
    attach(model, gate="mask", xi=closed.map(lambda row: (~row).double()))
    with torch.no_grad():
        masked = model(source)
    detach(model)
    remove(model, closed)
    save_classifier(tmp_path / "a.pt", model)
    again = load_classifier(tmp_path / "a.pt")
    assert heads_left(again) == heads_left(model)
    with torch.no_grad():
        torch.testing.assert_close(again(source), masked, rtol=1e-4, atol=1e-5)


def test_a_checkpoint_that_is_not_one_is_said(model, tmp_path):
    save_file(tmp_path / "a.pt", {"model": {}})
    with pytest.raises(ValueError, match=r"a\.pt holds \['model'\]; expected 'classifier' and 'model'"):
        load_classifier(tmp_path / "a.pt")
    save_classifier(tmp_path / "a.pt", model)
    content = load_file(tmp_path / "a.pt")
    content["model"].pop("net.classifier.bias")
    save_file(tmp_path / "a.pt", content)
    with pytest.raises(ValueError, match=r"do not fit its architecture .*classifier\.bias"):
        load_classifier(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"expected a class of transformers .* got 'os\.system'"):
        build_classifier(describe(model) | {"class": "os.system"})


def test_a_folder_that_is_no_encoder_is_one_error(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"expected the folder of a Hugging Face encoder, .* it has nothing"):
        encoder_folder(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(DataError, match=r"has no tokenizer; expected tokenizer\.json, vocab\.txt"):
        write_vocabs(tmp_path, tmp_path, LABELS, max_positions=23)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="transformers cannot make a classifier of it"):
        new_classifier(tmp_path, 2, LabelVocab(LABELS, tmp_path).specials)


def test_a_tokenizer_that_is_gone_or_broken_is_said(folder, tmp_path):
    (tmp_path / "vocab.json").write_text((folder / "vocab.json").read_text())
    with pytest.raises(DataError, match=r"vocab\.tokenizer\.json is missing"):
        load_vocabs(tmp_path)
    (tmp_path / "vocab.tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="is broken"):
        load_vocabs(tmp_path)
