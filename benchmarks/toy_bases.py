"""Six small models of Hugging Face, each with a task that it has learned: what `any_model.py` makes smaller.

| base | model | task |
|---|---|---|
| bert | all-MiniLM-L6-v2 | sentiment of whole sentences (SST-2) |
| gpt2 | 6 layers, d=128 | the next piece of software documentation |
| llama | 6 layers, d=128, two heads share a key head | the same |
| t5 | 4 + 4 layers, d=128 | captions, English to German |
| whisper | 4 + 4 layers, d=128 | symbols from noisy frames of varying length |
| vit | 6 layers, d=128 | which shape a noisy image shows, and how often |

Batches are mappings of the model's arguments, labels included.

    python -m benchmarks.toy_bases --data FOLDER --encoder FOLDER --out FOLDER [BASE ...]

trains them, each into a folder of its name.
"""

import argparse
import gzip
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import ByteLevelBPETokenizer
from torch import Tensor, nn

Batch = dict[str, Tensor]
IGNORED = -100
BEGIN, END = 0, 1  # of text; BEGIN is padding too
FIT, CHECK, TEST = 8, 16, 32  # batches to choose and refit on, and of the validation and the test part


@dataclass(frozen=True)
class Base:
    """make: the model with its first weights. train: batches without end. fit: batches of the training part,
    to choose and refit on. valid, test: batches of their parts. steps, lr: of its training."""

    make: Callable[[], Any]
    train: Callable[[random.Random], Iterator[Batch]]
    fit: Sequence[Batch]
    valid: Sequence[Batch]
    test: Sequence[Batch]
    steps: int
    lr: float


