"""Every number in the answers of docs/measured.md is computed here from the file that its row names; those in
the text and the tables of README.md and results/README.md too, in tests/test_measured_text.py."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = [
    line.strip("| \n").split(" | ")
    for line in (ROOT / "docs/measured.md").read_text(encoding="utf-8").splitlines()
    if "results/" in line
]
ANSWERS = {
    re.search(r"results/([\w-]+)", where)[1]: answer
    for _, answer, where in (row for row in ROWS if len(row) == 3)
}
RATIO_SUM, ALPHA_BETA_SUM, GRADIENT_SUM = "ratio sum", "alpha-beta sum", "gradient sum"


def records(name: str) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (ROOT / f"results/{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def spread(numbers: dict[str, float], form: str = ".2f") -> str:
    return f"{numbers['median']:{form}} ({numbers['lowest']:{form}} to {numbers['highest']:{form}})"


def training_speed() -> list[str]:
    one, two = (
        {**each["runs"][0], "threads": each["threads"]}
        for each in records("training_speed")[-1]["measurements"]
    )
    bf16 = f"{one['ratio_to_bf16']['median']:.2f} and {two['ratio_to_bf16']['median']:.2f}"
    return [
        f"{spread(one['ratio_to_fp32'])} on one thread",
        f"{spread(two['ratio_to_fp32'])} on two",
        bf16,
        rounds("training_speed"),
        "bf16",
    ]


def rounds(name: str) -> str:
    return f"{records(name)[-1]['rounds']} rounds"


def gate_overhead() -> list[str]:
    toy, multi30k = (size["ratio"] for size in records("gate_overhead")[-1]["sizes"])
    return [
        f"{spread(toy, '.3f')} at the toy size",
        f"{spread(multi30k, '.3f')} at the Multi30k size",
        rounds("gate_overhead"),
        "30k",
    ]


def ablation_speed() -> list[str]:
    two, one = sorted(records("ablation_speed"), key=lambda record: -record["threads"])
    assert one["different_translations"] == two["different_translations"] == 0
    changed = f"{two['changed_share']:.0%}"
    parts = f"{len(two['loop_seconds'])} and {len(one['loop_seconds'])} parts"
    return [
        f"{spread(two['ratio'], '.1f')} on two",
        f"{spread(one['ratio'], '.1f')} on one",
        f"{two['translations']:,}",
        changed,
        parts,
    ]


def importance_cost() -> list[str]:
    medians = [
        ratio["median"]
        for row in records("importance_cost")[-1]["measured"]
        for ratio in row["ratio"].values()
    ]
    return [f"{min(medians):.2f} to {max(medians):.2f}", "1,000 and 4,000", rounds("importance_cost"), "30k"]


def removal_speed() -> list[str]:
    by_batch = {
        row["batch"]: row
        for row in records("removal_speed")[-1]["measured"]
        if (row["size"], row["work"]) == ("base", "scoring")
    }
    shares = [f"{by_batch[batch]['share_of_ideal']['median']:.2f} at" for batch in (64, 16, 1)]
    single = by_batch[64]["share_of_ideal"]
    times = [f"{by_batch[batch]['dense_over_removed']['median']:.2f}" for batch in (64, 16, 1)]
    single_text = f"single rounds {single['lowest']:.2f} to {single['highest']:.2f}"
    return [
        *shares,
        "batch 64",
        "at 16",
        "at 1",
        single_text,
        f"{times[0]}, {times[1]} and {times[2]}",
        rounds("removal_speed"),
    ]


def beam_speed() -> list[str]:
    two = next(record for record in records("beam_speed") if record["threads"] == 2)
    assert set(two["lines_alike"].values()) == {two["sentences"]}
    parts = f"{len(two['over']['uncached']['values'])} parts"
    return [spread(two["over"]["uncached"], ".1f"), spread(two["over"]["ctranslate2"]), "CTranslate2", parts]


def lrp_cost() -> list[str]:
    summed, by_step = ([row["ratio"] for row in record["measured"]] for record in records("lrp_cost"))
    texts = [
        f"{words} {summed[0][name]['median']:{form}} and {summed[1][name]['median']:{form}}"
        for words, name, form in (
            ("ratio rule", RATIO_SUM, ".2f"),
            ("alpha-beta", ALPHA_BETA_SUM, ".1f"),
            ("gradient", GRADIENT_SUM, ".2f"),
        )
    ]
    most = [
        max(sizes[f"{rule} step"]["median"] for sizes in by_step)
        for rule in ("ratio", "alpha-beta", "gradient")
    ]
    counted = [f"{rounds('lrp_cost')}", f"{records('lrp_cost')[0]['rounds']} rounds"]
    return [*texts, f"{most[0]:.1f}, {most[1]:.0f} and {most[2]:.1f} times", *counted]


def lrp_agreement() -> list[str]:
    texts, largest = [], 0.0
    for measured in records("lrp_agreement")[-1]["measured"]:
        rows = {(row["first"], row["second"]): row for row in measured["rows"] if row["kind"] == "all"}
        steps = [rows[f"{rule} step", f"{rule} sum"] for rule in ("ratio", "gradient", "alpha-beta")]
        texts += [f"{row['spearman']:.2f}".lstrip("0") for row in steps] + [f"({steps[0]['heads']} heads)"]
        largest = max(
            largest,
            *(
                row["largest_difference"]
                for row in rows.values()
                if row["first"].split()[0] == row["second"].split()[0]
            ),
        )
    return [*texts, f"{largest:.2f}", "30k"]


def memory() -> list[str]:
    record = records("memory")[-1]
    bounded, unbounded = record["measured"]["bounded"], record["measured"]["as torch leaves it"]
    assert bounded["peak_mb"] < record["aim_mb"]
    peaks = f"peak {bounded['peak_mb']:,} MB against {unbounded['peak_mb']:,}"
    return [peaks, f"{spread(record['ratio'], '.3f')} times", f"blocks of {bounded['steps_per_block']} steps"]


def fuzz() -> list[str]:
    record = records("fuzz")[-1]
    fine, refused, *defects = record["all"].values()
    assert fine + refused + sum(defects) == record["cases"]
    return [
        f"{record['cases']:,} files",
        f"{fine} read",
        f"{refused:,} refused in one line",
        f"{sum(defects)} tracebacks, hangs",
    ]


def repair_cost() -> list[str]:
    record = records("repair_cost")[-1]
    toy, real = record["measured"]
    assert (toy["size"], real["size"]) == ("toy", "multi30k")
    assert [real["ratio"][way]["median"] <= record["aim"] for way in ("repair", "stream", "values")] == [
        True,
        False,
        False,
    ]
    ways = [f"{spread(real['ratio'][way], '.1f')}" for way in ("repair", "stream", "values")]
    small = "{:.1f}, {:.1f} and {:.1f}".format(
        *(toy["ratio"][way]["median"] for way in ("repair", "stream", "values"))
    )
    held = [sorted(real["peak_mb"]["values"].items(), key=lambda each: int(each[0]))[end] for end in (0, -1)]
    memory = (
        f"{held[0][1]:.0f} MB for {int(held[0][0]):,} sentences, {held[1][1]:.0f} for {int(held[1][0]):,}"
    )
    return [
        f"`repair` {ways[0]}, `stream` {ways[1]}, `values` {ways[2]} times as long",
        f"{small} at the toy size",
        f"{memory} with `values`",
        rounds("repair_cost"),
    ]


def decoding_peers() -> list[str]:
    record = records("decoding_peers")[-1]
    rows = [row for each in record["measurements"] for row in each["rows"]]
    over = {
        peer: [row["over"][peer]["median"] for row in rows]
        for peer in ("HF generate", "CTranslate2", "CTranslate2 int8")
    }
    reached = [ratio for ratio in over["CTranslate2"] if ratio >= record["aim"]["at_least"]]
    assert {(row["beam"], row["batch"]) for row in rows} == {(1, 16), (1, 64), (5, 16), (5, 64)}
    hf, fp32, int8 = (f"{min(found):.2f} to {max(found):.2f}" for found in over.values())
    fp32 = f"{fp32} of CTranslate2 in fp32 (at least {record['aim']['at_least']} in {len(reached)} of {len(rows)} settings)"
    return [f"{hf} times Hugging Face's generate", fp32, f"{int8} of it in int8", rounds("decoding_peers")]


def big_corpus() -> list[str]:
    record = records("big_corpus")[-1]
    above, few, second = (
        record["private_mb_above_model"],
        record["model"]["seconds"],
        record["second"]["seconds"],
    )
    assert record["pairs"] == 10_000_000
    assert max(above.values()) < record["aims"]["private_mb"]
    assert record["throughput"]["slower"]["median"] < record["aims"]["slower"]
    assert second["first_batch"] > record["aims"]["second_start_s"]
    return [
        f"{record['pairs_per_second_tokenised']:,.0f} pairs a second",
        f"{above['first']:.0f} MB above the model's in the first start, {above['second']:.0f} in the second",
        f"to the first batch {record['first']['seconds']['first_batch']:.0f} s, then {second['first_batch']:.1f}",
        f"{few['first_batch']:.1f} s on {record['model']['pairs']:,} pairs",
        f"steps {spread(record['throughput']['slower'])} times as long",
        f"{record['throughput']['pairs']:,} pairs",
    ]


def training_peers() -> list[str]:
    record = records("training_peers")[-1]
    ratios = {each["d_model"]: spread(each["ratio"]) for each in record["measurements"]}
    assert {each["fastest_peer"] for each in record["measurements"]} == {"Marian bf16"}
    widths = [f"{ratios[128]} at d=128", f"{ratios[256]} at 256", f"{ratios[512]} at 512 with 6+6 layers"]
    return [*widths, f"{record['rounds']} rounds of {record['steps_per_block']} steps"]


COMPUTED = [
    *(memory, fuzz, training_peers, repair_cost, decoding_peers, big_corpus),
    *(training_speed, gate_overhead, ablation_speed, importance_cost),
    *(removal_speed, beam_speed, lrp_cost, lrp_agreement),
]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"(?<![\w.])\d*[.,]?\d+", text))


def stale(page: str, computed: list[str], page_numbers: set[str] | None = None) -> str:
    """What is wrong with a text whose numbers should be those of the files, or an empty text."""
    missing = [text for text in computed if text not in page]
    unknown = sorted((numbers(page) if page_numbers is None else page_numbers) - numbers(" ".join(computed)))
    parts = [f"the files say {missing}, the page does not"] if missing else []
    parts += [f"the page says {', '.join(unknown)}, which no file gives"] if unknown else []
    return "; ".join(parts)


@pytest.mark.parametrize("computed", COMPUTED, ids=lambda function: function.__name__)
def test_an_answer_has_the_numbers_of_its_file_and_no_others(computed):
    assert stale(ANSWERS[computed.__name__], computed()) == ""


def test_a_stale_number_is_named_with_what_the_file_says():
    wrong = "the files say ['13 of 72 heads'], the page does not; the page says 12, which no file gives"
    assert stale("12 of 72 heads", ["13 of 72 heads"]) == wrong
