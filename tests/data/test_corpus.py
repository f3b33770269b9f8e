"""From text to Lightning: padding, skips that are counted, and epochs that resume as they would have gone
on."""

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
    return Corpus(
        train,
        valid,
        test,
        name="made",
        description="made for the test",
        src="en",
        tgt="EN",
        extra={"more": sentences(137, 3)},
    )


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


def test_no_pair_left_is_an_error_that_says_why(corpus, vocab_folder):
    with pytest.raises(DataError, match=r"no train pair is left: all 101 have more than 1 pieces"):
        serve(corpus, vocab_folder, max_length=1)


# batches


def test_index_finds_the_text_of_every_pair(data, corpus):
    for batch in data.train_dataloader():
        for row, number in zip(batch.target_out.tolist(), batch.index.tolist(), strict=True):
            assert data.target_vocab.decode([row])[0] == corpus.train.targets[number]


@pytest.mark.parametrize(("split", "pairs"), [("train", 100), ("valid", 22), ("test", 13), ("more", 3)])
def test_batches_serves_a_split_whole_with_its_own_tokens(data, split, pairs):
    batches = list(data.batches(split, 53))
    assert sum(len(batch) for batch in batches) == pairs
    assert all(batch.step_tokens == batch.target_tokens for batch in batches)


# with Lightning


class Recorder(pl.LightningModule):
    """Notes which pairs it saw, by epoch and optimiser step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: dict[int, list[tuple[int, list[int], int, int]]] = {}
        self.validated: list[int] = []

    def training_step(self, batch: Batch, _: int) -> torch.Tensor:
        self.seen.setdefault(self.current_epoch, []).append(
            (self.global_step, batch.index.tolist(), batch.step_tokens, batch.target_tokens)
        )
        return self.weight * 0.0

    def validation_step(self, batch: Batch, _: int) -> None:
        self.validated += batch.index.tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(corpus, vocab_folder, *, epochs, resume=None) -> tuple[Recorder, pl.Trainer]:
    module = Recorder()
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        accumulate_grad_batches=2, use_distributed_sampler=False,
    )  # fmt: skip
    trainer.fit(
        module,
        datamodule=StageData(serve(corpus, vocab_folder)),
        ckpt_path=resume,
        weights_only=True if resume else None,
    )
    return module, trainer


@pytest.mark.filterwarnings("ignore::UserWarning")
class TestUnderLightning:
    @pytest.fixture(scope="class")
    def whole(self, corpus, vocab_folder):
        return fit(corpus, vocab_folder, epochs=3)[0]

    def test_every_epoch_has_every_pair_once_in_its_own_order(self, whole):
        orders = [[number for _, index, _, _ in whole.seen[epoch] for number in index] for epoch in range(3)]
        assert [sorted(order) for order in orders] == [[i for i in range(101) if i != 5]] * 3
        assert orders[0] != orders[1] != orders[2]
        assert sorted(whole.validated) == sorted([i for i in range(23) if i != 3] * 3)

    def test_step_tokens_are_those_of_lightnings_optimiser_steps(self, whole, data):
        assert len({step for step, _, _, _ in whole.seen[0]}) == data.sampler().steps
        for batches in whole.seen.values():
            for step in {step for step, _, _, _ in batches}:
                of_step = [(promised, own) for s, _, promised, own in batches if s == step]
                assert {promised for promised, _ in of_step} == {sum(own for _, own in of_step)}

    def test_a_resumed_run_sees_the_epochs_it_would_have_seen(self, whole, corpus, vocab_folder, tmp_path):
        _, trainer = fit(corpus, vocab_folder, epochs=2)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        resumed, _ = fit(corpus, vocab_folder, epochs=3, resume=tmp_path / "last.ckpt")
        assert resumed.seen == {2: whole.seen[2]}


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