def train(
    model: nn.Module,
    base: Base,
    *,
    steps: int,
    lr: float,
    seed: int,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    """AdamW with a warm-up and a linear decay to 0, in place. after: called with each step's number."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    warm = min(100, max(1, steps // 10))
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (steps - step) / max(1, steps - warm))
    )
    batches = base.train(random.Random(seed))
    for step in range(1, steps + 1):
        model.train()
        loss = model(**next(batches)).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        model.eval()
        after(step)


@torch.no_grad()
def outcomes(model: Any, batches: Sequence[Batch]) -> Tensor:
    """(examples, 3): nats, labels that have the largest logit, labels."""
    rows = []
    for batch in batches:
        logits, labels = model(**batch).logits, batch["labels"]
        if not model.config.is_encoder_decoder and labels.dim() == 2:  # a causal model
            logits, labels = logits[:, :-1], labels[:, 1:]
        logits, labels = logits.reshape(len(labels), -1, logits.shape[-1]), labels.reshape(len(labels), -1)
        nats = nn.functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=IGNORED, reduction="none"
        )
        right, counted = logits.argmax(-1) == labels, labels != IGNORED
        rows.append(torch.stack([nats.sum(1), right.sum(1), counted.sum(1)], 1))
    return torch.cat(rows).double()


def loss_of(model: Any, batches: Sequence[Batch]) -> float:
    """Nats per label."""
    nats, _, labels = outcomes(model, batches).sum(0).tolist()
    return nats / labels


# ---------------------------------------------------------------- text


def lines(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode("utf-8").rstrip("\n").split("\n")


def pieces_of(text: Sequence[str], size: int) -> ByteLevelBPETokenizer:
    pieces = ByteLevelBPETokenizer()
    pieces.train_from_iterator(text, vocab_size=size, special_tokens=["<s>", "</s>"], show_progress=False)
    return pieces


def padded(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True, filler)


def by_length(rows: Sequence[Any], size: int, length: Callable[[Any], int]) -> list[Sequence[Any]]:
    """Batches of so many rows of about the same length."""
    rows = sorted(rows, key=length)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def made_of_text(
    make: Callable[[], Any],
    made: Callable[[Any], Batch],
    parts: Iterable[Sequence[Any]],
    *,
    steps: int | None = None,
    lr: float,
) -> Base:
    """A base on the training, validation and test part of a text, each in groups of rows that `made` turns
    into a batch. steps: those of one pass over the training part unless given."""
    train, valid, test = parts

    def endless(luck: random.Random) -> Iterator[Batch]:
        while True:
            for group in luck.sample(train, len(train)):
                yield made(group)

    def spread_out(groups: Sequence[Any], count: int) -> list[Batch]:
        """So many batches of them, evenly."""
        return [made(groups[place * len(groups) // count]) for place in range(min(count, len(groups)))]

    valid_batches = [made(rows) for rows in valid]
    fit, tested = spread_out(train, FIT), spread_out(test, TEST)
    return Base(make, endless, fit, valid_batches, tested, steps or len(train), lr)


def bert(data: Path, encoder: Path) -> Base:
    words: Any = transformers.AutoTokenizer.from_pretrained(encoder)

    def part(name: str) -> list[tuple[list[int], int]]:
        rows = [line.split("\t", 1) for line in lines(data / f"sst2_sentences/{name}.tsv.gz")]
        ids = words([text for _, text in rows], truncation=True, max_length=64)["input_ids"]
        return [(own, int(label)) for own, (label, _) in zip(ids, rows, strict=True)]

    def made(rows: Sequence[tuple[list[int], int]]) -> Batch:
        ids = padded([row for row, _ in rows], words.pad_token_id)
        labels = torch.tensor([label for _, label in rows])
        return {"input_ids": ids, "attention_mask": (ids != words.pad_token_id).long(), "labels": labels}

    parts = (by_length(part(name), 32, lambda row: len(row[0])) for name in ("train", "dev", "test"))
    return made_of_text(
        lambda: transformers.BertForSequenceClassification.from_pretrained(encoder, num_labels=2),
        made,
        parts,
        lr=5e-5,
    )


def documentation(data: Path, make: Callable[[], Any]) -> Base:
    folder, length = data / "php_manual_en_fr", 64
    train_text = [*dict.fromkeys(lines(folder / "train.en.gz"))]
    pieces = pieces_of(train_text, 1024)

    def blocks(text: Sequence[str], seed: int | None = None) -> list[list[int]]:
        text = [*text]
        if seed is not None:
            random.Random(seed).shuffle(text)
        ids = [piece for row in pieces.encode_batch(text) for piece in [*row.ids, END]]
        return [ids[at : at + length] for at in range(0, len(ids) - length + 1, length)]

    def made(rows: Sequence[list[int]]) -> Batch:
        ids = torch.tensor([*rows])
        return {"input_ids": ids, "labels": ids}

    groups = by_length(blocks(train_text, seed=0), 16, len)
    valid, test = (by_length(blocks(lines(folder / f"{name}.en.gz")), 16, len) for name in ("valid", "test"))
    return made_of_text(make, made, (groups, valid[:CHECK], test), steps=800, lr=2e-3)


def gpt2(data: Path, _: Path) -> Base:
    config = transformers.GPT2Config(
        vocab_size=1024, n_positions=64, n_embd=128, n_layer=6, n_head=8,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BEGIN, eos_token_id=END,
    )  # fmt: skip
    return documentation(data, lambda: transformers.GPT2LMHeadModel(config))


def llama(data: Path, _: Path) -> Base:
    config = transformers.LlamaConfig(
        vocab_size=1024, max_position_embeddings=64, hidden_size=128, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, intermediate_size=384,
        bos_token_id=BEGIN, eos_token_id=END, pad_token_id=None,
    )  # fmt: skip
    return documentation(data, lambda: transformers.LlamaForCausalLM(config))


def t5(data: Path, _: Path) -> Base:
    folder = data / "multi30k"

    def part(name: str) -> list[tuple[str, str]]:
        return [*zip(lines(folder / f"{name}.en.gz"), lines(folder / f"{name}.de.gz"), strict=True)]

    train_text = part("train")
    pieces = pieces_of([line for pair in train_text for line in pair], 2048)

    def pairs(text: Sequence[tuple[str, str]]) -> list[Any]:
        sides = (
            [[*row.ids, END] for row in pieces.encode_batch([*side])] for side in zip(*text, strict=True)
        )
        return [*zip(*sides, strict=True)]

    def made(rows: Sequence[tuple[list[int], list[int]]]) -> Batch:
        ids = padded([source for source, _ in rows], BEGIN)
        labels = padded([target for _, target in rows], IGNORED)
        return {"input_ids": ids, "attention_mask": (ids != BEGIN).long(), "labels": labels}

    parts = (
        by_length(pairs(text), 32, lambda pair: len(pair[0]) + len(pair[1]))
        for text in (train_text, part("val"), part("test_2016_flickr"))
    )
    sizes: dict[str, Any] = dict(
        vocab_size=2048, d_model=128, d_kv=16, d_ff=512, num_layers=4, num_decoder_layers=4, num_heads=8,
        dropout_rate=0.0, pad_token_id=BEGIN, decoder_start_token_id=BEGIN, eos_token_id=END,
    )  # fmt: skip
    config = transformers.T5Config(**sizes)
    return made_of_text(
        lambda: transformers.T5ForConditionalGeneration(config), made, parts, steps=1400, lr=2e-3
    )


# ---------------------------------------------------------------- made in code


def made_in_code(
    make: Callable[[], Any], batch: Callable[[torch.Generator], Batch], steps: int, lr: float
) -> Base:
    """A base whose batches are drawn; no part shares a seed with another."""

    def drawn(seed: int, count: int) -> list[Batch]:
        luck = torch.Generator().manual_seed(seed)
        return [batch(luck) for _ in range(count)]

    def endless_luck(luck: random.Random) -> Iterator[Batch]:
        own = torch.Generator().manual_seed(luck.randrange(10**6, 10**9))
        while True:
            yield batch(own)

    return Base(make, endless_luck, drawn(1, FIT), drawn(2, CHECK), drawn(3, TEST), steps, lr)


def whisper(_: Path, __: Path) -> Base:
    """Symbols of a Markov chain; each lasts 5 to 9 frames of its own pattern, under noise."""
    symbols, frames, bins, first = 24, 96, 16, 2  # the first two ids are BEGIN and END
    own = torch.Generator().manual_seed(0)
    patterns = torch.randn(symbols, 9, bins, generator=own)
    follows = (2.0 * torch.randn(symbols, symbols, generator=own)).softmax(-1)

    def batch(luck: torch.Generator) -> Batch:
        sounds, said = [], []
        for _ in range(32):
            symbol, at, row = int(torch.randint(symbols, (), generator=luck)), 0, []
            sound = torch.zeros(frames, bins)
            while at + (lasts := int(torch.randint(5, 10, (), generator=luck))) <= frames:
                where = torch.linspace(0, 8, lasts).round().long()
                sound[at : at + lasts] = patterns[symbol][where]
                at += lasts
                row.append(symbol + first)
                symbol = int(torch.multinomial(follows[symbol], 1, generator=luck))
            sounds.append(sound)
            said.append([*row, END])
        noisy = torch.stack(sounds) + 1.2 * torch.randn(32, frames, bins, generator=luck)
        return {"input_features": noisy.transpose(1, 2), "labels": padded(said, IGNORED)}

    config = transformers.WhisperConfig(
        vocab_size=symbols + first, num_mel_bins=bins, d_model=128, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=8, decoder_attention_heads=8, encoder_ffn_dim=512, decoder_ffn_dim=512,
        max_source_positions=frames // 2, max_target_positions=32, dropout=0.0, attention_dropout=0.0,
        pad_token_id=BEGIN, bos_token_id=BEGIN, eos_token_id=END, decoder_start_token_id=BEGIN,
    )  # fmt: skip
    return made_in_code(lambda: transformers.WhisperForConditionalGeneration(config), batch, 1200, 1e-3)


def vit(_: Path, __: Path) -> Base:
    """One to three copies of one of six shapes, anywhere on a noisy image of 24 by 24."""
    shapes, size = 6, 7
    drawn = (torch.rand(shapes, size, size, generator=torch.Generator().manual_seed(0)) < 0.5).float()

    def batch(luck: torch.Generator) -> Batch:
        images, labels = 0.3 * torch.randn(32, 1, 24, 24, generator=luck), []
        for image in images:
            shape, copies = (int(torch.randint(most, (), generator=luck)) for most in (shapes, 3))
            for _ in range(copies + 1):
                x, y = torch.randint(24 - size + 1, (2,), generator=luck).tolist()
                image[0, x : x + size, y : y + size] += 2 * drawn[shape]
            labels.append(3 * shape + copies)
        return {"pixel_values": images, "labels": torch.tensor(labels)}

    sizes: dict[str, Any] = dict(
        image_size=24, patch_size=4, num_channels=1, hidden_size=128, num_hidden_layers=6,
        num_attention_heads=8, intermediate_size=512, num_labels=3 * shapes,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config = transformers.ViTConfig(**sizes)
    return made_in_code(lambda: transformers.ViTForImageClassification(config), batch, 2500, 1e-3)


FOLDERS = {"--data": "the texts, a folder each", "--encoder": "all-MiniLM-L6-v2, saved by transformers"}
BASES: dict[str, Callable[[Path, Path], Base]] = {
    each.__name__: each for each in (bert, gpt2, llama, t5, whisper, vit)
}


def make(name: str, base: Base, folder: Path) -> None:
    """Train it into the folder. training.json has the validation loss after each fifth of the steps."""
    begin = time.process_time()
    torch.manual_seed(1)
    model, fifths, losses = base.make(), [base.steps * fifth // 5 for fifth in range(1, 6)], list[float]()

    def after(step: int) -> None:
        if step in fifths:
            losses.append(loss_of(model, base.valid))
            print(f"{name}, step {step}: validation loss {losses[-1]:.3f}", flush=True)

    train(model, base, steps=base.steps, lr=base.lr, seed=1, after=after)
    model.save_pretrained(folder)
    seconds = round(time.process_time() - begin)
    about = {"steps": base.steps, "valid_losses": losses, "cpu_seconds": seconds}
    (folder / "training.json").write_text(json.dumps(about))
    print(f"{name}: {seconds} CPU seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for flag, meaning in (FOLDERS | {"--out": "where they are written, a folder each"}).items():
        parser.add_argument(flag, type=Path, required=True, help=meaning)
    parser.add_argument("bases", nargs="*", choices=[*BASES], default=[*BASES])
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.bases:
        make(name, BASES[name](options.data, options.encoder), options.out / name)


if __name__ == "__main__":
    main()
