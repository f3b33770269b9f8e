"""What every line of SCORES must keep: a HeadMap over all heads, kept in the run folder, each score in a file
of its own."""

from dataclasses import replace

import pytest
import torch

from headgates.configs.fields import to_dict
from headgates.configs.scores import SCORES
from headgates.data.parallel import ParallelText
from headgates.gates import HeadMap, find_sites
from headgates.gates.headmap import HeadSite
from headgates.workbench import scores as module
from headgates.workbench.scores import ScoreRequest, closed_by, head_scores, ranked
from headgates.workbench.source import Source, open_source
from tests.worlds.runs import write_run

NAMES = pytest.mark.parametrize("name", SCORES)


@pytest.fixture
def source(configure, translator, corpus, vocab_folder, tmp_path) -> Source:
    """An untrained base of 21 heads that says it is finished."""
    folder = write_run(tmp_path / "base", translator, None, **{**to_dict(configure()), "gate": "none"})
    folder.write_json(
        "result.json", {"system": "base", "finished": True, "data": {"text_digest": corpus.digest()}}
    )
    return open_source(folder.path)


@pytest.fixture
def request_of(source):
    """request_of(seed=2): what prune.py and fit.py ask for, with these changes; five validation lines."""
    return lambda **changes: ScoreRequest(
        **{"source": source, "valid": source.lines("valid", 5), "report": lambda text: None, **changes}
    )


@pytest.fixture
def computed(monkeypatch) -> list[str]:
    """The files of the scores that were computed."""
    files, compute = [], module.compute_scores

    def record(score, request):
        files.append(request.file)
        return compute(score, request)

    monkeypatch.setattr(module, "compute_scores", record)
    return files


@NAMES
def test_a_score_is_a_finite_number_for_every_head_and_leaves_the_model_as_it_was(name, source, request_of):
    before = {key: tensor.clone() for key, tensor in source.model.state_dict().items()}
    scores = head_scores(name, request_of())
    assert {site.name: site.heads for site in scores} == {
        site.name: site.heads for site in find_sites(source.model)
    }
    assert scores.heads_total == 21
    assert torch.isfinite(scores.flat().double()).all()
    after = source.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())
    assert not source.model.training


@NAMES
def test_the_second_call_reads_what_the_first_kept_and_fresh_computes_it_again(name, request_of, computed):
    first = head_scores(name, request_of())
    assert head_scores(name, request_of()) == first
    assert len(computed) == 1
    assert head_scores(name, request_of(fresh=True)) == first
    assert len(computed) == 2


@NAMES
def test_a_score_whose_file_is_for_all_kinds_is_of_all_kinds(name, request_of):
    some = head_scores(name, request_of(kinds=["cross"]))
    assert {site.kind for site in some} in ({"cross"}, {"enc-self", "dec-self", "cross"})
    every = head_scores(name, request_of())
    assert every.heads_total == 21
    assert every.select(["cross"]) == some.select(["cross"])


@NAMES
def test_a_score_of_another_text_is_another_score(name, source, request_of, computed):
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


def family(name: str) -> str:
    return SCORES[name].family or name


@pytest.mark.parametrize("change", [{"sentences": 31}, {"absolute": "token"}, {"absolute": "batch"}], ids=str)
def test_a_gradient_taken_otherwise_is_kept_elsewhere(change, request_of):
    usual, other = head_scores("importance", request_of()), head_scores("importance", request_of(**change))
    assert module.score_file("importance", request_of()) != module.score_file(
        "importance", request_of(**change)
    )
    assert not torch.allclose(usual.flat(), other.flat(), rtol=1e-6)


def test_another_seed_is_another_random_score(request_of):
    assert head_scores("random", request_of(seed=1)) != head_scores("random", request_of(seed=2))


def test_reverse_closes_what_gradient_keeps(request_of):
    scores = head_scores("importance", request_of())
    assert head_scores("reverse", request_of()) == scores
    assert closed_by("reverse", scores, keep=8) == ~closed_by("importance", scores, keep=13)


@NAMES
def test_closing_keeps_exactly_as_many_as_it_is_told_the_lowest_first(name):
    generator = torch.Generator().manual_seed(0)
    sites = [HeadSite.at("enc-self", 0, 7), HeadSite.at("cross", 0, 5)]
    scores = HeadMap({site: torch.rand(site.heads, generator=generator) for site in sites})
    for keep in range(13):
        closed = closed_by(name, scores, keep=keep)
        assert closed.count() == 12 - keep
        order = ranked(name, scores).flat()
        assert not 0 < keep < 12 or order[closed.flat()].max() <= order[~closed.flat()].min()
    with pytest.raises(ValueError, match="cannot keep 13 of 12 heads; expected 0 to 12"):
        closed_by(name, scores, keep=13)


def test_scores_with_heads_shut_are_computed_each_time_and_never_kept(source, request_of, computed):
    first = head_scores("importance", request_of())
    closed = closed_by("importance", first, keep=13)
    for _ in range(2):
        again = head_scores("importance", request_of(closed=closed))
        assert (again.flat()[closed.flat()] == 0).all()
    assert len(computed) == 3
    assert head_scores("importance", request_of()) == first
    assert [path.name for path in (source.folder / "scores").iterdir()] == ["gradient.json"]
