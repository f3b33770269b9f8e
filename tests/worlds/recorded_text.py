"""The pieces of text of two sections of results/README.md, computed from their files: comparisons without training, and an encoder."""

import re
from statistics import mean

from tests.worlds.recorded import MAIN, RESULTS, TOY, below_one, compared_points, lead_of, read, runs, size


def without_training() -> list[str]:
    real, toy = (compared_points(f"compare-{name}") for name in (MAIN, TOY))
    base, toy_base = real["base", 72], toy["base", 48]
    gained = {
        name: [
            points[f"{method}-stream", heads]["bleu"] - points[method, heads]["bleu"]
            for method, heads in points
            if method != "base" and not method.endswith("-stream")
        ]
        for name, points in (("real", real), ("toy", toy))
    }
    assert all(len(each) == 9 and min(each) > 0 for each in gained.values())
    assert all(real["random-stream", heads]["bleu"] > real["greedy", heads]["bleu"] for heads in (36, 18, 9))
    half, greedy, learned = real["obs-stream", 36], real["greedy", 36], runs(MAIN)["0.03", "l0"]
    trained = next(row for (_, system), row in runs(TOY).items() if system == "l0-target")
    kept = [f"{real[name, heads]['bleu']:.1f}" for name in ("obs-stream", "greedy") for heads in (18, 9)]
    lead = [f"{real['obs-stream', heads]['bleu'] - real['greedy-stream', heads]['bleu']:.1f}" for heads in (36, 18, 9)]
    toy_lead = [f"{toy['obs-stream', heads]['bleu'] - toy['greedy-stream', heads]['bleu']:.1f}" for heads in (24, 12)]
    ranges = {place: lead_of(read(f"compare-{place[0]}/compare.json"), place[1]) for place in ((MAIN, 36), (TOY, 24), (TOY, 36))}
    assert ranges[TOY, 36][0] < 0 < ranges[TOY, 36][1]
    around = {place: f"({low:.1f} to {high:.1f})" for place, (low, high) in ranges.items()}
    lost = f"{size(half['difference'], 1)} BLEU ({size(half['high'], 1)} to {size(half['low'], 1)})"
    toy_lost = size(toy["obs-stream", 24]["difference"], 1)
    return [
        f"On the base above ({base['bleu']:.2f} BLEU) and on that of `make fit` ({toy_base['bleu']:.2f}),",
        "1,000 test sentences each, beam 5",
        "from 1,000 training pairs",
        f"Half of the Multi30k heads cost {lost} and {size(half['chrf'] - base['chrf'], 1)} chrF without any training",
        f"order alone costs {size(greedy['difference'], 1)}.",
        f"At 18 and 9 heads it keeps {kept[0]} and {kept[1]} BLEU where theirs keeps {kept[2]} and {kept[3]}.",
        f"The refit adds {mean(gained['real']):.1f} BLEU on average over the nine pairs of Multi30k,",
        f"{mean(gained['toy']):.1f} over those of the toy",
        f"by {lead[0]} {around[MAIN, 36]}, {lead[1]} and {lead[2]} BLEU on Multi30k",
        f"they tie at 36 heads, and it leads by {toy_lead[0]} {around[TOY, 24]} and {toy_lead[1]}.",
        f"with {learned['stage']['epochs']} epochs of it learned gates lose {size(learned['bleu_difference'], 1)} BLEU",
        f"at {learned['heads_open']} Multi30k heads",
        f"half of the toy heads cost {toy_lost} without and {size(trained['bleu_difference'], 1)} with",
    ]


def trained_points() -> dict[tuple[str, int], dict[str, float]]:
    """(method, open heads) -> its point over the seeds, of the comparison with three epochs of training."""
    made = read(f"compare-{MAIN}-trained/compare.json")
    return {(row["method"], round(row["heads"])): row for row in made["groups"] if row["epochs"] == 3 or row["method"] == "base"}


