"""explore.py on models of every kind of source: what they say, attention, exact effects and a page."""

from pathlib import Path

import pytest

from headgates.commands.explore import ExploreOptions, server_of
from tests.worlds.hugging_face import options_of
from tests.worlds.marian_models import SSRU, write_marian

FAIRSEQ = Path(__file__).parents[3] / "shared/fixtures/fairseq/iwslt_like"


@pytest.fixture
def asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # runs/ of the converted models

    def ask(source: str, text: str) -> None:
        with server_of(ExploreOptions(source=source, port=0, threads=1)) as server:
            (model,) = server.answers.models
            sites = [site.name for site in model.modules]
            shut = [f"{sites[0]}.0", f"{sites[-1]}.1"]
            said = server.answers.answer("/api/say", {"text": text, "shut": shut, "sites": sites})
            effects = server.answers.answer("/api/effects", {"text": text})["effect"]
            page = server.page(0, server.token)
        assert set(said["example"]["weights"]) == set(sites)
        for site, heads in said["example"]["weights"].items():
            keys = len(said["now"]["tokens"] if site.endswith("dec-self") else said["source"])
            assert all(len(row) == keys for rows in heads for row in rows)
        assert list(effects) == list(model.heads)
        assert len({round(effect, 6) for effect in effects.values()}) > len(effects) // 2
        assert said["whole"]["loss_now"] != pytest.approx(said["whole"]["loss"])
        assert page.count('"kind":') == len(model.heads)

    return ask


@pytest.mark.parametrize("family", ["marian", "nllb"])
def test_a_model_of_hugging_face(asked, hf_folder, family):
    languages = options_of(family)
    given = (("src", languages.src_lang), ("tgt", languages.tgt_lang))
    ends = [f",{name}={each}" for name, each in given if each]
    asked(f"hf:{hf_folder(family)}{''.join(ends)}", "the dog sleeps .")


def test_a_model_of_marian_whose_decoder_has_no_self_attention(asked, tmp_path):
    asked(f"marian:{write_marian(tmp_path / 'model', **SSRU).parent}", "the dog sees a cat")


def test_a_model_of_fairseq(asked):
    if not FAIRSEQ.is_dir():
        pytest.skip("no shared/fixtures/fairseq on this machine")
    line = (FAIRSEQ / "test.raw.en").read_text(encoding="utf-8").splitlines()[0]
    asked(f"fairseq:{FAIRSEQ / 'checkpoint_best.pt'}", line)
