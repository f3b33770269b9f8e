"""A tokenizer of Hugging Face's with some of its pieces (data/trimming.py): the tokenizer.json of those that
the package `tokenizers` runs (NLLB, mBART, BART, Pegasus), or the dictionaries and SentencePiece models of
MarianTokenizer and M2M100Tokenizer. Languages and all that the library calls added tokens stay."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headgates.configs.json_file import load_json
from headgates.data.hf_vocab import PREFIX, SIDES, HuggingFaceVocab, kind, languages
from headgates.data.special_tokens import SpecialTokens
from headgates.data.text import DataError
from headgates.data.trimming import Ids, Kept, PieceFile, merged_symbols, numbered_needs
from headgates.data.vocab import read_about, write_about

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
MOST_TRIALS = 20  # of making two vocabularies as large as each other
Files = dict[str, bytes]


def trim(folder: Path, source: HuggingFaceVocab, target: HuggingFaceVocab, used: tuple[Ids, Ids]) -> Kept:
    """`data.trimming.trimmed_vocabs` of this kind. Raises DataError at a tokenizer of another class."""
    tokenizer, about = source.tokenizer, read_about(source.path)
    paths = {own: source.path.parent / name for name, own in about["files"].items()}
    used = (used[0] & source.names.keys(), used[1] & target.names.keys())  # a row may have no piece
    both = used[0] | used[1]
    if tokenizer.is_fast:
        kept, files = fast(json.loads(tokenizer.backend_tokenizer.to_str()), both)
        sides = [kept, kept]
    elif kind(tokenizer) == "M2M100Tokenizer":
        cutters = ["sentencepiece.bpe.model"]
        kept, files = with_dictionary(paths, "vocab.json", cutters, tokenizer.encoder, both)
        kept += sorted(set(languages(tokenizer).values()))  # they are numbered after the dictionary
        sides = [kept, kept]
    elif kind(tokenizer) == "MarianTokenizer" and tokenizer.separate_vocabs:
        target_ids = {piece: i for i, piece in tokenizer.decoder.items()}
        dictionaries = [
            ("vocab.json", ["source.spm"], tokenizer.encoder),
            ("target_vocab.json", ["target.spm"], target_ids),
        ]
        sides, files = with_two(paths, dictionaries, used)
    elif kind(tokenizer) == "MarianTokenizer":
        cutters = ["source.spm", "target.spm"]
        kept, files = with_dictionary(paths, "vocab.json", cutters, tokenizer.encoder, both)
        sides = [kept, kept]
    else:
        raise DataError(
            f"a {kind(tokenizer)} cannot be trimmed; close heads or neurons instead, which leave the "
            "tokenizer as it is"
        )
    for name in TOKENIZER_SETTINGS:
        if name in paths:
            content = renumbered_settings(
                name, load_json(paths[name], dict, cure="make the run again"), numbered(sides[0])
            )
            files[name] = json.dumps(content, indent=1, ensure_ascii=False).encode()
    for side, ids in zip(SIDES, sides, strict=True):
        own, places = about[side], numbered(ids)
        specials = SpecialTokens(**own["specials"]).renumbered(ids)
        own |= {"size": len(ids), "specials": vars(specials) | {"forced": list(specials.forced)}}
        own |= {each: [places[i] for i in own[each]] for each in ("prefix", "suffix")}
    if sides[0] is not sides[1] and len({about[side]["specials"]["padding"] for side in SIDES}) > 1:
        raise DataError(
            f"the tokenizer in {source.path.parent} uses one padding id for both vocabularies, and trimming "
            "would give them two different ones; close heads or neurons instead"
        )
    for name, data in files.items():
        (folder / f"{PREFIX}{name}").write_bytes(data)
    write_about(folder, about | {"files": {f"{PREFIX}{name}": name for name in files}})
    return sides[0], sides[1]


def with_two(
    paths: Mapping[str, Path],
    dictionaries: Sequence[tuple[str, list[str], Mapping[str, int]]],
    used: Sequence[Ids],
) -> tuple[list[list[int]], Files]:
    """`with_dictionary` of both sides. The tokenizer has one number for both paddings, which may be the last:
    of the shorter side more pieces stay, until both have as many."""
    more = list(map(set, used))
    for _ in range(MOST_TRIALS):
        sides = [with_dictionary(paths, *of, own) for of, own in zip(dictionaries, more, strict=True)]
        lengths = [len(kept) for kept, _ in sides]
        if lengths[0] == lengths[1]:
            break
        short = lengths.index(min(lengths))
        spare = sorted({*dictionaries[short][2].values()} - {*sides[short][0]})
        if not spare:
            break
        more[short] |= {*spare[: abs(lengths[0] - lengths[1])]}
    return [kept for kept, _ in sides], sides[0][1] | sides[1][1]


def with_dictionary(
    paths: Mapping[str, Path], dictionary: str, cutters: list[str], ids: Mapping[str, int], used: Ids
) -> tuple[list[int], Files]:
    """The ids of a dictionary that stay, and its file and those of its SentencePiece models."""
    own = used & set(ids.values())
    kept, contents = numbered_needs(ids, [PieceFile(paths[name]) for name in cutters], own)
    places = numbered(kept)
    numbers = json.dumps({name: places[i] for name, i in ids.items() if i in places}, ensure_ascii=False)
    return kept, {dictionary: numbers.encode(), **dict(zip(cutters, contents, strict=True))}


def fast(content: dict[str, Any], used: Ids) -> tuple[list[int], Files]:
    """The ids of a tokenizer.json that stay, and that file. Raises DataError at a model other than unigram
    and byte-pair encoding."""
    model, added = content["model"], content["added_tokens"]
    stay = used | {token["id"] for token in added}
    if model["type"] == "Unigram":
        pieces = [(name, score) for name, score in model["vocab"]]
        by_score = sorted(range(len(pieces)), key=lambda i: pieces[i][1])
        stay |= {*by_score[:1], *by_score[-1:], *(i for i, (name, _) in enumerate(pieces) if is_basic(name))}
        stay |= {model["unk_id"]} - {None}
        places = numbered(kept := sorted(stay))
        model["vocab"] = [list(pieces[i]) for i in kept if i < len(pieces)]
        model["unk_id"] = places.get(model["unk_id"])
    elif model["type"] == "BPE" and not (model["continuing_subword_prefix"] or model["end_of_word_suffix"]):
        ids = model["vocab"]
        ranks = {(first, second): i for i, (first, second) in enumerate(model["merges"])}
        names = {name for name, i in ids.items() if i in stay or is_basic(name) or name == model["unk_token"]}
        names = (
            names.union(*(merged_symbols(name, lambda a, b: ranks.get((a, b))) for name in names))
            & ids.keys()
        )
        places = numbered(kept := sorted(stay | {ids[name] for name in names}))
        model["vocab"] = {name: places[i] for name, i in ids.items() if name in names}
        model["merges"] = [pair for pair in model["merges"] if names.issuperset([*pair, "".join(pair)])]
    else:
        raise DataError(
            f"a tokenizer whose model is {model['type']} cannot be trimmed; expected Unigram or BPE"
        )
    content |= {"padding": None, "truncation": None}
    renumber(content, places)
    return kept, {"tokenizer.json": json.dumps(content, ensure_ascii=False).encode()}


def numbered(kept: list[int]) -> dict[int, int]:
    """The new id of each old one."""
    return {old: new for new, old in enumerate(kept)}


def is_basic(name: str) -> bool:
    """Whether a piece is a single character or a byte, in which any text can be written."""
    return len(name) == 1 or (len(name) == 6 and name.startswith("<0x") and name.endswith(">"))


def renumber(content: dict[str, Any], places: Mapping[int, int]) -> None:
    """Give the added tokens of a tokenizer.json their new ids, in all the forms that the library has."""
    for token in content["added_tokens"]:
        token["id"] = places[token["id"]]
    around = content["post_processor"] or {}
    for token in (around.get("special_tokens") or {}).values():
        token["ids"] = [places[i] for i in token["ids"]]
    for side in ("sep", "cls"):
        if side in around:
            around[side][1] = places[around[side][1]]


def renumbered_settings(name: str, content: dict[str, Any], places: Mapping[int, int]) -> dict[str, Any]:
    """What a file beside the pieces says, with new ids where it has any."""
    if name == "added_tokens.json":  # token -> id
        return {token: places[i] for token, i in content.items() if i in places}
    decoder = content.get("added_tokens_decoder") or {}  # id -> token
    moved = {str(places[int(i)]): token for i, token in decoder.items() if int(i) in places}
    return content | {"added_tokens_decoder": moved} if moved else content