def same_training() -> list[str]:
    points, made = trained_points(), read(f"compare-{MAIN}-trained/compare.json")
    base, half = points["base", 72], points["l0-target", 36]
    best = {heads: max((row for (_, each), row in points.items() if each == heads), key=lambda row: row["value"]) for heads in (36, 18, 9)}
    leads = {(row["against"], row["heads"]): row for row in made["leads"] if row["method"] == "l0-target" and row["epochs"] == 3}
    signed = "{difference:+.2f} ({difference_low:+.2f} to {difference_high:+.2f})"
    ties = [leads["greedy-stream", heads] for heads in (36, 18, 9)]
    assert all(row["difference_low"] < 0 < row["difference_high"] for row in (*ties, leads["obs-stream", 18]))
    assert best[36] is half
    assert {row["seeds"] for row in points.values()} == {1, 3}
    behind = leads["obs-stream", 36]
    cost = {heads: "{:.1f} ({:.1f} to {:.1f})".format(*lost(row)) for heads, row in best.items()}
    return [
        f"The base above ({base['value']:.2f} BLEU), 3 epochs",
        "is {} at 36 heads, {} at 18 and".format(*(signed.format(**row).replace(" (", " BLEU (", not i) for i, row in enumerate(ties[:2]))),
        f"{signed.format(**ties[2])} at 9.",
        f"is {behind['difference']:.1f} behind at 36 heads with it (p {below_one(behind['p_value'])}), and ties at 18",
        "cost {:.2f} BLEU ({:.2f} to {:.2f})".format(*lost(half)),
        f"which 1,000 sentences do not tell from none (p {below_one(half['p_value'])})",
        f"but chrF falls by {base['chrf'] - half['chrf']:.2f}",
        f"rises by {half['loss'] - base['loss']:.2f} nats",
        f"is left at {cost[18].replace(' (', ' BLEU (')}, an eighth at {cost[9]}",
        "0.7 BLEU at 18 heads and 1.5 at 9, is not reached",
        "pruning to 18 heads has 34.9 BLEU",  # in LOG.md
        *encoder_alone(),
    ]


def encoder_points() -> dict[tuple[str, int], dict[str, float]]:
    """(method, open encoder heads) -> its point, of the comparison with a frozen decoder; the whole base has all 24."""
    frozen = 72 - 24  # heads of the decoder, which all stay
    return {(row["method"], round(row["heads"]) - frozen): row for row in read("compare-encoder-only/compare.json")["groups"]}


def encoder_alone() -> list[str]:
    points = encoder_points()
    base = points["base", 24]
    some, most = (max((points[name, heads] for name in ("l0-target", "greedy-stream")), key=lambda row: row["value"]) for heads in (5, 2))
    assert all(row["p_value"] >= 0.05 for (name, _), row in points.items() if not name.startswith("base"))
    assert all(row["difference_low"] < 0 < row["difference_high"] for row in read("compare-encoder-only/compare.json")["leads"])
    return [
        "Two of 24 encoder heads are enough",
        f"closing 19 costs {-some['difference']:.2f}, closing 22 costs {-most['difference']:.2f}, neither told from none",
        f"{base['chrf']:.2f} at the base, falls",
        f"by {base['chrf'] - some['chrf']:.1f} and {base['chrf'] - most['chrf']:.1f}, and the validation",
        f"rises by {some['loss'] - base['loss']:.2f} and {most['loss'] - base['loss']:.2f} nats",
        "closed 38 of 48 at 0.15 BLEU",  # the paper
    ]


def lost(row: dict[str, float]) -> tuple[float, float, float]:
    """What a point loses, and the ends of its interval, losses above 0."""
    return -row["difference"], -row["difference_high"], -row["difference_low"]


def fine_tuned_encoder() -> list[str]:
    place = "bert-sst2/sst2_sentences-all-MiniLM-L6-v2"
    base, gated = read(f"{place}-none-s1/result.json")["rows"][0], read(f"{place}-l0-0.01-s1/result.json")["rows"]
    rows, page = {row["system"]: row for row in gated}, (RESULTS / "bert-sst2.md").read_text(encoding="utf-8")
    curve = {round(float(row["closed_share"]), 1): row for row in read(f"{place}-none-s1/curves/gradient.csv")}
    one = read(f"{place}-none-s1/ablation/one.csv")
    assert all(float(row["p_value"]) >= 0.01 for row in one)
    some, many, l0, pruned = curve[0.4], curve[0.8], rows["l0"], rows["greedy-finetuned"]
    ranges = ["({:.2f} to {:.2f})".format(*row["accuracy_difference_ci95"]) for row in (l0, pruned)]
    times = {int(found[1]): found[2] for found in re.finditer(r"^\| (\d+) \|.* \| ([\d.]+) \([\d.]+ to [\d.]+\) \|$", page, re.MULTILINE)}
    batches = sorted(times[batch] for batch in (4, 16, 64))
    return [
        f"({base['parameters'] / 1e6:.1f} million parameters, {base['heads_total']} heads, 6 layers)",
        f"fine-tuned for {base['stage']['epochs']} epochs, {base['accuracy']:.2f}% of",
        f"{base['evaluation']['sentences']:,} test sentences right",
        f"40% of the heads go by Michel et al.'s order without training at {float(some['test_accuracy_difference']):+.2f} points",
        f"(p {below_one(float(some['test_accuracy_p_value']))})",
        f"80% leave {float(many['test_accuracy']):.1f} of {base['accuracy']:.1f}",
        f"leave {l0['heads_open']} heads open at lambda 0.01 and gain {l0['accuracy_difference']:.2f} points {ranges[0]}",
        f"loses {size(pruned['accuracy_difference'], 2)} {ranges[1]}",
        f"{batches[0]} to {batches[-1]} times as fast in batches of 4, 16 and 64, and {times[1]} times alone",
    ]
