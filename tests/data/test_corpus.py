"""From text to Lightning: padding, skips that are counted, and epochs that have every pair once."""

from random import Random

import pytest
import pytorch_lightning as pl
import torch

from headgates.data.batch import Batch, collate
from headgates.data.corpus import TranslationData, make_vocabs
from headgates.data.special_tokens import SpecialTokens
from headgates.data.splits import Corpus
from headgates.data.text import DataError, ParallelText
from headgates.data.vocab import Vocab
from headgates.lightning_modules.stage_data import StageData

PAD, BOS, EOS = SpecialTokens().padding, SpecialTokens().beginning, SpecialTokens().end

NOUNS = ["fox", "dog", "cat", "bird", "fish", "horse", "mouse"]
VERBS = ["sees", "hears", "finds", "likes"]


def sentences(start: int, count: int) -> ParallelText:
    chosen = range(start, start + count)
    sources = [
        " ".join([NOUNS[i % 7], VERBS[i % 4]] + [NOUNS[(i * k) % 7] for k in range(1 + i % 5)])
        for i in chosen
    ]
    return ParallelText(sources, [source.upper() for source in sources])


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    train, valid, test = sentences(0, 101), sentences(101, 23), sentences(124, 13)
    train.skipped = {"empty": 2}
    train.sources[5] = "dog " * 31
    valid.targets[3] = "CAT " * 37
    test.sources[4] = ""
    test.sources[6] = "bird " * 41
    return Corpus(train, valid, test, "made", "made for the test", extra={"more": sentences(137, 3)})


@pytest.fixture(scope="module")
def vocab_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("vocabs")


@pytest.fixture(scope="module")
def data(corpus, vocab_folder) -> TranslationData:
    return serve(corpus, vocab_folder)


def serve(corpus, folder, **changed) -> TranslationData:
    source, target = make_vocabs(corpus, folder, size=61, joint=False)
    settings = {"max_tokens": 97, "max_length": 29, "seed": 3, "accumulate": 2, **changed}
    return TranslationData(corpus=corpus, source_vocab=source, target_vocab=target, **settings)


# the batch


def test_pairs_are_padded_on_the_right_with_specials_where_the_model_wants_them():
    batch = collate([([11, 12, 13], [21]), ([14], [22, 23]), ([], [])], [5, 7, 8], 19)
    assert batch.source.tolist() == [[11, 12, 13, EOS], [14, EOS, PAD, PAD], [EOS, PAD, PAD, PAD]]
    assert batch.target_in.tolist() == [[BOS, 21, PAD], [BOS, 22, 23], [BOS, PAD, PAD]]
    assert batch.target_out.tolist() == [[21, EOS, PAD], [22, 23, EOS], [EOS, PAD, PAD]]
    assert (batch.index.tolist(), batch.step_tokens, batch.target_tokens, len(batch)) == ([5, 7, 8], 19, 6, 3)
    assert {t.dtype for t in (batch.source, batch.target_in, batch.target_out, batch.index)} == {torch.int64}


# vocabularies


@pytest.mark.parametrize(
    ("joint", "files"), [(False, ["vocab.src.model", "vocab.tgt.model"]), (True, ["vocab.model"])]
)
def test_vocabularies_are_trained_once_and_loaded_afterwards(corpus, tmp_path, joint, files):
    source, target = make_vocabs(corpus, tmp_path, size=101 if joint else 61, joint=joint)
    written = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    again = make_vocabs(corpus, tmp_path, size=59, joint=joint)
    assert sorted(written) == files
    assert written == {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert [len(v) for v in again] == [len(source), len(target)]
    assert (source is target) == joint


# skips and counts


def test_the_report_counts_pieces_and_over_long_pairs_that_are_skipped_but_never_in_test(data, corpus):
    train = data.report["train"]
    assert train["skipped"] == {"empty": 2, "longer than 29 pieces": 1}
    assert data.report["valid"]["skipped"] == {"longer than 29 pieces": 1}
    assert (len(data.train_pairs), len(data.split("test"))) == (100, len(corpus.test))
    assert data.report["test"] == {"pairs": 13, "skipped": {}}
    pieces = sum(len(source) for source, _ in data.train_pairs)
    assert (train["source_pieces"], train["unknown_pieces"]) == (pieces, 0)
    assert data.report["vocabulary"]["target"] == len(data.target_vocab)


def test_a_pair_of_just_so_many_pieces_as_are_allowed_stays(data, corpus, vocab_folder):
    longest = max(len(side) for pair in data.train_pairs for side in pair)
    allowed = [serve(corpus, vocab_folder, max_length=each) for each in (longest, longest - 1)]
    assert len(allowed[0].train_pairs) == len(data.train_pairs) > len(allowed[1].train_pairs)


def test_no_pair_left_is_an_error_that_says_why(corpus, vocab_folder):
    with pytest.raises(DataError, match=r"no train pair is left: all 101 have more than 1 pieces"):
        serve(corpus, vocab_folder, max_length=1)


# batches


def test_index_finds_the_text_of_every_pair(data, corpus):
    rows, numbers = [], []
    for batch in data.train_dataloader():
        rows, numbers = rows + batch.target_out.tolist(), numbers + batch.index.tolist()
    assert data.target_vocab.decode(rows) == [corpus.train.targets[number] for number in numbers]
    assert len(rows) == 100


@pytest.mark.parametrize(("split", "pairs"), [("train", 100), ("valid", 22), ("test", 13), ("more", 3)])
def test_batches_serves_a_split_whole_with_its_own_tokens(data, split, pairs):
    batches = list(data.batches(split, 53))
    assert sum(len(batch) for batch in batches) == pairs
    assert all(batch.step_tokens == batch.target_tokens for batch in batches)


# with Lightning


class Recorder(pl.LightningModule):
    """Notes which pairs it saw, by epoch, and which it validated on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen, self.validated = [[], [], []], []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        self.seen[self.current_epoch] += batch.index.tolist()
        return self.weight * 0.0

    def validation_step(self, batch: Batch, _: int) -> None:
        self.validated += batch.index.tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_epoch_of_lightning_has_every_pair_once_in_its_own_order(data):
    module = Recorder()
    trainer = pl.Trainer(
        max_epochs=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(module, datamodule=StageData(data))
    assert [sorted(order) for order in module.seen] == [[i for i in range(101) if i != 5]] * 3
    assert module.seen[0] != module.seen[1] != module.seen[2]
    assert sorted(module.validated) == sorted([i for i in range(23) if i != 3] * 3)


def test_an_empty_batch_is_a_pair_that_counts_for_nothing(data):
    split = data.split("train")
    batch = split[[], 31]
    assert (len(batch), batch.target_tokens, batch.step_tokens) == (1, 0, 31)
    assert torch.equal(batch.source, split[[0], 31].source)


def test_a_vocabulary_of_a_sample_is_that_of_its_lines(corpus, tmp_path):
    drawn = sorted(Random(1).sample(range(len(corpus.train)), 29))
    lines = [side[i] for side in (corpus.train.sources, corpus.train.targets) for i in drawn]
    Vocab.train(lines, size=60, path=tmp_path / "by-hand.model")
    make_vocabs(corpus, tmp_path / "some", size=60, joint=True, pairs=29)
    make_vocabs(corpus, tmp_path / "all", size=60, joint=True, pairs=len(corpus.train))
    make_vocabs(corpus, tmp_path / "zero", size=60, joint=True)
    some, whole, zero = ((tmp_path / name / "vocab.model").read_bytes() for name in ("some", "all", "zero"))
    assert some == (tmp_path / "by-hand.model").read_bytes() != whole
    assert whole == zero
