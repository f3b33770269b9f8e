"""A Hugging Face encoder with a label for its sentence: as BERT is fine-tuned (Devlin et al. 2019,
arXiv:1810.04805).

The model is transformers' own, `...ForSequenceClassification`: the first position's output, what the class
does with it (BERT: a dense layer and tanh), dropout, and one linear layer. Its heads are found, gated and
removed by the rules of gates/. Letters: B sentences, S source pieces, H heads, C labels."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headgates.configs.fields import shortened
from headgates.configs.json_file import load_json
from headgates.configs.own_file import own_files
from headgates.data.batch import pad
from headgates.data.encoder_vocab import EncoderVocab, LabelVocab
from headgates.data.file_digest import file_digest
from headgates.data.hf_vocab import hub_folder, library, quiet
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import reworded
from headgates.gates import HeadMap, find_sites, heads_left, remove
from headgates.gates.attention_weights import weights_of_runs
from headgates.gates.evaluation_mode import evaluation_mode
from headgates.gates.folder_sizes import check_folder, check_layers
from headgates.models.checkpoint import COPY_AGAIN, as_json, filled, load_file, save_file
from headgates.models.line_translator import length_batches

CLASS = "ForSequenceClassification"  # how the names of transformers' classes end
# config fields by which transformers would load code or weights from elsewhere
FOREIGN = ("auto_map", "attn_implementation", "_attn_implementation", "quantization_config", "_name_or_path")
MODEL_FILES = (
    "config.json",
    "*.safetensors",
    "*.safetensors.index.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
)
LABELLING_TOKENS = 8000  # source pieces, padding counted, labelled at once; no label depends on it


class Classifier(nn.Module):
    """Ids (B, S) to logits (B, C). `net` is transformers' model; the ids of its special tokens are
    `source_specials`."""

    def __init__(self, net: Any, source_specials: SpecialTokens):
        super().__init__()
        self.net, self.source_specials = net, source_specials
        self.target_specials = LabelVocab(
            [str(label) for label in range(net.config.num_labels)], Path()
        ).specials

    def forward(self, source: Tensor) -> Tensor:
        return self.outputs(source).logits.float()

    def outputs(self, source: Tensor, **options: Any) -> Any:
        """What transformers' model returns. Where it has types of sentences, what follows the first end is
        the second sentence."""
        real = source != self.source_specials.padding  # (B, S)
        if getattr(self.net.config, "type_vocab_size", 0) > 1:
            ends = (source == self.source_specials.end).long()
            options["token_type_ids"] = (ends.cumsum(1) - ends).clamp(max=1) * real
        return self.net(input_ids=source, attention_mask=real.long(), **options)

    def encode(self, source: Tensor, weights: dict[str, Tensor] | None = None) -> tuple[Tensor, None]:
        """Return the last layer's states (B, S, D), and None; `weights` gets the attention of every site by
        name, (B, H, S, S), or (runs, B, H, S, S) of a layer that runs several times (ALBERT)."""
        if weights is None:
            return self.outputs(source, output_hidden_states=True).hidden_states[-1], None
        kernel = self.net.config._attn_implementation
        try:
            self.net.set_attn_implementation("eager")  # fused kernels do not keep the weights
            with weights_of_runs(find_sites(self)) as kept:
                found = self.outputs(source, output_attentions=True, output_hidden_states=True)
        finally:
            self.net.set_attn_implementation(kernel)
        weights |= {
            site.name: torch.stack(runs) if len(runs) > 1 else found.attentions[site.layer]
            for site, runs in kept.items()
        }
        return found.hidden_states[-1], None

    def top_logits(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """The largest logit of every sentence (B, 1), and (B, 1) True: where relevance starts."""
        top = self(source).amax(1, keepdim=True)
        return top, torch.ones_like(top, dtype=torch.bool)


class Labeller:
    """A classifier with its tokenizer and labels."""

    def __init__(
        self,
        model: Classifier,
        source_vocab: EncoderVocab,
        target_vocab: LabelVocab,
        batch_tokens: int = LABELLING_TOKENS,
    ):
        self.model, self.batch_tokens = model, batch_tokens
        self.source_vocab, self.target_vocab = source_vocab, target_vocab

    @torch.inference_mode()
    def label(self, lines: Sequence[str]) -> list[str]:
        """The label with the highest logit of every line; the first of equals."""
        ids = self.source_vocab.encode(lines)
        device = next(self.model.parameters()).device
        found = [0] * len(ids)
        with evaluation_mode(self.model):
            for chosen in length_batches(list(map(len, ids)), self.batch_tokens):
                source = pad([ids[i] for i in chosen], self.source_vocab.specials, end=True).to(device)
                for i, best in zip(chosen, self.model(source).argmax(1).tolist(), strict=True):
                    found[i] = best
        return self.target_vocab.decode([[best] for best in found])


# ---------------------------------------------------------------- an encoder's files


def encoder_folder(name: str) -> Path:
    """The folder of an encoder: a local one, or a copy of the hub's. Raises ValueError where there is
    neither, or it has no weights in safetensors (others may hold code)."""
    folder = Path(name)
    if not folder.is_dir():
        folder = hub_folder(name, MODEL_FILES)
    own_files(folder)
    if not (folder / "config.json").is_file() or not list(folder.glob("*.safetensors")):
        raise ValueError(
            f"--encoder {name}: expected the folder of a Hugging Face encoder, with config.json, "
            "model.safetensors and its tokenizer; it "
            f"has {', '.join(sorted(path.name for path in folder.iterdir())[:12]) or 'nothing'}"
        )
    return folder


def encoder_digest(folder: Path) -> str:
    """12 hexadecimal digits of the SHA-256 of the files that decide what an encoder does."""
    paths = sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern) if path.is_file()})
    digests = [f"{path.name} {file_digest(path)}" for path in paths]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:12]


# families that number positions from their padding's id plus 1
POSITIONS_AFTER_PADDING = {"camembert", "data2vec-text", "esm", "ibert", "longformer", "mpnet"}
POSITIONS_AFTER_PADDING |= {"roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl"}


def longest_input(folder: Path) -> int:
    """How many positions an encoder has, special tokens included."""
    config = load_json(folder / "config.json", dict, cure="copy its folder again")
    with reworded(f"{folder / 'config.json'} does not say its positions", "copy its folder again"):
        positions, family = int(config.get("max_position_embeddings", 512)), config.get("model_type")
        padding = 1 if family == "mpnet" else config.get("pad_token_id", 1)  # whose own is fixed
        return positions - (padding + 1) * (family in POSITIONS_AFTER_PADDING)


def new_classifier(folder: Path, labels: int, specials: SpecialTokens) -> Classifier:
    """The encoder of a folder with an untrained head for so many labels, drawn from torch's generator.

    Raises ValueError where transformers cannot read it, or gates/ knows no attention in it."""
    what = f"--encoder {folder}: transformers cannot make a classifier of it"
    with quiet(), reworded(what, "copy its folder again"):
        content = load_json(folder / "config.json", dict, cure="copy its folder again")
        auto = library("transformers").AutoModelForSequenceClassification
        config = library("transformers").AutoConfig.from_pretrained(
            str(folder), num_labels=labels, local_files_only=True, trust_remote_code=False
        )
        check_folder(folder, content, lambda: auto.from_config(config, trust_remote_code=False))
        net = auto.from_pretrained(
            str(folder),
            num_labels=labels,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
        if any(str(each).endswith("SequenceClassification") for each in content.get("architectures") or ()):
            # its own head is of other labels, or of these in another order
            untrained = auto.from_config(config, trust_remote_code=False).state_dict()
            body = f"{net.base_model_prefix}."
            head = {name: weight for name, weight in untrained.items() if not name.startswith(body)}
            net.load_state_dict(head, strict=False)
    model = Classifier(net, specials)
    if other := [site.name for site in find_sites(model) if site.kind != "enc-self"]:
        raise ValueError(f"--encoder {folder}: expected a model of an encoder alone, got one with {other[0]}")
    return model


# ---------------------------------------------------------------- checkpoints


def describe(model: Classifier) -> dict[str, Any]:
    """Plain values from which `build_classifier` makes the same model. heads_left: the heads that remain, if
    some were removed."""
    remaining = {site.name: row.tolist() for site, row in heads_left(model).items() if not row.all()}
    own = json.loads(model.net.config.to_json_string()).items()
    return {
        "class": type(model.net).__name__,
        "config": {name: value for name, value in own if name not in FOREIGN},
        "specials": as_json(model.source_specials),
        "heads_left": remaining,
    }


def build_classifier(description: Mapping[str, Any], device: str = "cpu") -> Classifier:
    """An untrained model of this description. Raises ValueError if it names no class of transformers for
    this, or does not fit it."""
    transformers, name = library("transformers"), description.get("class")
    cls = getattr(transformers, name, None) if isinstance(name, str) and name.endswith(CLASS) else None
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise ValueError(f"expected a class of transformers that ends in {CLASS}, got {shortened(name)}")
    known: Any = cls  # transformers may not be typed
    with reworded("cannot read the architecture of this checkpoint", "it was written by another version"):
        config = {name: value for name, value in description["config"].items() if name not in FOREIGN}
        check_layers(config)
        with torch.device(device):
            net = known(known.config_class.from_dict(config))
        model = Classifier(net, SpecialTokens(**description["specials"]))
        remove(model, HeadMap.from_json(description["heads_left"]).map(lambda row: ~row.bool()))
    return model


def save_classifier(path: str | Path, model: Classifier) -> None:
    """Save the weights and the description of a model without gates (detach them first)."""
    save_file(path, {"classifier": describe(model), "model": model.state_dict()})


def load_classifier(path: str | Path) -> Classifier:
    """The model that `save_classifier`, or a training, wrote, in evaluation mode. Raises ValueError at a
    broken file."""
    content = load_file(path)
    if "classifier" not in content or "model" not in content:
        raise ValueError(f"{path} holds {sorted(content)}; expected 'classifier' and 'model'")
    with reworded(f"the weights in {path} do not fit its architecture", COPY_AGAIN):
        description = content["classifier"]
        return filled(partial(build_classifier, description), description["config"], content["model"])
