"""Marian's own .npz: model.npz, decoder.yml and the vocabularies, as marian-decoder and CTranslate2's
converter read them.

Every attention of a Marian model has all of its heads, so removed ones are written as heads of zeros: the
same translations, not a smaller model. Its decoder begins with an embedding of 0, and it knows one kind of
positions; what it cannot express is refused by the setting's name. A model that came in as marian:PLACE goes
out as it came.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from headgates.bridges.formats import read_about
from headgates.bridges.marian import NORMS, read
from headgates.bridges.marian_file import Arrays, write_npz
from headgates.bridges.marian_names import OUTPUT_BIAS, layer_names, table_names
from headgates.bridges.marian_vocab import MarianVocab
from headgates.configs.schema import read_search
from headgates.configs.source import ForeignOptions
from headgates.data.vocab import load_vocabs
from headgates.models.transformer import Transformer
from headgates.models.translator import Translator

MODEL = "model.npz"
CURE = "take --to torch or onnx"
CAN_BE: dict[
    str, tuple[Any, ...]
] = {  # settings of ModelConfig in which Marian has no choice, or a smaller one
    "positions": ("tensor2tensor",),
    "first_position": (0,),
    "embedding_scale": (True,),
    "activation": ("relu", "swish"),
    "decoder_norm": ("same",),
    "final_norm": ("both", "none"),
    "decoder_heads": (0,),
    "norm_eps": (1e-6,),
}
ALWAYS: dict[str, Any] = {  # settings without which some version of Marian does not begin
    "type": "transformer",
    "version": "v1.9.56",
    "input-types": [],
    "skip": False,
    "layer-normalization": False,
    "right-left": False,
    "ulr": False,
    "lemma-dim-emb": 0,
    "output-omit-bias": False,
    "tied-embeddings-src": False,
    "enc-cell": "gru",
    "enc-cell-depth": 1,
    "enc-type": "bidirectional",
    "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1,
    "dim-rnn": 1024,
    "transformer-ffn-depth": 2,
    "transformer-pool": False,
    "transformer-no-projection": False,
    "transformer-guided-alignment-layer": "last",
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "transformer-aan-activation": "swish",
    "transformer-aan-depth": 2,
    "transformer-aan-nogate": False,
    "transformer-dim-aan": 2048,
}


def write(translator: Translator, folder: Path) -> None:
    """Raises ValueError at a model that Marian cannot express, or vocabularies that are not Marian's."""
    model, search = translator.model, translator.search
    check(model)
    names = []
    for side, vocabulary in (("source", translator.source_vocab), ("target", translator.target_vocab)):
        if not isinstance(vocabulary, MarianVocab):
            raise ValueError(
                f"Marian cannot read the vocabulary {vocabulary.path.name}: it numbers padding; {CURE}"
            )
        names.append(vocabulary.file.name)
        if vocabulary.cutter and vocabulary.cutter.path != vocabulary.file:
            shutil.copyfile(vocabulary.cutter.path, folder / f"{side}.spm")
    write_npz(folder / MODEL, arrays(model), settings(model))
    decoder = {
        "relative-paths": True,
        "models": [MODEL],
        "vocabs": names,
        "beam-size": search.beam,
        "normalize": search.length_penalty,
    }
    decoder["max-length-factor"] = search.max_ratio
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder, sort_keys=False), encoding="utf-8")


def check(model: Transformer) -> None:
    """Raises ValueError at a model that Marian cannot express."""
    config, specials = model.config, model.target_specials
    for name, values in CAN_BE.items():
        if getattr(config, name) not in values:
            raise ValueError(
                f"Marian has no {name} {getattr(config, name)!r}, only {' or '.join(map(repr, values))}; {CURE}"
            )
    if specials.beginning != specials.padding or model.target_embedding.weight[specials.beginning].any():
        raise ValueError(
            f"Marian's decoder begins with an embedding of 0, and this model's beginning has one that was trained; {CURE}"
        )


def settings(model: Transformer) -> dict[str, Any]:
    """What special:model.yml says."""
    config = model.config
    (pre, post, top) = next(letters for letters, (norm, _) in NORMS.items() if norm == config.norm)
    if config.has_final_norm("encoder"):
        top = "n"
    own = {
        "dim-emb": config.d_model,
        "dim-vocabs": [model.source_vocab - 1, model.target_vocab - 1],
        "enc-depth": config.encoder_layers,
        "dec-depth": config.decoder_layers,
        "transformer-heads": config.heads,
        "transformer-dim-ffn": config.ffn,
        "transformer-decoder-dim-ffn": config.decoder_ffn,
        "transformer-ffn-activation": config.activation,
        "transformer-preprocess": pre,
        "transformer-postprocess": f"d{post}",
        "transformer-postprocess-emb": "nd" if config.embedding_norm else "d",
        "transformer-postprocess-top": top,
        "transformer-decoder-autoreg": "rnn" if config.decoder_mixer == "ssru" else "self-attention",
        "dec-cell": "ssru" if config.decoder_mixer == "ssru" else "gru",
        "tied-embeddings": config.embeddings == "tied-decoder",
        "tied-embeddings-all": config.embeddings == "tied",
    }
    return ALWAYS | own


def arrays(model: Transformer) -> Arrays:
    """The parameters by Marian's names, without the token that Marian has not. Heads that were removed become
    heads of zeros."""
    config, state = (
        model.config,
        {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()},
    )
    found = {}
    for name, their_name in layer_names(config, range(1, config.decoder_layers + 1)):
        array = state[name].T if state[name].ndim == 2 else state[name][None]
        if "_attention." in name:  # (D, H K) of q, k and v, (H K, D) of W_O, and their biases
            size = (len(array) if len(array) == 1 else config.d_model, config.d_model)
            array = np.pad(array, [(0, size[i] - array.shape[i]) for i in range(2)])
        found[their_name] = np.ascontiguousarray(array)
    for name, their_name in table_names(config).items():
        found[their_name] = state[f"{name}.weight"][:-1]
    found[OUTPUT_BIAS] = (
        state["output.bias"][None, :-1]
        if config.output_bias
        else np.zeros((1, model.target_vocab - 1), np.float32)
    )
    return found


def open(folder: Path, threads: int = 0) -> Translator:
    """The model that `write` wrote, as our own Transformer. threads: those that torch has, whatever is
    given."""
    translator = read(str(folder), ForeignOptions()).convert().translator
    specials = translator.model.source_specials, translator.model.target_specials
    return Translator(
        translator.model, *load_vocabs(folder, *specials), read_search(read_about(folder)["search"], folder)
    )
