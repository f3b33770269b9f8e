"""Pruned folders: what is wrong with one is said in one line, no code of a folder is run, and nothing
half-written is left."""

import json
import shutil
import sys

import pytest
import torch
from torch import nn

from headgates.gates import HeadMap, attach, find_sites, heads_left, load_pruned, remove, save_pruned
from headgates.gates.depth import drop_layers, layers_left
from headgates.gates.headmap import KINDS
from tests.gates.family_checks import close, closing, uneven
from tests.worlds.families import BY_NAME

safetensors = pytest.importorskip("safetensors.torch", reason="pruned folders need the extra hf")
load_file, save_file = safetensors.load_file, safetensors.save_file
transformers = pytest.importorskip("transformers", reason="pruned folders need the extra hf")
BERT, PLAIN = BY_NAME["BERT"], BY_NAME["torch.nn.Transformer"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A Hugging Face model and one of a class of its own, each without some heads."""
    paths = {}
    for family in (BERT, PLAIN):
        model = family.model()
        remove(model, uneven(model))
        paths[family.name] = save_pruned(model, tmp_path_factory.mktemp("pruned") / "model")
    return paths


@pytest.fixture
def folder(written, tmp_path):
    return shutil.copytree(written[BERT.name], tmp_path / "model")


@pytest.fixture
def plain(written, tmp_path):
    return shutil.copytree(written[PLAIN.name], tmp_path / "plain")


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_the_field_is_the_original_numbers_of_the_heads_that_are_left(folder, plain):
    config = json.loads((folder / "config.json").read_text())
    assert config["headgates"] == {"heads": {"encoder.0.enc-self": [1, 2], "encoder.1.enc-self": [0]}}
    assert config["architectures"] == ["BertForMaskedLM"]
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors", ".md"}
    field = json.loads((plain / "config.json").read_text())["headgates"]
    assert (field["class"], field["heads"]["encoder.0.enc-self"]) == ("Transformer", [1, 2, 3, 4, 5])


def test_saving_leaves_the_model_as_it_was_and_options_go_to_transformers(tmp_path):
    model = BERT.model()
    config = model.config
    save_pruned(model, tmp_path / "unpruned")
    assert model.config is config
    assert not hasattr(config, "headgates")
    loaded = load_pruned(tmp_path / "unpruned", dtype=torch.bfloat16)
    assert [site.heads for site in find_sites(loaded)] == [3, 3]
    assert loaded.dtype == torch.bfloat16


@pytest.mark.parametrize("heads", [2, 6])  # transformers refuses 6 heads of a width of 32, whatever their own
def test_layers_alike_are_saved_whether_or_not_their_heads_divide_the_width(tmp_path, heads):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=23, hidden_size=32, num_hidden_layers=2, num_attention_heads=8, intermediate_size=16,
        num_key_value_heads=4,
    )  # fmt: skip
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.tensor([[3, 4, 5]])
    remove(model, HeadMap({site: torch.arange(8) >= heads for site in find_sites(model)}))
    loaded = load_pruned(save_pruned(model, tmp_path / "alike"))
    torch.testing.assert_close(loaded(ids).logits, model(ids).logits)
    if heads == 2:
        theirs = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "alike")
        torch.testing.assert_close(theirs(ids).logits, model(ids).logits)


def test_a_link_to_a_folder_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    for name, target in (("link", "there"), ("dangling", "new")):
        (tmp_path / name).symlink_to(tmp_path / target)
        assert save_pruned(BERT.model(), tmp_path / name) == tmp_path / name
        assert load_pruned(tmp_path / target).dtype == torch.float32
    assert {path.name for path in tmp_path.iterdir()} == {"there", "link", "dangling", "new"}


class OwnBert(transformers.BertPreTrainedModel):
    """A class of one's own, made of one of transformers'."""

    def __init__(self, config):
        super().__init__(config)
        self.bert, self.head = transformers.BertModel(config), torch.nn.Linear(config.hidden_size, 2)
        self.post_init()

    def forward(self, input_ids):
        return self.head(self.bert(input_ids).last_hidden_state)


def test_a_class_of_ones_own_made_of_transformers_is_opened_by_a_model_of_it(tmp_path):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16
    )
    model, ids = OwnBert(config).eval(), torch.randint(3, 32, (2, 5))
    remove(model, HeadMap({site: torch.arange(4) <= site.layer for site in find_sites(model)}))
    folder = save_pruned(model, tmp_path / "own")
    again = load_pruned(folder, model=OwnBert(config))
    assert type(again) is OwnBert
    assert torch.equal(again(ids), model(ids))
    assert "model=OwnBert(config)" in (folder / "README.md").read_text()
    with pytest.raises(ValueError, match="for a class of your own give a model of it"):
        load_pruned(folder)


def test_shared_weights_stay_shared_and_a_layer_may_have_no_heads(tmp_path):
    family = BY_NAME["our own Transformer"]
    model, batch = family.model(), family.batch(2)
    remove(model, closing(model, lambda number, layer, head: layer == 1))
    again = load_pruned(save_pruned(model, tmp_path / "model"), model=family.build())
    assert torch.equal(family.output(again, batch), family.output(model, batch))
    assert {site.heads for site in find_sites(again)} == {0, 3}
    assert len(list(again.parameters())) == len(list(model.parameters()))  # the tied embedding counts once


# ---------------------------------------------------------------- what a folder tells


def test_the_card_says_how_to_load_the_folder_what_is_left_and_what_it_cost(folder, plain, tmp_path):
    card = (folder / "README.md").read_text()
    assert "model = hg.load_pruned(" in card
    assert "random weights" in card
    assert "| encoder.0.enc-self | 2 of 3 heads |" in card
    assert 'hg.load_pruned("FOLDER", model=Transformer(...))' in (plain / "README.md").read_text()
    model = BY_NAME["Llama"].model()
    drop_layers(model, {"decoder": [0]})
    even = (save_pruned(model, tmp_path / "even", notes="0.1 nats a word") / "README.md").read_text()
    assert "model = transformers.LlamaForCausalLM.from_pretrained(" in even
    assert "Of the decoder's 2 layers, those with the numbers 1 are left." in even
    assert "0.1 nats a word" in even


@pytest.mark.parametrize("auto", [transformers.AutoModelForMaskedLM, transformers.BertForMaskedLM])
@pytest.mark.parametrize("options", [{}, {"ignore_mismatched_sizes": True}])
def test_transformers_alone_never_fills_uneven_layers_with_random_weights(folder, auto, options):
    with pytest.raises(ValueError, match=r"load it with headgates\.load_pruned, as README.md says"):
        auto.from_pretrained(folder, **options)


WIDTHS = {"encoder": 5, "decoder": 3}


@pytest.mark.parametrize(
    ("name", "heads", "auto"),
    [
        ("BERT", [], "AutoModelForMaskedLM"),
        ("GPT-2", [], "AutoModelForCausalLM"),
        ("BART", [], "AutoModelForSeq2SeqLM"),  # a field for each stack
        ("Llama", [2, 3], "AutoModelForCausalLM"),  # a key head and its two heads
        ("T5", [], "AutoModelForSeq2SeqLM"),
        ("Falcon", [], "AutoModelForCausalLM"),
    ],
)
def test_a_folder_whose_layers_are_alike_opens_by_transformers_alone(name, heads, auto, tmp_path):
    family = BY_NAME[name]
    model, batch = family.model(), family.batch(2)
    closed = {}
    for site in find_sites(model, ["all"]):
        width = WIDTHS[site.stack] if name == "BART" else 5
        gone = heads if site.kind in KINDS else range(width, site.heads)
        closed[site] = torch.tensor([number in gone for number in range(site.heads)])
    assert any(site.kind not in KINDS for site in closed)
    remove(model, HeadMap(closed))
    path = save_pruned(model, tmp_path / "even")
    for again in (getattr(transformers, auto).from_pretrained(path).eval(), load_pruned(path)):
        close(family.output(again, batch), family.output(model, batch))
    assert heads_left(again, ["all"]) == heads_left(model, ["all"])


@pytest.mark.parametrize("name", ["BERT", "torch.nn.TransformerEncoder"])
def test_the_first_numbers_of_layers_come_back(name, tmp_path):
    family = BY_NAME[name]
    model, batch = family.model(), family.batch(2)
    drop_layers(model, {"encoder": [0]}, inputs=((), batch))
    remove(model, closing(model, lambda number, layer, head: head == 1))
    path = save_pruned(model, tmp_path / "pruned")
    again = load_pruned(path, **({} if name == "BERT" else {"model": family.build()}))
    assert layers_left(again) == {"encoder": [False, True]}
    close(family.output(again, batch), family.output(model, batch))


# ---------------------------------------------------------------- folders of others

# where transformers 4's `prune_heads` took rows, and columns, of a layer's weights; the side of the rows
OLD = {
    "BERT": ("bert.encoder.layer.{}.attention", "self.query self.key self.value", "output.dense", 0),
    "DistilBERT": ("distilbert.transformer.layer.{}.attention", "q_lin k_lin v_lin", "out_lin", 0),
    "GPT-2": ("transformer.h.{}.attn", "c_attn", "c_proj", 1),
}


@pytest.mark.parametrize("name", OLD)
def test_a_folder_that_transformers_4_pruned_is_read(name, tmp_path):
    family, (attention, rows, columns, side) = BY_NAME[name], OLD[name]
    model, batch = family.model(), family.batch(2)
    gone = {"0": [0, 2], "1": [1]}
    xi = {
        f"{site.name}": torch.tensor([float(h not in gone[str(site.layer)]) for h in range(3)])
        for site in find_sites(model)
    }
    expected = family.explicitly(model, batch, xi)
    model.save_pretrained(tmp_path / "old")
    weights = load_file(tmp_path / "old" / "model.safetensors")
    for layer, numbers in gone.items():
        staying = torch.tensor([4 * h + k for h in range(3) if h not in numbers for k in range(4)])
        path = attention.format(layer)
        for part in rows.split():
            three = torch.cat([staying + 12 * n for n in range(3)]) if part == "c_attn" else staying
            for kind, axis in (("weight", side), ("bias", 0)):
                key = f"{path}.{part}.{kind}"
                weights[key] = weights[key].index_select(axis, three).contiguous()
        key = f"{path}.{columns}.weight"
        weights[key] = weights[key].index_select(1 - side, staying).contiguous()
    save_file(weights, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    change(tmp_path / "old", pruned_heads=gone, transformers_version="4.40.0")
    again = load_pruned(tmp_path / "old")
    close(family.output(again, batch), expected)
    assert heads_left(again).flat().tolist() == [False, True, False, True, False, True]
    assert not getattr(again.config, "pruned_heads", None)  # transformers 4 would prune once more
    close(family.output(load_pruned(save_pruned(again, tmp_path / "new")), batch), expected)


def test_heads_of_transformers_4_that_a_model_does_not_have_are_refused(folder):
    content = json.loads((folder / "config.json").read_text())
    del content["headgates"]
    (folder / "config.json").write_text(json.dumps(content | {"pruned_heads": {"7": [0]}}))
    with pytest.raises(ValueError, match=r"pruned_heads has heads \[0\] of layer 7"):
        load_pruned(folder)


def marked_as_gguf(family):
    """As transformers leaves a model that it loaded from GGUF."""
    from transformers.quantizers.quantizer_gguf import GgufHfQuantizer

    model, config = family.model(), transformers.utils.quantization_config.GgufConfig(dequantize=True)
    model.hf_quantizer, model.is_quantized = GgufHfQuantizer(config), True
    model.quantization_method = config.quant_method
    model.config.quantization_config = config
    return model


def test_a_model_from_gguf_is_saved_unpacked(tmp_path):
    family = BY_NAME["Llama"]
    model, batch = marked_as_gguf(family), family.batch(2)
    with pytest.raises(ValueError, match="not serializable"):
        model.save_pretrained(tmp_path / "theirs")
    remove(model, uneven(model))
    again = load_pruned(save_pruned(model, tmp_path / "pruned"))
    close(family.output(again, batch), family.output(model, batch))
    assert model.is_quantized
    assert model.config.quantization_config is not None
    assert not getattr(again, "is_quantized", False)


def test_packed_weights_of_gguf_are_refused_with_the_way_to_unpack_them(tmp_path):
    model = marked_as_gguf(BY_NAME["Llama"])
    packed = torch.zeros(12, 9, dtype=torch.uint8)
    model.model.layers[0].mlp.up_proj.weight = nn.Parameter(packed, requires_grad=False)
    with pytest.raises(ValueError, match=r"up_proj.weight is packed .*GgufConfig\(dequantize=True\)"):
        save_pruned(model, tmp_path / "pruned")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- what is wrong with one


def rewrite(name: str, text: str):
    return lambda folder: (folder / name).write_text(text)


def heads(row: object, layer: int = 0):
    return lambda folder: change(folder, headgates={"heads": {f"encoder.{layer}.enc-self": row}})


def architectures(names: list[str]):
    return lambda folder: change(folder, architectures=names)


WRONG = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
    "no field": (rewrite("config.json", "{}"), "no field 'headgates'.*that lost none with from_pretrained"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights in safetensors"),
    "torn weights": (rewrite("model.safetensors", "12345678{"), "cannot be read as those of a BertForMask"),
    "an adapter": (rewrite("adapter_config.json", "{}"), "has an adapter"),
    "no class": (architectures(["os"]), "must name one model class of transformers .*'os'"),
    "another class": (architectures(["BertForSequenceClassification"]), "not those of its config: .*missing"),
    "no order": (heads([2, 1]), "must be like"),
    "unknown site": (heads([1], layer=7), "no attention encoder.7.enc-self"),
    "too high": (heads([3]), "has 3 heads, 0 to 2; head 3"),
    "other heads": (heads([1]), "cannot be read as those of"),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_folder_is_one_clear_line(folder, spoil, message):
    spoil(folder)
    with pytest.raises(ValueError, match=message) as error:
        load_pruned(folder)
    assert "\n" not in str(error.value)


def changed(act) -> nn.Module:
    model = PLAIN.build()
    act(model)
    return model


UNFIT = {
    "no model": (lambda: None, r"give a new one, with all its heads, as load_pruned\(folder, model=Transf"),
    "another class": (BY_NAME["torch.nn.TransformerEncoder"].build, "the model is a TransformerEncoder"),
    "gates": (lambda: changed(attach), "already has gates"),
    "lost heads": (lambda: changed(lambda model: remove(model, uneven(model))), "has lost heads already"),
    "fewer heads": (lambda: nn.Transformer(12, 3, 2, 2, 17), "has 3 heads, 0 to 2; head 5"),
    "another width": (lambda: nn.Transformer(24, 6, 2, 2, 17), "cannot be read .*size mismatch"),
    "more layers": (lambda: nn.Transformer(12, 6, 2, 3, 17), r"missing: decoder.layers.2"),
}


@pytest.mark.parametrize(("build", "message"), UNFIT.values(), ids=UNFIT)
def test_a_model_that_does_not_fit_is_one_clear_line(plain, build, message):
    with pytest.raises(ValueError, match=message) as error:
        load_pruned(plain, model=build())
    assert "\n" not in str(error.value)


def test_options_of_transformers_and_models_for_its_folders_are_refused(folder, plain):
    with pytest.raises(ValueError, match=r"\['dtype'\] are options of transformers"):
        load_pruned(plain, model=PLAIN.build(), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="which transformers builds; leave model= out"):
        load_pruned(folder, model=PLAIN.build())


def test_no_code_of_a_folder_is_run(folder):
    (folder / "modeling_evil.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass Evil: pass\n"
    )
    change(
        folder, auto_map={"AutoModelForMaskedLM": "modeling_evil.Evil"}, attn_implementation="someone/kernel"
    )
    model = load_pruned(folder)
    assert type(model) is transformers.BertForMaskedLM
    assert model.config._attn_implementation in ("eager", "sdpa")
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("missing", ["transformers", "tokenizers", "safetensors"])
def test_a_missing_library_names_the_extra_and_leaves_no_folder(folder, missing, monkeypatch, tmp_path):
    model = BERT.model()
    monkeypatch.setitem(sys.modules, missing, None)
    for call in (lambda: load_pruned(folder), lambda: save_pruned(model, tmp_path / "new")):
        with pytest.raises(ImportError, match=r"pip install 'headgates\[hf\]'"):
            call()
    assert not (tmp_path / "new").exists()


def test_neither_saving_nor_loading_a_plain_folder_needs_transformers(plain, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "transformers", None)
    model = load_pruned(plain, model=PLAIN.build())
    assert not model.training
    save_pruned(model, tmp_path / "again")


def test_what_cannot_be_saved_leaves_the_folder_as_it_was(folder, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("No space left on device")

    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match="is there already and not an empty folder; choose another"):
        save_pruned(BERT.model(), folder)
    with pytest.raises(ValueError, match="no attention in Linear has a rule"):
        save_pruned(nn.Linear(2, 2), tmp_path / "new")
    with pytest.raises(ValueError, match="already has gates"):
        save_pruned(changed(attach), tmp_path / "new")
    model = BERT.model()
    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="No space"):
        save_pruned(model, tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before
