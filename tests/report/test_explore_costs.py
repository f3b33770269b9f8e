"""What explore's page knows of the heads of a base."""

import json

from headgates.records.source import open_source
from headgates.report.explore.page import costs
from tests.report.made_runs import toy_base


def test_the_cost_of_heads_is_of_the_usual_sample_and_left_out_where_it_cannot_be_read(tmp_path):
    base = toy_base(tmp_path)
    heads = {site: [1.5] * len(row) for site, row in base.row_of("base").heads_by_site.items()}
    (base / "scores/loss-sampled200.json").unlink()
    base.write_json("scores/loss-n5.json", {"heads": {site: [9.0] * len(row) for site, row in heads.items()}})
    source = open_source(base.path, "base")
    assert not costs(source), "another sample is not asked for"
    base.write_json("scores/loss-sampled200.json", {"heads": heads})
    assert json.dumps(costs(source).to_json()).count("1.5") == 48
    base.write_json("scores/loss-sampled200.json", {"heads": 3})
    assert not costs(source)
