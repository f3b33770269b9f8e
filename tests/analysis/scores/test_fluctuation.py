"""Fluctuation against a loop over channels of materialised inputs."""

import numpy as np
import torch

from headgates.analysis.scores.fluctuation import fluctuation, standardised
from headgates.gates import find_sites
from tests.analysis.scores.test_site_statistics import batches, materialised, model, pairs  # noqa: F401 - fixtures


def test_it_is_the_mean_of_standardised_variances_times_squared_columns_head_by_head(model, pairs):  # noqa: F811
    expected = materialised(model, pairs)
    found = fluctuation(model, batches(pairs, 3))
    assert list(found) == list(expected)
    for site, (z, _) in expected.items():
        columns = find_sites(model)[site].out_proj.weight.detach().double().numpy().T
        S = [
            np.var(channel, ddof=1) * np.sum(column**2)
            for channel, column in zip(z.numpy().T, columns, strict=True)
        ]
        scaled = [(each - np.mean(S)) / np.std(S, ddof=1) for each in S]
        width = len(S) // site.heads
        loop = [np.mean(scaled[head * width : (head + 1) * width]) for head in range(site.heads)]
        np.testing.assert_allclose(found[site].numpy(), loop, rtol=1e-4, atol=1e-6)
        assert abs(float(found[site].sum())) < 1e-9


def test_batches_padding_and_the_bias_of_the_projection_do_not_count(model, pairs):  # noqa: F811
    before = fluctuation(model, batches(pairs, 7))
    for attention in find_sites(model).values():
        torch.nn.init.normal_(attention.out_proj.bias)
    site = next(iter(before))
    torch.testing.assert_close(
        fluctuation(model, batches(pairs, 2))[site], before[site], rtol=1e-4, atol=1e-6
    )


def test_a_head_whose_output_is_a_constant_fluctuates_least(model, pairs):  # noqa: F811
    site, attention = next(iter(find_sites(model).items()))
    with torch.no_grad():
        attention.v_proj.weight[5:10] = 0  # head 1: its bias alone is left
    assert int(fluctuation(model, batches(pairs, 3))[site].argmin()) == 1


def test_where_all_channels_are_alike_all_scores_are_zero():
    assert standardised(torch.full((7,), 3.0)).tolist() == [0.0] * 7
