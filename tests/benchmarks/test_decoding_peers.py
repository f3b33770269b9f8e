"""All decoders translate alike, and one that does not is not timed; how fast is no test."""

import pytest

from benchmarks import decoding_peers
from benchmarks.decoding_peers import CT2, GENERATE, SPECIALS, check_parity, draw_sources, make_searches
from headgates.configs.schema import ModelConfig
from headgates.data.batch import pad

pytest.importorskip("transformers", reason="transformers is not installed; it is in the extra hf")
pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed; it is in the extra export")


def tiny(width: int, dropout: float) -> ModelConfig:
    return ModelConfig(d_model=width, ffn=189, heads=2, encoder_layers=3, decoder_layers=3, dropout=dropout)


def test_all_translate_alike_and_a_peer_of_other_weights_is_not_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding_peers, "sized", tiny)
    monkeypatch.setattr(decoding_peers, "VOCAB", 307)
    searches, sources = make_searches(94), pad(draw_sources(11), SPECIALS)
    found = check_parity(searches, sources, 3, 7)
    assert found["same_hypotheses"][GENERATE] == found["same_hypotheses"][CT2] == 11
    assert found["different_translations"] > 5
    monkeypatch.setattr(decoding_peers, "SEED", 2)
    searches[CT2] = make_searches(94)[CT2]
    with pytest.raises(ValueError, match=f"ours and {CT2} have the same hypotheses for"):
        check_parity(searches, sources, 3, 7)
