"""prune.py --also for a classifier: its heads on a second labelled text, against columns of W_O zeroed by
hand, and texts that are none."""

import shutil

import numpy as np
import pytest
import torch

from headgates.commands import prune
from headgates.configs.cli import read
from headgates.configs.prune import PruneConfig
from headgates.configs.schema import FitConfig
from headgates.data.labelled import read_labelled
from headgates.gates import find_sites
from headgates.workbench.dense_model import DenseModel
from headgates.workbench.folder import RunFolder
from headgates.workbench.protocol import make_runs
from headgates.workbench.source import open_source
from headgates.workbench.transfer import transfer
from tests.worlds.tiny_encoder import labelled_sentences, write_tsv

FLAGS = [
    *(
        "--task",
        "classify",
        "--gate",
        "none",
        "--text.max-length",
        "20",
        "--threads",
        "1",
        "--precision",
        "32",
    ),
    *("--train.epochs", "1", "--train.average", "0"),
]


@pytest.fixture(scope="module")
def trained(encoder, labelled, tmp_path_factory) -> RunFolder:
    torch.set_num_threads(1)
    runs = tmp_path_factory.mktemp("second") / "runs"
    return make_runs(
        read(FitConfig, [*FLAGS, "--encoder", str(encoder), "--data", str(labelled), "--runs", str(runs)])
    )


@pytest.fixture
def base(trained, tmp_path) -> RunFolder:
    """The run, to be written in."""
    return RunFolder(shutil.copytree(trained.path, tmp_path / "runs" / trained.path.name))


def accuracy(source, text, *, without: tuple[str, int] | None = None) -> float:
    """Percent right of the model, where asked with the columns of W_O of one head, (site, head), set to zero
    and brought back."""
    site, module = next(
        (site, module)
        for site, module in find_sites(source.model).items()
        if not without or site.name == without[0]
    )
    weight = module.output.dense.weight
    kept = weight.detach().clone()
    with torch.no_grad():
        if without:
            weight.unflatten(1, (site.heads, -1))[:, without[1]] = 0
        found = source.predictor.label(text.sources)
        weight.copy_(kept)
    return 100 * sum(a == b for a, b in zip(found, text.targets, strict=True)) / len(text)


def test_the_heads_of_two_domains_are_correlated_as_by_hand(base, tmp_path):
    dense = DenseModel.open(read(PruneConfig, [str(base.path), "--ablate", "one", "--threads", "1"]))
    name, text = dense.other(str(write_tsv(tmp_path / "other" / "books.tsv", labelled_sentences(61, 9))))
    source = dense.source
    torch.manual_seed(5)
    with torch.no_grad():  # so that single heads matter, as they do not to the trained model
        for parameter in source.model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    found = transfer(dense, name=name, text=text, kinds=None)
    by_hand = {}
    domains = {
        "accuracy_difference": source.corpus.test,
        "other_accuracy_difference": read_labelled(tmp_path / "other/books.tsv"),
    }
    for column, domain in domains.items():
        closed = [accuracy(source, domain, without=(row["site"], int(row["head"]))) for row in found.rows]
        by_hand[column] = [each - accuracy(source, domain) for each in closed]
        assert [row[column] for row in found.rows] == pytest.approx(by_hand[column])
    assert found.correlations["all"]["pearson"][0] == pytest.approx(np.corrcoef(*by_hand.values())[0, 1])


def test_a_second_domain_may_be_a_folder_with_a_test_set_alone(base, tmp_path):
    write_tsv(tmp_path / "books" / "test.tsv", labelled_sentences(31, 9))
    source = open_source(base.path)
    name, text = source.task.other_text(source.config, str(tmp_path / "books"), source.corpus)
    assert (name, text) == ("books", read_labelled(tmp_path / "books" / "test.tsv"))


NOT_LABELLED = {
    "no labels": (
        "a.tsv",
        "a funny film\n",
        "a.tsv, line 1: expected label TAB sentence, or label TAB sentence TAB sentence, got 1 column",
    ),
    "no label in an object": ("a.jsonl", '{"text": "a funny film"}\n', "a.jsonl, line 1: expected a `label`"),
    "other labels": (
        "a.tsv",
        "good\ta film\nfair\ta film\n",
        "a.tsv, line 2: the label 'fair' is none of the training text, which has bad, good",
    ),
    "pairs": (
        "a.tsv",
        "good\ta film\tthe plot\n",
        "a.tsv, line 1: has 2 sentence(s), the training text has 1",
    ),
    "lines": ("a.txt", "a funny film\n", "a.txt: expected a file of label TAB sentence (.tsv) or .jsonl"),
    "a folder of something else": ("a/train.tsv", "good\ta film\n", "a has no test text: expected test"),
    "nothing": ("b.tsv", "", "a.tsv"),
}


@pytest.mark.parametrize("case", NOT_LABELLED)
def test_a_second_text_that_is_not_labelled_as_the_first_is_refused_before_anything_is_measured(
    case, base, called, tmp_path
):
    name, content, message = NOT_LABELLED[case]
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(content)
    place = {"a folder of something else": tmp_path / "a", "nothing": tmp_path / "a.tsv"}.get(
        case, tmp_path / name
    )
    code, _, wrong = called(prune)(base.path, "--ablate", "one", "--also", place, "--threads", 1)
    assert (code, wrong.count("\n")) == (1, 1), wrong
    assert message in wrong
    assert not (base / "ablation").exists()
