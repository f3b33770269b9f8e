"""Marian's model files with random weights, written from the description of the format, with their
vocabularies."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

WORDS = ["</s>", "<unk>", "the", "dog", "cat", "sleeps", "sees", "a", "no", "1.0", "der", "Hund", "Katze"]
D, FFN, HEADS, ENCODER, DECODER = 12, 14, 3, 2, 2
SETTINGS: dict[str, Any] = {
    "type": "transformer",
    "dim-emb": D,
    "dim-vocabs": [len(WORDS)] * 2,
    "transformer-dim-ffn": FFN,
    "transformer-heads": HEADS,
    "enc-depth": ENCODER,
    "dec-depth": DECODER,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "transformer-guided-alignment-layer": "last",
    "transformer-train-position-embeddings": False,
    "transformer-tied-layers": [],
    "tied-embeddings": False,
    "tied-embeddings-src": False,
    "tied-embeddings-all": True,
    "version": "v1.9.56",
}
PRE = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
SSRU = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
SEPARATE = {"tied-embeddings-all": False}


def marian_arrays(settings: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """The parameters that Marian's own sources make for these settings, random."""
    random = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray] = {}

    def normal(name: str, *shape: int, around: float = 0.0) -> None:
        arrays[name] = (around + 0.4 * random.standard_normal(shape)).astype(np.float32)

    def norm(prefix: str, suffix: str = "") -> None:
        normal(f"{prefix}_ln_scale{suffix}", 1, D, around=1.0)
        normal(f"{prefix}_ln_bias{suffix}", 1, D)

    before = "_pre" if "n" in settings["transformer-preprocess"] else ""
    tied_all = settings["tied-embeddings-all"]
    for name in ["Wemb"] if tied_all else ["encoder_Wemb", "decoder_Wemb"]:
        normal(name, len(WORDS), D)
    if not tied_all and not settings["tied-embeddings"]:
        normal("decoder_ff_logit_out_W", D, len(WORDS))
    normal("decoder_ff_logit_out_b", 1, len(WORDS))
    for stack, depth in (("encoder", ENCODER), ("decoder", DECODER)):
        if "n" in settings["transformer-postprocess-emb"]:
            norm(f"{stack}_emb", "_pre")
        if "n" in settings["transformer-postprocess-top"]:
            norm(f"{stack}_top")
        for layer in (f"{stack}_l{i}" for i in range(1, depth + 1)):
            recurrent = stack == "decoder" and settings["transformer-decoder-autoreg"] == "rnn"
            attentions = [] if recurrent else ["self"]
            for name in attentions + (["context"] if stack == "decoder" else []):
                for each in "qkvo":
                    normal(f"{layer}_{name}_W{each}", D, D)
                    normal(f"{layer}_{name}_b{each}", 1, D)
                norm(f"{layer}_{name}_Wo", before)
            if recurrent:
                for each in ("W", "Wf"):
                    normal(f"{layer}_rnn_{each}", D, D)
                normal(f"{layer}_rnn_bf", 1, D)
                norm(f"{layer}_rnn" if before else f"{layer}_rnn_ffn", before)
            for number, shape in (("1", (D, FFN)), ("2", (FFN, D))):
                normal(f"{layer}_ffn_W{number}", *shape)
                normal(f"{layer}_ffn_b{number}", 1, shape[1])
            norm(f"{layer}_ffn_ffn", before)
    return arrays


def model_yml(settings: dict[str, Any]) -> np.ndarray:
    return np.frombuffer(yaml.safe_dump(settings).encode() + b"\0", np.int8)


def write_model(path: Path, arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> None:
    """.npz, or .bin with all float32, or with int8 matrices where the name ends in .int8.bin."""
    if path.suffix == ".npz":
        np.savez(path, **{**arrays, "special:model.yml": model_yml(settings)})  # type: ignore[arg-type]
        return
    items: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, array in arrays.items():
        if path.name.endswith(".int8.bin") and array.shape[0] > 1:
            multiplier = np.float32(127 / np.abs(array).max())
            stored = array if name.endswith("Wemb") else array.T
            data = np.rint(stored * multiplier).astype(np.int8).tobytes() + multiplier.tobytes()
            items.append((name, 0x4101, array.shape, data + bytes(-len(data) % 256)))
            items.append((f"{name}_QuantMultA", 0x404, (1, 1), np.float32(1).tobytes()))
        else:
            items.append((name, 0x404, array.shape, array.tobytes()))
    text = model_yml(settings)
    items.append(("special:model.yml", 0x101, text.shape, text.tobytes()))
    head = struct.pack("<2Q", 1, len(items))
    for name, kind, shape, data in items:
        head += struct.pack("<4Q", len(name) + 1, kind, len(shape), len(data))
    head += b"".join(name.encode() + b"\0" for name, *_ in items)
    head += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    padding = -(len(head) + 8) % 256
    path.write_bytes(
        head + struct.pack("<Q", padding) + bytes(padding) + b"".join(data for *_, data in items)
    )


def write_words(path: Path, words: list[str] = WORDS) -> None:
    """A vocabulary as Marian writes it: every word in quotes."""
    path.write_text("".join(f'"{word}": {i}\n' for i, word in enumerate(words)), encoding="utf-8")


def write_marian(folder: Path, name: str = "model.npz", *, seed: int = 0, **changes: Any) -> Path:
    """A folder with a model, its vocabulary and decoder.yml; the model's path. changes: of SETTINGS, -
    written as _."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = SETTINGS | {key.replace("_", "-"): value for key, value in changes.items()}
    write_model(folder / name, marian_arrays(settings, seed), settings)
    write_words(folder / "vocab.yml")
    config = {"models": [name], "vocabs": ["vocab.yml", "vocab.yml"], "beam-size": 4, "normalize": 0.6}
    (folder / "decoder.yml").write_text(yaml.safe_dump(config), encoding="utf-8")
    return folder / name


def write_spm(
    path: Path, lines: list[str], size: int, kind: str = "bpe"
) -> sentencepiece.SentencePieceProcessor:
    """A SentencePiece model, numbered as Marian trains them: </s> 0, <unk> 1, neither padding nor <s>."""
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines * 3),
            model_writer=file,
            model_type=kind,
            vocab_size=size,
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=0,
            unk_id=1,
            pad_id=-1,
            minloglevel=2,
        )
    return sentencepiece.SentencePieceProcessor(model_file=str(path))
