"""What every line of SCORES must keep: a HeadMap over all heads, kept in the run folder, each score in a file
of its own."""

import json
from dataclasses import replace
from itertools import combinations

import pytest
import torch

from headgates.analysis.scores.random_score import random_score
from headgates.configs.fields import to_dict
from headgates.data.text import ParallelText
from headgates.pruning import scores as module
from headgates.pruning.choosers import SCORES
from headgates.pruning.scores import ScoreRequest, head_scores
from headgates.records.source import Source, open_source
from tests.worlds.runs import write_run

FAMILIES = pytest.mark.parametrize("name", [name for name in SCORES if not SCORES[name].family])


@pytest.fixture
def source(configure, translator, corpus, vocab_folder, tmp_path) -> Source:
    """An untrained base of 21 heads that says it is finished."""
    folder = write_run(tmp_path / "base", translator, None, **to_dict(configure()))
    folder.write_json(
        "result.json", {"system": "base", "finished": True, "data": {"text_digest": corpus.digest()}}
    )
    return open_source(folder.path)


@pytest.fixture
def request_of(source):
    """request_of(seed=2): what prune.py and fit.py ask for, with these changes; five validation lines."""
    return lambda **changes: ScoreRequest(**{"source": source, "valid": source.lines("valid", 5), **changes})


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The files of the scores that were computed."""
    files, compute = [], module.compute_scores

    def record(score, request):
        files.append(request.file)
        return compute(score, request)

    monkeypatch.setattr(module, "compute_scores", record)
    return files


@FAMILIES
def test_the_second_call_reads_what_the_first_kept_and_none_changes_the_model(
    name, source, request_of, computed
):
    before = {key: tensor.clone() for key, tensor in source.model.state_dict().items()}
    first = head_scores(name, request_of())
    assert torch.isfinite(first.flat()).all()
    assert head_scores(name, request_of()) == first
    assert len(computed) == 1
    assert head_scores(name, request_of(fresh=True)) == first
    assert len(computed) == 2
    after = source.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


@FAMILIES
def test_a_score_whose_file_is_for_all_kinds_is_of_all_kinds(name, request_of):
    some = head_scores(name, request_of(kinds=["cross"]))
    assert {site.kind for site in some} in ({"cross"}, {"enc-self", "dec-self", "cross"})
    every = head_scores(name, request_of())
    assert every.heads_total == 21
    assert every.select(["cross"]) == some.select(["cross"])


@FAMILIES
def test_a_score_of_another_text_is_another_score(name, source, request_of, monkeypatch):
    computed = list[str]()  # files; which scores the text gives is of other tests

    def compute(score, request):
        computed.append(request.file)
        return {score.part: random_score(source.model, seed=len(computed))}

    monkeypatch.setattr(module, "compute_scores", compute)
    text, usual = source.corpus.train, head_scores(name, request_of())
    elsewhere = replace(source)  # as fit.py --base BASE --data OTHER has it
    elsewhere.corpus = replace(source.corpus, train=ParallelText(text.sources[:31], text.targets[:31]))
    head_scores(name, request_of(source=elsewhere))
    fewer = replace(
        source, config={**source.config, "text": {**source.config["text"], "train_sentences": 31}}
    )
    head_scores(name, request_of(source=fewer))
    assert len(set(computed)) == 3
    assert head_scores(name, request_of()) == usual
    assert len(computed) == 3


def test_scores_share_a_file_only_within_a_family(request_of):
    files = {name: module.score_file(name, request_of()) for name in SCORES}
    for name, file in files.items():
        assert {other for other in files if files[other] == file} == {
            each for each in SCORES if family(each) == family(name)
        }


def test_scores_that_are_parts_of_one_computation_are_computed_once(request_of, computed):
    parts = {name: head_scores(name, request_of()).flat() for name in SCORES if SCORES[name].part}
    assert len(computed) == 1
    assert parts.keys() == {"facilitation", "interference", "irrelevance"}
    assert not any(torch.equal(*pair) for pair in combinations(parts.values(), 2))


def test_a_file_whose_parts_are_no_scores_is_named_with_its_cure(source, request_of):
    head_scores("irrelevance", request_of())
    (path,) = (source.folder / "scores").glob("facilitation*.json")
    content = json.loads(path.read_text())
    for wrong in ([], {"irrelevance": "none"}, {"irrelevance": {}}):
        path.write_text(json.dumps({**content, "parts": wrong}))
        with pytest.raises(ValueError, match=r"facilitation.*--fresh"):
            head_scores("irrelevance", request_of())


def family(name: str) -> str:
    return SCORES[name].family or name
