"""Every number in the text and the tables of README.md, results/README.md and docs/sources-marian.md is
computed here from the files in results/.

A section of a page has a function that returns the pieces of text in which its numbers stand. A number that
stands in none of them, or a piece that the page lacks, fails the test, which says both."""

import re
from typing import Any

import pytest

from tests.test_measured import records, stale
from tests.worlds.recorded import (
    MAIN,
    RESULTS,
    ROOT,
    STUDENT,
    STUDENT_CURVE,
    TOY,
    below_one,
    compared_points,
    loss,
    read,
    runs,
    size,
)
from tests.worlds.recorded_text import (
    best_of,
    encoder_points,
    fine_tuned_encoder,
    same_training,
    trained_points,
    without_training,
)

EARLIER = "multi30k-en-de-one-tail"
NUMBER_WORDS = ("no", "one", "two", "three", "four", "five", "six")
# what is no measurement: years of papers, levels and thresholds of tests, decoding that every row has
FIXED = [
    "Voita et al. 2019",
    "Michel et al. 2019",
    "95% interval",
    "lambda 0.03 from",
    "10 points",
    "90% is asked",
    "Table 1",
    "exactly 0 or 1",
    "16.9 million parameters, int8, 2 SSRU layers",
    "2,000 English sentences of Tatoeba",
    "Behnke & Heafield 2020 took three quarters of the encoder heads off an English-German student at -0.2 BLEU and 10% more speed",
]


# ---------------------------------------------------------------- README.md


