"""The tokens that a Hugging Face model wants around a line: ends, beginnings, languages, as vocab.json holds
them.

A language stands before a source (mBART-50, M2M100, NLLB) or after its end (mBART-25); it begins every target
as a forced piece, or is what the decoder reads first (mBART-25). Marian's models of several target languages
read the target's, >>fra<<, before the source.
"""

from pathlib import Path
from typing import Any

from headgates.bridges.huggingface_vocab import KIND, SIDES, body, languages, piece_ids, read_tokenizer
from headgates.configs.did_you_mean import did_you_mean
from headgates.configs.fields import shortened
from headgates.configs.source import ForeignOptions


def vocabulary(folder: Path, model: Any, sizes: list[int], options: ForeignOptions) -> dict[str, Any]:
    """What vocab.json says of the tokenizer, but for its files: the tokens around a line of each side, and
    the special ones' ids.

    Raises ValueError where it does not fit the model, or languages are not given, not known, or not asked
    for."""
    tokenizer = read_tokenizer(folder)
    kind, config = type(tokenizer).__name__, model.generation_config
    for side, size in zip(SIDES, sizes, strict=True):
        ids = piece_ids(tokenizer, side)
        if strange := [
            piece for piece, i in ids.items() if not isinstance(i, int) or isinstance(i, bool) or i < 0
        ]:
            raise ValueError(
                f"the tokenizer in {folder} gives {shortened(strange[0])} the id {shortened(ids[strange[0]])}, expected 0 or more: "
                "copy it again"
            )
        beyond = [
            piece for piece, i in ids.items() if i >= size and piece not in tokenizer.all_special_tokens
        ]
        if beyond:
            raise ValueError(
                f"the tokenizer in {folder} has {len(ids)} {side} pieces, up to the id {max(ids.values())}, the model embeds {size}: "
                "they belong to different models"
            )
    language = chosen_languages(tokenizer, options)
    marian = kind == "MarianTokenizer"
    if language and not marian:
        tokenizer.src_lang, tokenizer.tgt_lang = language["source"], language["target"]
    before, after = template(tokenizer, "source")
    if marian and language:
        before = [languages(tokenizer)[language["target"]], *before]
    if not after:
        raise ValueError(
            f"the tokenizer in {folder} puts no token after a line; the model's sources need an end"
        )
    *suffix, source_end = after
    padding, end, start = (
        given(model, name) for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id")
    )
    unknown = tokenizer.unk_token_id
    first = next((i for i in (*before, *suffix) if i not in (source_end, padding)), padding)
    source = {"padding": padding, "beginning": first, "end": source_end, "unknown": unknown}
    target_before, _ = template(tokenizer, "target")
    forced = [] if config.forced_bos_token_id is None else [config.forced_bos_token_id]
    if language and not marian:
        code = languages(tokenizer)[language["target"]]
        if kind == "MBartTokenizer":  # mBART-25 reads the language first, as what the decoder starts with
            start, forced = code, []
        else:
            forced = [code]
    known = piece_ids(tokenizer, "target")
    target = {"padding": padding, "beginning": start, "end": end, "forced": forced}
    target["unknown"] = known.get(tokenizer.unk_token, unknown)
    prefix = forced or ([] if kind in ("MBartTokenizer", "FSMTTokenizer") else target_before)
    about: dict[str, Any] = {"kind": KIND, "class": kind, "languages": language}
    about["source"] = {"size": sizes[0], "prefix": before, "suffix": suffix, "specials": source}
    about["target"] = {"size": sizes[1], "prefix": prefix, "suffix": [], "specials": target}
    for side in SIDES:
        specials, size = about[side]["specials"], about[side]["size"]
        used = [
            *about[side]["prefix"],
            *about[side]["suffix"],
            *(specials[name] for name in ("padding", "beginning", "end")),
        ]
        if strange := [i for i in used if not 0 <= i < size]:
            raise ValueError(
                f"the tokenizer in {folder} puts the token {strange[0]} around a {side} line, and the model embeds {size}: "
                "they belong to different models"
            )
    return about


def template(tokenizer: Any, side: str) -> tuple[list[int], list[int]]:
    """The ids that a tokenizer puts before and after a line."""
    line = "a"
    text = (
        {"text_target": line}
        if side == "target" and type(tokenizer).__name__ != "FSMTTokenizer"
        else {"text": line}
    )
    own, whole = body(tokenizer, side, [line])[0], list(tokenizer(**text)["input_ids"])
    at = next((i for i in range(len(whole)) if whole[i : i + len(own)] == own), 0)
    return whole[:at], whole[at + len(own) :]


def chosen_languages(tokenizer: Any, options: ForeignOptions) -> dict[str, str]:
    """The language of each side, for a model of several. Raises ValueError at one that it does not know, or
    that is missing."""
    known = languages(tokenizer)
    given = {"source": options.src_lang, "target": options.tgt_lang}
    marian = type(tokenizer).__name__ == "MarianTokenizer"
    needed = ("target",) if marian else SIDES if known else ()
    for side in SIDES:
        flag, code = f"--{side[:3].replace('sou', 'src').replace('tar', 'tgt')}-lang", given[side]
        if code is None and side in needed and known:
            raise ValueError(
                f"this model has several languages: give {flag}, one of {shortened(', '.join(sorted(known)))}"
            )
        if code is not None and (side not in needed or not known):
            raise ValueError(
                f"{flag} {code}: this model's tokenizer has no token for a {side} language; leave it out"
            )
        if code is not None and code not in known:
            raise ValueError(
                f"{flag} {code}{did_you_mean(code, known)}: expected one of {shortened(', '.join(sorted(known)))}"
            )
    return {side: code for side, code in given.items() if code is not None}


def given(model: Any, name: str) -> int:
    """The id of a special token, from generation_config or config. Raises ValueError where there is none, or
    more than one."""
    found = getattr(model.generation_config, name, None)
    found = getattr(model.config, name, None) if found is None else found
    if isinstance(found, list) and len(found) == 1:
        found = found[0]
    if not isinstance(found, int):
        raise ValueError(f"{name} in config.json is {shortened(found)}; expected the id of one token")
    return found
