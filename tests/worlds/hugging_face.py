"""Tiny Hugging Face models of every family that is read: random weights, a tokenizer of their own class,
saved by their own library."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch

from headgates.configs.source import ForeignOptions
from headgates.data.batch import pad
from headgates.models.translator import Translator
from tests.worlds.small_model import stirred

LINES = [
    "the dog sleeps .",
    "a big cat sees the small dog .",
    "dogs sleep",
    "der Hund schläft .",
    "Hunde schlafen",
    "eine Katze",
]
SHAPE = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 13,
    "decoder_ffn_dim": 17,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 37,
    "dropout": 0.1,
    "init_std": 0.2,
}


def special_ids(padding: int, end: int, start: int) -> dict[str, Any]:
    return {
        "pad_token_id": padding,
        "eos_token_id": end,
        "decoder_start_token_id": start,
        "forced_eos_token_id": end,
    }


FAIRSEQ = special_ids(1, 2, 2) | {"bos_token_id": 0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {  # family -> its class, and of its configuration what differs
    "bart": ("Bart", FAIRSEQ),
    "mbart": ("MBart", FAIRSEQ | {"activation_function": "gelu"}),
    "m2m_100": ("M2M100", FAIRSEQ | {"activation_function": "relu"}),
    "pegasus": ("Pegasus", special_ids(0, 1, 0) | {"activation_function": "relu"}),
    "fsmt": ("FSMT", FAIRSEQ),
}
KINDS |= {"mbart50": KINDS["mbart"], "nllb": KINDS["m2m_100"]}
TWO_LANGUAGES = {
    "m2m_100": ForeignOptions(src_lang="en", tgt_lang="de"),
    "nllb": ForeignOptions(src_lang="eng_Latn", tgt_lang="deu_Latn"),
    "mbart": ForeignOptions(src_lang="en_XX", tgt_lang="de_DE"),
    "mbart50": ForeignOptions(src_lang="en_XX", tgt_lang="de_DE"),
    "marian-languages": ForeignOptions(tgt_lang="fra"),
    "madlad": ForeignOptions(tgt_lang="de"),
    "byt5": ForeignOptions(prefix="translate: "),
}
IN_WORDS = {"t5": "translate English to German: ", "madlad": "<2de> ", "byt5": "translate: "}
# T5's kin: of its configuration what differs
T5_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": (
        "T5",
        {
            "feed_forward_proj": "relu",
            "task_specific_params": {"translation_en_to_de": {"prefix": IN_WORDS["t5"]}, "summarization": {}},
        },
    ),
    "mt5": ("MT5", {}),
    "umt5": ("UMT5", {}),
    "madlad": ("T5", {"tie_word_embeddings": False}),
    "byt5": ("T5", {"tie_word_embeddings": False}),
}
TWO_LANGUAGES["t5"] = ForeignOptions(prefix=IN_WORDS["t5"])
T5_SHAPE = {
    "d_model": 24,
    "d_kv": 4,  # its root is exact, so that W_Q is too
    "d_ff": 13,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 7,
    "feed_forward_proj": "gated-gelu",
    "decoder_start_token_id": 0,
}
FAMILY_NAMES = [
    "marian",
    "marian-languages",
    "marian-two-vocabularies",
    "bart",
    "mbart",
    "mbart50",
    "m2m_100",
    "nllb",
    "pegasus",
    "fsmt",
    *T5_KINDS,
]


def sentencepiece_model(folder: Path) -> list[str]:
    """The pieces of a model that is trained on LINES, without its special ones; the model lies in
    sp.model."""
    path = folder / "sp.model"
    options = {"vocab_size": 67, "hard_vocab_limit": False, "model_type": "bpe", "minloglevel": 2}
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 3), model_writer=file, **options
        )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [
        processor.id_to_piece(i)
        for i in range(processor.get_piece_size())
        if not processor.is_control(i) and not processor.is_unknown(i)
    ]


def write_tokenizer(name: str, folder: Path, pieces: list[str], model: bytes) -> tuple[int, int]:
    """Write the tokenizer's files; the numbers of its source and target ids."""
    import transformers

    def numbered(path: str, *tokens: str) -> int:
        (folder / path).write_text(json.dumps({token: i for i, token in enumerate(tokens)}), encoding="utf-8")
        return len(tokens)

    def saved(tokenizer: Any) -> tuple[int, int]:
        tokenizer.save_pretrained(folder)
        return (len(tokenizer),) * 2

    fairseq = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    scored = [(piece, -float(i)) for i, piece in enumerate(fairseq)]
    (folder / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    if name.startswith("marian"):
        for side in ("source", "target"):
            (folder / f"{side}.spm").write_bytes(model)
        language = [">>fra<<", ">>deu<<"] if name == "marian-languages" else []
        if name != "marian-two-vocabularies":
            return (numbered("vocab.json", "</s>", "<unk>", *pieces, *language, "<pad>"),) * 2
        (folder / "tokenizer_config.json").write_text('{"separate_vocabs": true}', encoding="utf-8")
        source = numbered("vocab.json", "</s>", "<unk>", "<pad>", *pieces)
        return source, numbered("target_vocab.json", "</s>", "<unk>", "<pad>", *pieces[5:])
    if name == "bart":
        letters = sorted(
            {character.replace(" ", "Ġ") for line in LINES for character in line if ord(character) < 128}
        )
        numbered("vocab.json", "<s>", "<pad>", "</s>", "<unk>", *letters, "th", "the", "Ġd", "<mask>")
        (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\nĠ d\n", encoding="utf-8")
        return saved(transformers.BartTokenizer.from_pretrained(folder))
    if name == "m2m_100":
        (folder / "sentencepiece.bpe.model").write_bytes(model)
        return (numbered("vocab.json", *fairseq) + 100 + 8,) * 2
    if name == "nllb":
        letters = [letter for line in LINES for letter in line.replace(" ", "▁")]
        vocab = {piece: i for i, piece in enumerate(dict.fromkeys([*fairseq[:4], *letters, "th", "the"]))}
        return saved(transformers.NllbTokenizer(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    if name == "mbart":
        return saved(transformers.MBartTokenizer(vocab=scored))
    if name == "mbart50":
        return saved(transformers.MBart50Tokenizer(vocab=scored))
    if name == "pegasus":
        first = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("<mask_2>", 0.0)]
        return saved(transformers.PegasusTokenizer(vocab=first + scored[4:], offset=7))
    if name == "byt5":
        tokenizer = transformers.ByT5Tokenizer()
        tokenizer.save_pretrained(folder)
        return (len(tokenizer.get_vocab()),) * 2
    if name in T5_KINDS:
        tokens = ["<pad>", "</s>", "<unk>", "▁<2de>", "▁<2fr>"][: 5 if name == "madlad" else 3]
        vocab = [(token, 0.0) for token in tokens] + scored[4:]
        return saved(transformers.T5Tokenizer(vocab=vocab, extra_ids=3))
    letters = sorted({character for line in LINES for character in line if character != " "})
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), "th", "the</w>"]
    (folder / "merges.txt").write_text("t h 9\nth e</w> 8\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"langs": ["en", "de"]}', encoding="utf-8")
    source = numbered("vocab-src.json", "<s>", "<pad>", "</s>", "<unk>", *pieces)
    return source, numbered("vocab-tgt.json", "<s>", "<pad>", "</s>", "<unk>", *pieces[7:])


def model_of(name: str, source: int, target: int) -> Any:
    """A random model of the family, with as many rows."""
    import transformers

    if name in T5_KINDS:
        kind, options = T5_KINDS[name]
        config = getattr(transformers, f"{kind}Config")(**T5_SHAPE | options, vocab_size=source)
        return transformers.AutoModelForSeq2SeqLM.from_config(config)
    if name.startswith("marian"):
        padding = 2 if name == "marian-two-vocabularies" else source - 1
        kind, options = "Marian", special_ids(padding, 0, padding) | {"activation_function": "swish"}
        options |= {"share_encoder_decoder_embeddings": source == target, "decoder_vocab_size": target}
    else:
        kind, options = KINDS[name]
    sizes = {"langs": ["en", "de"], "src_vocab_size": source, "tgt_vocab_size": target}
    sizes = sizes if name == "fsmt" else {"vocab_size": source, "scale_embedding": name != "bart"}
    config = getattr(transformers, f"{kind}Config")(**SHAPE, **sizes, **options)
    return transformers.AutoModelForSeq2SeqLM.from_config(config)


@pytest.fixture(scope="session")
def hf_folder(tmp_path_factory) -> Callable[[str], Path]:
    """hf_folder("marian"): a folder as save_pretrained writes it, made once; do not change it."""
    pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")
    from headgates.data.hf_vocab import quiet

    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            folder = tmp_path_factory.mktemp("hf") / f"tiny-{name}"
            folder.mkdir()
            pieces = sentencepiece_model(folder.parent)
            with quiet():
                sizes = write_tokenizer(name, folder, pieces, (folder.parent / "sp.model").read_bytes())
                torch.manual_seed(FAMILY_NAMES.index(name))
                model = model_of(name, *sizes)
                learned = name.startswith(("bart", "mbart"))
                positions = [
                    each for key, each in model.named_parameters() if "embed_positions" in key and not learned
                ]
                kept = [each.clone() for each in positions]
                model = stirred(model, 0.1 if name in T5_KINDS else 0.3)
                with torch.no_grad():
                    for table, sinusoids in zip(positions, kept, strict=True):
                        table.copy_(sinusoids)
                    if hasattr(model, "final_logits_bias"):
                        model.final_logits_bias.normal_()
                model.generation_config.num_beams, model.generation_config.length_penalty = 4, 0.7
                if name == "bart":
                    model.generation_config.forced_bos_token_id = 0
                if name == "madlad":
                    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight) / 4)
                model.save_pretrained(folder)
                if name == "madlad":
                    as_published(folder)
            made[name] = folder
        return made[name]

    return make


def as_published(folder: Path) -> None:
    """Give a T5 with a table of its own for the output the names that MADLAD-400's files have."""
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors")
    state["decoder.embed_tokens.weight"] = state.pop("shared.weight")
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}
    del settings["scale_decoder_outputs"]
    (folder / "config.json").write_text(json.dumps(settings))


def options_of(name: str) -> ForeignOptions:
    """The languages that a family asks for."""
    return TWO_LANGUAGES.get(name, ForeignOptions())


def logits_differ(translator: Translator, theirs) -> float:
    """The largest difference of the two's logits, on a padded batch."""
    model = translator.model
    source = pad(translator.source_vocab.encode(LINES[:2]), model.source_specials, end=True)
    target_in = torch.tensor([[model.target_specials.beginning, 5, 7, 9]] * 2)
    with torch.no_grad():
        out = theirs(
            input_ids=source,
            attention_mask=(source != model.source_specials.padding).long(),
            decoder_input_ids=target_in,
            use_cache=False,
        )
        return float((model(source, target_in) - out.logits[..., : model.target_vocab]).abs().max())