def readme() -> list[str]:
    trained, after_stream = trained_points("values"), trained_points()
    half, quarter, eighth = best_of(trained)
    exact = after_stream["subset", 9]["value"] - after_stream["greedy-stream", 9]["value"]
    own = next(row for (_, system), row in runs(TOY).items() if system == "l0-target")
    points = compared_points(f"compare-{MAIN}")
    ours, theirs = (points[name, 36] for name in ("ablation-values", "greedy"))
    versions = re.findall(r"Python :: (3\.\d+)", (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return [
        f"closes half of the heads at {ours['difference']:+.1f} BLEU ({ours['chrf'] - points['base', 72]['chrf']:+.1f} chrF)",
        f"Michel et al.'s order loses {size(theirs['difference'], 1)}.",
        f"The best are at {half['difference']:+.1f} BLEU with half of the heads",
        f"(chrF loses {trained['base', 72]['chrf'] - half['chrf']:.1f}),",
        "22 of 24 encoder heads close at {difference:+.2f} BLEU, and".format(
            **encoder_points()["greedy-stream", 2]
        ),
        f"{encoder_points()['greedy-stream', 2]['chrf'] - trained['base', 72]['chrf']:+.1f} chrF",
        f"{quarter['difference']:+.1f} with a quarter and {eighth['difference']:+.1f} with an eighth",
        f"gates of exactly K heads lost {size(exact, 1)} more than greedy",
        f"gates learn which {own['heads_open']} of {own['heads_total']} heads stay",
        f"Python {versions[0]} to {versions[-1]}",
    ]


# ---------------------------------------------------------------- results/README.md


def learned_gates() -> list[str]:
    rows, base = runs(MAIN), read(f"{MAIN}/{MAIN}-none-s1.json")["rows"][0]
    total, sentences = base["heads_total"], f"{base['evaluation']['sentences']:,}"
    at = {lam: rows[lam, "l0"] for lam in ("0.01", "0.03", "0.1")}
    many, half, few = at.values()
    greedy, finetuned = rows["0.03", "greedy"], {lam: rows[lam, "greedy-finetuned"] for lam in at}
    removed = [f"{rows[lam, 'l0-removed']['parameters'] / base['parameters']:.2f}" for lam in at]
    assert base["stage"]["converged"]
    assert all(rows[lam, "l0-removed"]["lines_unlike_l0"] == 0 for lam in at)
    assert {row["reference"] for row in rows.values()} == {"base"}
    return [
        f"which {half['heads_open']} of {total} heads stay open at lambda 0.03",
        f"test_2016_flickr, {sentences} sentences, beam {base['evaluation']['search']['beam']}, sacreBLEU `{base['bleu_signature']}`",
        f"base of {base['parameters'] / 1e6:.1f} million parameters",
        f"{total - many['heads_open']} of {total} heads go without a loss that BLEU (p {below_one(many['bleu_p_value'])}) or chrF",
        f"(p {below_one(many['chrf_p_value'])}) shows; the validation loss rises by {loss(many) - loss(base):.2f} nats",
        f"At {half['heads_open']} heads BLEU loses {size(half['bleu_difference'], 2)} (p {below_one(half['bleu_p_value'])})",
        f"which {sentences} sentences do not tell from none",
        f"chrF loses {size(half['chrf_difference'], 2)} (p {below_one(half['chrf_p_value'], 3)})",
        f"the validation loss rises by {loss(half) - loss(base):.2f} nats: half of the heads",
        f"{half['heads_by_kind']['enc-self']} of {base['heads_by_kind']['enc-self']} heads are left at lambda 0.03",
        f"({greedy['bleu']:.1f} BLEU at {greedy['heads_open']} heads)",
        f"{finetuned['0.03']['bleu']:.2f} against {half['bleu']:.2f} BLEU at {half['heads_open']} heads",
        f"{finetuned['0.1']['bleu']:.2f} against {few['bleu']:.2f} at {few['heads_open']}",
        f"the same {sentences} lines, with {removed[0]}, {removed[1]} and {removed[2]} of the parameters",
        *earlier(),
    ]


def earlier() -> list[str]:
    """Of the base before, and how its runs are made again."""
    rows, first = runs(EARLIER), read(f"{EARLIER}/{MAIN}-none-s1.json")["rows"][0]
    few = rows["0.1", "l0"]
    longer = read("michel-one-tail/multi30k-en-de-none-s1/result.json")
    flags = re.search(r"--model.dropout [\d.]+ --train.epochs \d+", longer["command"])
    return [
        f"had {first['bleu']:.2f} BLEU",
        f"{few['bleu'] - rows['0.1', 'greedy-finetuned']['bleu']:.1f} BLEU ahead of greedy-finetuned at {few['heads_open']} heads",
        "lambda {}, {}, {} and {};".format(*sorted({lam for lam, _ in rows}, key=float)),
        flags[0] if flags else "--model.dropout 0.25 --train.epochs 44",
        f"had {longer['rows'][0]['bleu'] - first['bleu']:.1f} BLEU more than the earlier base",
    ]


def single_heads() -> list[str]:
    (name,) = (path.name for path in (RESULTS / "michel").iterdir())
    one = read(f"michel/{name}/ablation/one.csv")
    significant = [row for row in one if float(row["p_value"]) < 0.01]
    encoder = [sum(row["kind"] == "enc-self" for row in rows) for rows in (significant, one)]
    lost, shared, ahead = of_michel("michel", name)
    earlier = sorted(path.name for path in (RESULTS / "michel-one-tail").iterdir())  # Multi30k, then Tatoeba
    minutes = read(f"michel-one-tail/{earlier[1]}/result.json")["rows"][0]["stage"]["seconds"] / 60
    before = [of_michel("michel-one-tail", each) for each in earlier]
    assert not [row for row in significant if float(row["bleu_difference"]) > 0]
    return [
        f"{len(significant)} of {len(one)} heads cost something",
        f"(p < .01; {encoder[0]} of {encoder[1]} in the encoder)",
        f"20% of the heads cost {lost} BLEU where",
        f"(r {below_one(min(shared))} and {below_one(max(shared))})",
        f"{size(ahead, 1)} BLEU worse than the order by measured ablation" if ahead < 0 else "better",
        f"not converged after {int(minutes)} minutes",
        f"20% of the heads cost {before[0][0]} and {before[1][0]} BLEU there",
        f"r is {below_one(min(before[0][1] + before[1][1]))} to {below_one(max(before[0][1] + before[1][1]))}",
        f"the better one on Multi30k, by {size(before[0][2], 1)} BLEU",
    ]


def of_michel(place: str, name: str) -> tuple[str, list[float], float]:
    """What 20% of the heads cost in BLEU, Pearson's r with every other text, and how far the order by
    gradient is ahead of ablation's."""
    folder = RESULTS / place / name

    def curve(pattern: str) -> dict[float, dict[str, str]]:
        (path,) = folder.glob(f"curves/{pattern}")
        return {round(float(row["closed_share"]), 1): row for row in read(str(path.relative_to(RESULTS)))}

    gradient, ablation = curve("gradient-v*.csv"), curve("ablation-v*.csv")
    transfers = (read(str(path.relative_to(RESULTS))) for path in folder.glob("ablation/transfer-*.json"))
    shared = [transfer["correlations"]["all"]["pearson"][0] for transfer in transfers]
    ahead = [
        float(gradient[share]["test_bleu"]) - float(ablation[share]["test_bleu"])
        for share in gradient
        if 0 < share < 1
    ]
    return size(float(gradient[0.2]["test_bleu_difference"]), 1), shared, sum(ahead) / len(ahead)


def share(number: Any) -> str:
    return f"{float(number):.0%}"


def what_heads_do() -> list[str]:
    place = f"roles-{MAIN}/base"
    (role,) = read(f"{place}/roles.csv")
    nearest = {row["family"]: row for row in read(f"{place}/nearest.csv")}
    nsubj = max(
        (row for row in read(f"{place}/syntax-best.csv") if row["label"] == "nsubj"),
        key=lambda row: float(row["accuracy"]),
    )
    rho = {(row["first"], row["second"], row["kind"]): row for row in read(f"{place}/correlations.csv")}
    open_kinds = {
        row["kind"]: row["heads_open"] for row in read(f"{place}/survival.csv") if row["run"] == "λ 0.03"
    }
    toy = read("roles-toy-en-de/roles.csv")
    aligned = [row for row in toy if row["family"] == "aligned"]
    (adjective,) = (row for row in toy if row["family"] == "syntactic")
    heads = len(read("roles-toy-en-de/alignment.json")["head_maps"]["agreement"]["decoder.0.cross"]) * 2

    def spearman(first: str, second: str, kind: str = "all") -> str:
        return below_one(float(rho[first, second, kind]["spearman"]))

    def against(row: dict[str, str]) -> str:
        return f"{share(row['score'])}, best offset {share(row['baseline'])}"

    assert [pair[:2] for pair, row in rho.items() if pair[2] == "cross" and float(row["p_value"]) < 0.05] == [
        ("LRP share", "importance")
    ]
    survival = {(row["kind"], row["within"]): row for row in read(f"{place}/survival-test.csv")}
    return [
        f"{read(f'{place}/confidence.json')['settings']['sentences']:,} validation pairs",
        f"`{role['site']}.{role['head']}`: it finds the verb of an object ({against(role)})",
        f"one of {NUMBER_WORDS[int(open_kinds['enc-self'])]} that lambda 0.03 leaves open; it is still open at lambda 0.1",
        f"the best has {share(nearest['positional']['score'])} at one offset",
        f"({share(nearest['rare words']['score'])}, chance {share(nearest['rare words']['baseline'])})",
        f"nsubj ({share(nsubj['accuracy'])}, {share(nsubj['baseline'])})",
        f"{len(aligned)} of {heads} cross heads",
        f"(up to {against(max(aligned, key=lambda row: float(row['score'])))})",
        f"({against(adjective)})",
        f"Spearman {spearman('LRP share', 'confidence')} between LRP share and confidence, {spearman('LRP share', 'importance')} between",
        f"{spearman('confidence', 'importance')} between the last two",
        f"only LRP share and importance do ({spearman('LRP share', 'importance', 'cross')})",
        f"(rho {spearman('LRP share', 'confidence', 'enc-self')} in the encoder",
        f"{spearman('LRP share', 'confidence', 'cross')} in cross-attention)",
        f"though it does (p {below_one(float(survival['all', 'kind']['p_value']))}, two-sided)",
        f"`{nearest['rare words']['site']}.{nearest['rare words']['head']}`, below the threshold",
    ]


def student() -> list[str]:
    points = {int(row["heads_closed"]): row for row in read(f"{STUDENT_CURVE}.csv")}
    sizes, speed = read(f"{STUDENT_CURVE}.json")["settings"], records("curve_speed")[-1]
    first, quarter, half, most = (points[number] for number in (0, 12, 24, 36))
    lost = [abs(float(row["test_bleu_difference"])) for row in (quarter, half, most)]
    roles = {row["family"]: row for row in read(f"{STUDENT}/roles/nearest.csv")}
    alone = {
        kind: [row for row in read(f"{STUDENT}/ablation/one.csv") if row["kind"] == kind]
        for kind in ("enc-self", "cross")
    }
    cost = {kind: [row for row in rows if float(row["p_value"]) < 0.01] for kind, rows in alone.items()}
    assert not [row for rows in cost.values() for row in rows if float(row["bleu_difference"]) > 0]
    worst, second = sorted(cost["cross"], key=lambda row: float(row["bleu_difference"]))[:2]
    score = {family: f"{float(row['score']):.0%}" for family, row in roles.items()}
    chance = {family: f"{float(row['baseline']):.0%}" for family, row in roles.items()}
    saved = [f"{each['saved_share']:.1%}" for each in speed["measured"]]
    ranges = [
        "{lowest:.2f} to {highest:.2f}".format(**each["whole_over_removed"]) for each in speed["measured"]
    ]
    points_left = compared_points("compare-marian-enpt")
    ours, theirs = ([points_left[name, heads] for heads in (48, 32, 16)] for name in ("obs-stream", "greedy"))
    around = f"({ours[0]['difference']:+.2f}, {ours[0]['low']:+.2f} to {ours[0]['high']:+.2f})"
    kept = [f"{row['bleu']:.2f}" for row in (*ours, *theirs)]
    return [
        f"48 of 64 heads keep {kept[0]} BLEU of {points_left['base', 64]['bleu']:.2f} {around}, 32 keep {kept[1]} and 16 {kept[2]};",
        f"order keeps {kept[3]}, {kept[4]} and {kept[5]}",
        f"{len(cost['enc-self'])} of {len(alone['enc-self'])} encoder heads and {len(cost['cross'])} of {len(alone['cross'])} cross heads",
        "cost something significant (p < .01)",
        f"costs {size(float(worst['bleu_difference']), 1)} BLEU alone, one of the second {size(float(second['bleu_difference']), 1)}",
        f"{first['enc-self']} encoder and {first['cross']} cross heads",
        f"{sizes['valid']['sentences']} more for validation; the test is the first {sizes['test']['sentences']} lines of NTREX",
        f"({float(first['test_bleu']):.2f} BLEU, greedy)",
        f"costs {lost[0]:.2f} BLEU (p {below_one(float(quarter['test_bleu_p_value']))}), half {lost[1]:.1f}, three quarters {lost[2]:.1f}.",
        f"already costs {abs(float(quarter['valid_bleu_difference'])):.1f} BLEU",
        f"on {read(f'{STUDENT}/roles/confidence.json')['settings']['sentences']} lines and spaCy's parses",
        f"({score['positional']}), ",
        f"({score['syntactic']}, best offset {chance['syntactic']})",
        f"({score['rare words']}, chance {chance['rare words']})",
        f"save {saved[0]}, {saved[1]} and {saved[2]} of the multiply-adds",
        f"(load {speed['load_average_before']}) {speed['rounds']} rounds of {speed['sentences']} sentences",
        f"gave {ranges[0]}, {ranges[1]} and {ranges[2]} times the speed",
        f"{speed['measured'][-1]['target_pieces']:,} pieces for {speed['whole']['target_pieces']:,}",
        *relevance_of_the_student(worst),
        "it is {:.0%}, chance {:.0%}".format(*other_rare_words()),
    ]


def other_rare_words() -> tuple[float, float]:
    (row,) = (row for row in read(f"{STUDENT}/roles/nearest-other-text.csv") if row["family"] == "rare words")
    assert (row["site"], row["head"]) == ("encoder.1.enc-self", "6")
    return float(row["score"]), float(row["baseline"])


def relevance_of_the_student(worst: dict[str, Any]) -> list[str]:
    shares = read(f"{STUDENT}/roles/lrp.json")["head_maps"]["share"]
    largest = max((share, site, head) for site, row in shares.items() for head, share in enumerate(row))
    assert largest[1:] == (worst["site"], int(worst["head"]))
    assert all(
        (row["site"], row["head"]) != (worst["site"], worst["head"])
        for row in read(f"{STUDENT}/roles/roles.csv")
    )
    rows = {row["kind"]: row for row in read(f"{STUDENT}/roles/correlations-lrp.csv")}
    rho = {kind: below_one(float(row["spearman"])) for kind, row in rows.items()}
    together = (
        f"Spearman {rho['all']} over its {rows['all']['heads']} heads, {rho['cross']} in cross-attention"
    )
    return [together, f"relevance, {largest[0]:.0%} ("]


# ---------------------------------------------------------------- docs/sources-marian.md


def marian_student() -> list[str]:
    record = records("marian_student")[-1]
    lines, sentences, bleu = record["lines"], record["sentences"], record["bleu"]
    return [
        f"{record['equal_lines']} of the first {lines} lines are equal and {record['equal_sentences']} of {sentences};",
        f"BLEU of the {sentences} is {bleu['ours']:.2f} here and {bleu['engine']:.2f} of the engine",
    ]


SECTIONS = {  # page and heading (none: the whole page) -> the pieces of text that hold its numbers
    ("README.md", ""): readme,
    ("results/README.md", "Learned gates against greedy pruning: Multi30k English-German"): learned_gates,
    ("results/README.md", "Without training: order and repair"): without_training,
    ("results/README.md", "With the same training: every method, three seeds"): same_training,
    ("results/README.md", "Single heads: Michel et al. 2019"): single_heads,
    ("results/README.md", "What the heads do"): what_heads_do,
    ("results/README.md", "A fine-tuned encoder: MiniLM on sentences of SST-2"): fine_tuned_encoder,
    ("results/README.md", "A production student: English-Portuguese, of Marian"): student,
    ("docs/sources-marian.md", "How near it is"): marian_student,
}


def text_of(page: str, heading: str = "") -> str:
    """A section without tables and blocks of code, its lines joined, links without their targets."""
    text = re.sub(
        r"^```.*?^```$", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    if heading:
        text = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in text.splitlines() if not line.startswith("|")]
    return " ".join(re.sub(r"\]\([^)]*\)", "]", " ".join(lines)).replace("**", "").split())


def decimals_and_counts(text: str) -> set[str]:
    """The numbers of a text; names in `code` are none."""
    return set(
        re.findall(r"(?<![\w.-])(?:\d[\d,]*\d|\d)?(?:\.\d+)?(?![\w.]*\w)", re.sub(r"`[^`]*`", "", text))
    ) - {""}


@pytest.mark.parametrize(("page", "heading"), SECTIONS)
def test_a_text_has_the_numbers_of_the_files_and_no_others(page, heading):
    text = text_of(page, heading)
    assert (
        stale(
            text,
            [*SECTIONS[page, heading]()],
            decimals_and_counts(text) - decimals_and_counts(" ".join(FIXED)),
        )
        == ""
    )


def test_every_section_of_the_results_is_read():
    headings = re.findall(
        r"^## (.+)$", (RESULTS / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert {heading for page, heading in SECTIONS if page == "results/README.md"} == set(headings)


@pytest.mark.parametrize(("page", "folder"), [("README.md", TOY), ("results/README.md", MAIN)])
def test_a_table_has_the_rows_of_the_files(page, folder):
    recorded, priced = {}, page != "README.md"
    for (lam, system), row in runs(folder).items():
        kinds, low_high = row["heads_by_kind"], row["bleu_difference_ci95"]
        difference = f"{row['bleu_difference']:+.2f} ({low_high[0]:+.2f} to {low_high[1]:+.2f})"
        cells = [system, *(["" if system.startswith("base") else lam] if priced else [])]
        key = tuple(cells)
        cells += [
            f"{row['heads_open']}/{row['heads_total']}",
            *map(str, kinds.values()),
            f"{row['bleu']:.2f}",
            f"{row['chrf']:.2f}",
        ]
        recorded[key] = [*cells, "reference" if system == row["reference"] else difference]
    pattern = r"\| [a-z0-9-]+ \| [\d.]* \| \d+/" if priced else r"\| [a-z0-9-]+ \| \d+/"
    lines = [
        line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if re.match(pattern, line)
    ]
    assert len(lines) > 5
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        expected = recorded[tuple(cells[: 1 + priced])]
        assert cells == expected, f"{page}: stale row; the file says {' | '.join(expected)}"
