"""The report page, in a real browser where there is one: the head map, the slider, the card, the tables, and
how fast it opens."""

import copy
import csv
import re
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any
from xml.etree import ElementTree

import pytest

from headgates.report.page import PATH_POINTS, embedded, thin_paths, thousandths, write_page
from tests.report.synthetic_report import cards
from tests.report.tab import Tab, mark

OPENS_IN = 10.0  # seconds, 288 heads, on a machine that does other work too


# ---------------------------------------------------------------- the file


def test_the_page_is_one_file_that_asks_for_nothing_else(tmp_path):
    write_page(cards(), tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!data:|#)""", text)
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest", text)
    assert set(re.findall(r"https?://[^\"'\s)]+", text)) <= {"http://www.w3.org/2000/svg"}
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "report.html"]


def test_weights_are_whole_thousandths_and_json_has_no_nan():
    weights = {"cross": [[[0.1234, 1.0], [0.0, float("nan")]]]}
    assert thousandths(weights) == {"cross": [[[123, 1000], [0, 0]]]}
    assert embedded({"a": "<", "b": (float("inf"), True)}) == '{"a":"\\u003c","b":[null,true]}'


def test_long_gate_paths_keep_their_ends():
    steps = list(range(0, 5000, 7))
    path = thin_paths({"run": {"steps": steps, "log_alpha": [step / 1000 for step in steps]}})["run"]
    assert len(path["steps"]) == len(path["log_alpha"]) == PATH_POINTS
    assert (path["steps"][0], path["steps"][-1]) == (steps[0], steps[-1])
    assert thin_paths({"run": {"steps": [0, 5], "log_alpha": [2.0, None]}}) == {
        "run": {"steps": [0, 5], "log_alpha": [2.0, None]}
    }
    assert thin_paths(None) is None


# ---------------------------------------------------------------- in the browser


@pytest.fixture
def show(browser, tmp_path) -> Iterator[Callable[..., Tab]]:
    """show(data, ...): a page of these data, or of those of `cards`."""
    tabs = []

    def of(data: dict[str, Any] | None = None, **options: Any) -> Tab:
        path = tmp_path / f"report{len(tabs)}.html"
        write_page(data or cards(), path)
        tabs.append(Tab(browser, path.as_uri(), **options))
        return tabs[-1]

    yield of
    for tab in tabs:
        tab.close()
        assert [url for url in tab.asked if not url.startswith(("file:", "data:", "about:"))] == []


@pytest.fixture
def opened(show) -> Tab:
    return show()


def test_a_click_on_a_head_shows_its_card(opened):
    data = cards()
    head = next(head for head in data["heads"] if head["site"] == "encoder.1.enc-self" and head["roles"])
    name = f"{head['site']}.{head['head']}"
    opened.head(name)
    assert opened.inner_text("#card-name") == name
    assert opened.inner_text("#card-title").startswith(head["roles"][0]["role"][0].upper())
    card = opened.inner_text("#card")
    assert head["roles"][0]["role"].replace("->", "→").replace("-", "−") in card
    assert f"{head['roles'][0]['score']:.2f}" in card
    assert f"{head['confidence']:.3f}" in card
    assert f"{head['importance']:.3f}" in card
    assert opened.get_attribute(mark(name), "aria-pressed") == "true"
    assert opened.url.endswith("#head=" + name)


def test_the_slider_shuts_heads(opened):
    data = cards()
    for number, state in enumerate(data["states"][:4], start=1):
        opened.fill("#state", str(number))
        words = f"{state['heads_open']} of 72 heads open · BLEU {state['value']:.1f}"
        assert words in opened.inner_text("#state-words")
        assert opened.count("button.mark.shut") == 72 - state["heads_open"]
    opened.fill("#state", "0")
    assert opened.count("button.mark.shut") == 0
    opened.select_option("#series", "importance")
    opened.fill("#state", "8")
    assert opened.count("button.mark.shut") == 72 - data["states"][-1]["heads_open"]


def test_the_map_is_used_with_the_keyboard(opened):
    at = "document.activeElement.dataset.name"
    opened.head("encoder.0.enc-self.7").focus(mark("encoder.0.enc-self.7"))
    opened.keyboard.press("ArrowRight")
    assert opened.evaluate(at) == "decoder.0.dec-self.0"  # from one grid to the one beside it
    opened.keyboard.press("ArrowDown")
    assert opened.evaluate(at) == "decoder.1.dec-self.0"
    opened.keyboard.press("End")
    opened.keyboard.press("Enter")
    assert opened.inner_text("#card-name") == "decoder.1.dec-self.7"
    assert opened.evaluate("document.activeElement.id") == "card-title"
    opened.keyboard.press("Escape")
    assert opened.evaluate(at) == "decoder.1.dec-self.7"
    assert opened.count('button.mark[tabindex="0"]') == 1  # one stop for the tab key


def test_a_mark_reads_without_colour(opened):
    marks = opened.each("button.mark", "[each.getAttribute('aria-label'), each.innerText]")
    assert {"", "P", "A"} <= {letter for _, letter in marks} <= {*"PSRA", ""}
    assert {letter for label, letter in marks if "no role found" in label} == {""}
    assert {label.rpartition("; ")[2] for label, _ in marks} == {"open", "closed"}


def test_a_table_sorts_on_a_click(opened):
    def column() -> list[float]:
        return [float(text) for text in opened.texts("#table tbody tr td:nth-child(6)")]

    button = opened.locator("#table th button", has_text="Importance")
    button.click()
    assert column() == sorted(column(), reverse=True)
    button.click()
    assert column() == sorted(column())
    assert opened.count('#table th[aria-sort="ascending"]') == 1
    opened.click("#tabs >> text=Survival test")
    assert "0.81" in opened.inner_text("#table")


def test_at_1400_pixels_no_table_is_cut_and_no_column_has_a_raw_key(show):
    data = cards()
    data["systems"] = [
        data["systems"][1]
        | {"label": "importance, 3 epochs", "heads_by_kind": {"enc-self": 13, "dec-self": 23, "cross": 23}}
        | {"bleu_difference": 0.19, "chrf": 62.61, "p_value_vs_reference": 0.66, "p_value_vs_base": 0.71}
    ]
    one = show(data)
    one.set_viewport_size({"width": 1400, "height": 900})
    tabs = one.query_selector_all("#tabs [role=tab]")
    assert len(tabs) > 3
    for tab in tabs:
        tab.click()
        ((whole, seen),) = one.each("#table", "[each.scrollWidth, each.clientWidth]")
        assert whole <= seen, tab.inner_text()
        assert "_" not in one.inner_text("#table thead"), tab.inner_text()


def test_the_shown_table_and_the_chart_can_be_saved(opened):
    opened.click("#tabs >> text=Survival test")
    with opened.expect_download() as saved:
        opened.click("#table-downloads button")
    rows = list(csv.DictReader(saved.value.path().read_text(encoding="utf-8").splitlines()))
    assert saved.value.suggested_filename.endswith("-survival-test.csv")
    assert [row["difference"] for row in rows] == [str(row["difference"]) for row in cards()["tests"]]
    with opened.expect_download() as saved:
        opened.click("#curves-downloads button")
    drawn = ElementTree.parse(saved.value.path()).getroot()
    lines = [
        path
        for path in drawn.iter("{http://www.w3.org/2000/svg}path")
        if "stroke:rgb" in path.get("style", "")
    ]
    assert len(lines) >= len(cards()["curves"])


def test_the_page_begins_with_the_result_and_says_what_to_call_next(show):
    data = {**cards(), "result": "toy, en to de: with 25 of 48 heads the model has 90.00 BLEU."}
    for head in data["heads"]:
        head["roles"] = []
    one = show(data)
    assert one.inner_text("#summary").startswith(data["result"])
    assert f"headgates analyze runs/{data['run']} --siblings" in one.inner_text("#summary")
    one.click("footer summary >> text=What the words mean")
    assert "the price of an open head" in one.inner_text("footer")
    terms = one.each("footer dt", "each.textContent")
    assert {"λ (lambda)", "open, closed", "baseline of a role", "LRP share"} <= set(terms)


def test_roles_that_were_looked_for_and_not_found_are_not_asked_for_again(show):
    data = cards()
    for head in data["heads"]:
        head |= {"roles": [], "asked": ["positional"]}
    said = show(data | {"commands": {"analyze": "headgates analyze 'exp/my run'"}}).inner_text("#summary")
    assert "None has a role that could be named." in said
    assert "--siblings" not in said


def test_the_commands_of_the_page_are_those_of_its_folder(show):
    names = ("analyze", "explore")
    data = cards() | {"commands": {name: f"python {name}.py 'exp/my run'" for name in names}}
    one = show(data | {"causes": None, "measured": {}})
    one.head("encoder.0.enc-self.0")
    for said in ("analyze.py 'exp/my run' --causes", "explore.py 'exp/my run'; or here"):
        assert f"python {said}" in one.inner_text("#card")
    assert "headgates analyze" not in one.inner_text("body")


def test_the_page_of_a_classifier_has_its_scores_its_unit_and_prices_of_any_size(show):
    data = cards() | {"metric": "accuracy", "unit": "sentence"}
    row = {"run": "a", "label": "unpruned", "heads_open": 72, "accuracy": 92.1, "accuracy_signature": ""}
    row |= {"accuracy_difference": -1.25, "comet": 0.8125, "comet_signature": "mine"}
    data["systems"] = [row]
    data["states"] = [state | {"lambda": 2e-5} for state in data["states"]]
    one = show(data)
    one.click("#tabs >> text=Systems")
    assert one.texts("#table tbody td") == ["a", "unpruned", "72", "92.10", "\u22121.25", "0.813"]
    one.click("#tabs >> text=States")
    assert "0.00002" in one.texts("#table tbody td")
    one.click("footer summary >> text=What the words mean")
    assert "nats of loss per sentence" in one.inner_text("footer")
    assert "translations" not in one.inner_text("footer")


def test_a_title_names_no_heads_where_none_costs_anything(show):
    data = cards()
    for head in data["heads"]:
        head["loss"] = -0.5
    assert show(data).inner_text("#heads-title").startswith("No head costs anything")


def test_text_from_right_to_left_has_its_own_direction(show):
    data = cards()
    data["lines"]["lines"] = [
        {**each, "source": "\u05e9\u05dc\u05d5\u05dd (1)."} for each in data["lines"]["lines"]
    ]
    one = show(data)
    assert (
        one.evaluate("getComputedStyle(document.querySelector('#lines-body .source bdi')).direction") == "rtl"
    )


def test_untrained_curves_are_called_so_and_trained_ones_not(show):
    data = cards()
    data["curves"].append({**data["curves"][0], "name": "importance, 3 epochs", "trained": True})
    one = show(data)
    assert one.texts("#chart-legend button") == [
        *("importance, untrained", "random, untrained", "weight-norm, untrained", "importance, 3 epochs")
    ]


def test_attention_is_drawn_as_lines_or_as_a_heat_map(opened):
    opened.head("decoder.2.dec-self.1")
    opened.select_option("#sentence", "1")
    drawn = opened.text_content("svg.attention")
    assert "Hund" in drawn  # a piece that begins a word
    assert "▁" not in drawn
    assert opened.count("svg.attention .query") == 5
    opened.click("[data-drawing=heat]")
    assert opened.count("svg.attention .cell") == 25


def test_the_page_follows_the_readers_system_and_the_switch_turns_it_round(show):
    one = show(color_scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert one.evaluate(paper) == "rgb(19, 20, 23)"
    one.click("#theme")
    assert one.evaluate(paper) != "rgb(19, 20, 23)"


def test_no_part_of_the_card_is_behind_a_scroll_bar_and_its_end_can_be_reached(opened):
    opened.set_viewport_size({"width": 1360, "height": 500})
    for head in ("encoder.0.enc-self.0", "decoder.2.cross.5"):
        opened.head(head)
        assert opened.evaluate("getComputedStyle(card).overflowY") == "visible"
        opened.evaluate("scrollTo(0, document.body.scrollHeight)")
        assert opened.evaluate("card.getBoundingClientRect().bottom") <= 500


def test_titles_say_what_was_found(show):
    data = cards()
    for head, loss in zip(data["heads"], [9.0, *[0.1] * 71], strict=True):
        head["loss"] = loss
    for state in data["states"]:
        state |= {"difference": -2.0, "difference_ci95": [-3.0, -1.0]}
    data["opens_with"], value = data["states"][1]["run"], data["states"][1]["value"]
    one = show(data)
    words = "55 of 72 heads and 7 of 9 feed-forward neurons"
    assert one.inner_text("#title") == f"{words} keep {value:.1f} of {value + 2:.1f} BLEU"
    assert one.inner_text("#heads-title").startswith("1 of 72 heads account for half of the cost of closing")
    assert one.inner_text("#curves-title").startswith("Untrained, 58 of 72 heads keep ")
    assert one.inner_text("#curves-title").endswith(f"learned gates, after training, {value:.1f} with 55")
    one.head("encoder.0.enc-self.0")
    assert "costs 9.00 nats, 1st of 72" in one.inner_text("#card-title").lower()
    data["states"][1] |= {"difference": 0.2, "difference_ci95": [-0.1, 0.5]}
    enough = f"{words} are enough: {value:.1f} BLEU, no significant loss against unpruned, trained as long"
    assert show(data).inner_text("#title") == enough
    one = show({**data, "unlearned": True})
    titles = [one.inner_text(f"#{name}title") for name in ("", "heads-", "curves-")]
    assert titles == ["The model has not learned its task", "Heads", "BLEU against open heads"]


def test_heads_without_roles_are_coloured_by_what_they_cost(show):
    data = cards()
    for number, head in enumerate(data["heads"]):
        head |= {"roles": [], "loss": float(number)}
    one = show(data)
    one.fill("#state", "0")
    assert len(set(one.each("button.mark span", "getComputedStyle(each).backgroundColor"))) == 72
    assert "nats a sentence" in one.inner_text("#legend")
    assert "no role" not in one.inner_text("#legend")
    assert "roles" not in one.inner_text("#table thead")  # a column in which no head has anything


def test_causes_are_a_panel_for_each_score_pairs_lead_to_their_heads_and_labels_are_told(opened):
    first, second = opened.locator("#causes figure").all()
    assert first.inner_text().split() == ["integrated", "ρ", "+0.95"]
    assert second.inner_text().split() == ["confidence", "all", "alike"]
    assert first.locator("circle").count() == 72
    top = max(cards()["causes"]["heads"].items(), key=lambda each: each[1][0])[0]
    highest = min(first.locator("circle").all(), key=lambda point: float(point.get_attribute("cy")))
    assert highest.locator("title").text_content().startswith(f"{top}: place ")
    assert opened.texts("#pairs li") == [
        "encoder.0.enc-self.0 and encoder.0.enc-self.1 back each other up: closing both adds 1.500 nats a "
        "sentence, apart they add 0.500 and 0.250",
        "encoder.0.enc-self.0 and encoder.0.enc-self.2 share a cost: closing both adds 0.250 nats a "
        "sentence, apart they add 0.500 and 0.250",
    ]
    opened.click("#pairs li:nth-child(2) button:nth-of-type(2)")
    assert opened.url.endswith("#head=encoder.0.enc-self.2")
    gating = cards()["causes"]["gating"]
    assert opened.inner_text("#gating-title") == gating["title"]
    assert opened.texts("#gating li") == gating["lines"]


def test_a_contrast_shows_the_heads_that_it_needs_most_and_leads_to_them(opened):
    rows = cards()["contrasts"][0]["rows"]
    lines = opened.locator("#contrasts tbody tr")
    assert lines.count() == 10 < len(rows)
    name = f"{rows[1]['site']}.{rows[1]['head']}"
    low, high = (f"{rows[1]['effect'] + end:+.2f}".replace("-", "−") for end in (-0.5, 0.5))
    assert lines.nth(1).inner_text().split("\t")[-3:] == [
        f"{rows[1]['effect']:.2f}",
        f"{low} to {high}",
        "0.040",
    ]
    assert "patched" not in opened.inner_text("#contrasts thead")
    assert "Said." in opened.inner_text("#contrasts")
    lines.nth(1).locator("button").click()
    assert opened.inner_text("#card-name") == name
    assert opened.locator("#tabs button", has_text="Contrasts").count() == 1


def test_a_planned_model_is_drawn_layer_by_layer_and_a_run_where_the_slider_is_on_it(opened):
    drawings = opened.locator("#shapes article")
    opened.fill("#state", "0")
    assert drawings.count() == 1
    assert "1.97x as fast (predicted 2.05x) at -0.2 BLEU" in drawings.first.inner_text()
    rows = [row.split() for row in drawings.first.locator("tbody tr").all_inner_texts()]
    assert rows == [
        *(["E" + str(layer), "4/8", "256/512"] for layer in range(3)),
        ["D0", "dropped"],
        *(["D" + str(layer), "4/8", "4/8", "256/512"] for layer in (1, 2)),
    ]
    opened.fill("#state", "1")
    assert drawings.count() == 2
    assert "8/8" in drawings.nth(1).inner_text()


def test_points_that_lie_on_each_other_are_told_apart(show):
    data, (state, *_) = cards(), cards()["states"]
    point = {name: state[name] for name in ("heads_open", "value", "low", "high")}
    trained = {"points": [point], "trained": True}
    data["curves"] += [{"name": name, "method": name, **trained} for name in ("unpruned", "obs")]
    one = show(data)
    drawn = one.evaluate(
        """() => ["unpruned:", "obs:", "λ 0.003:"].map((words) => {
          const titles = [...document.querySelectorAll("#chart title")];
          const point = titles.find((each) => each.textContent.startsWith(words)).parentElement;
          const box = (point.querySelector(".dot") ?? point).getBoundingClientRect();
          return box.x + box.width / 2;
        })"""
    )
    assert min(abs(one - other) for one, other in combinations(drawn, 2)) > 8


# ---------------------------------------------------------------- what the systems say


def differing(one: Tab) -> list[str]:
    return one.texts("#lines-body .source")


def test_two_systems_stand_side_by_side_with_the_words_marked_that_the_other_lacks(opened):
    first = opened.locator("#lines-body article").first
    names = first.locator(".sides .note").all_inner_texts()
    assert names == ["reference", "unpruned", "λ 0.01"]
    marked = [side.locator("mark").all_inner_texts() for side in first.locator(".sides > div").all()]
    assert marked == [[], ["Zwei", "junge", "Männer", "spielen", "Gitarre"], ["falsch"] * 5]
    first.locator("summary").click()
    first.locator("details .note").wait_for()
    assert first.locator("details .note").all_inner_texts() == ["λ 0.003, λ 0.03, λ 0.1"]
    assert opened.inner_text("#lines-title") == "On 4 of 23 lines λ 0.01 says what unpruned says"
    assert "a sample of 23 of 1,000 test lines" in opened.inner_text("#lines-note")


def test_lines_are_found_ordered_and_shown_a_few_at_a_time(opened):
    number = lambda source: int(source.rpartition(" ")[2].removesuffix("."))  # noqa: E731
    shown = [number(source) for source in differing(opened)]
    assert shown == [20, 21, 22, 16, 17, 18, 19, 12, 13, 14]  # the most different first
    opened.click("#lines-more button")
    assert len(differing(opened)) == 23
    opened.select_option("#line-order", "test")
    assert [number(source) for source in differing(opened)] == list(range(10))
    opened.fill("#find-line", "LINE 2")
    assert [number(source) for source in differing(opened)] == [2, 20, 21, 22]
    opened.select_option("#line-right", "reference")
    assert opened.count("#lines-body mark") == 0
    opened.fill("#find-line", "no such words")
    assert differing(opened) == []


def test_the_right_system_follows_the_slider_until_the_reader_chooses_one(opened):
    opened.fill("#state", "3")
    assert opened.input_value("#line-right") == "3"
    opened.select_option("#line-right", "1")
    opened.fill("#state", "4")
    assert opened.input_value("#line-right") == "1"


# ---------------------------------------------------------------- heads beside each other, and on sentences


def test_two_heads_stand_side_by_side_until_one_is_let_go(opened):
    one, other = "encoder.1.enc-self.2", "decoder.2.cross.5"
    opened.head(one)
    opened.click("#keep-beside")
    opened.head(other)
    assert (opened.inner_text("#card-name"), opened.inner_text("#card-name-beside")) == (other, one)
    boxes = [opened.locator(".head-card").nth(i).bounding_box() for i in range(2)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    assert opened.count("svg.attention") == 2
    marks = opened.locator("button.mark")
    map_right = (
        opened.locator("#heads").bounding_box()["x"] + opened.locator("#heads").bounding_box()["width"]
    )
    assert max(marks.nth(i).bounding_box()["x"] for i in range(marks.count())) + 26 <= map_right
    ids = opened.each("[id]", "each.id")
    assert len(ids) == len(set(ids))
    opened.click("#keep-beside-beside")
    assert opened.count(".head-card") == 1


def test_the_map_shows_the_attention_of_every_head_on_the_chosen_sentence(opened):
    opened.select_option("#show", "attention")
    drawn = "[...each.children].map(path => path.getAttribute('d')).join('')"
    long = opened.each("button.mark svg.small", drawn)
    assert len(long) == 72
    weights = thousandths(cards()["examples"][0]["weights"])
    for name, squares in zip([f"{h['site']}.{h['head']}" for h in cards()["heads"]], long, strict=True):
        site, _, head = name.rpartition(".")
        rows = weights[site][int(head)]
        strong = {(j, i) for i, row in enumerate(rows) for j, weight in enumerate(row) if weight > 40}
        assert {(int(x), int(y)) for x, y in re.findall(r"M(\d+),(\d+)h", squares)} == strong
    opened.select_option("#sentence", "1")
    short = opened.each("button.mark svg.small", drawn)
    assert all(len(one) < len(other) for one, other in zip(short, long, strict=True))
    assert "A dog is running." in opened.inner_text("#legend")
    opened.locator("button.mark").nth(7).click()
    assert opened.inner_text("#card-name") == "encoder.0.enc-self.7"
    opened.select_option("#show", "marks")
    assert opened.count("svg.small") == 0


def test_a_click_on_a_sentence_on_which_a_head_matters_draws_its_attention_there(opened):
    opened.head("decoder.1.cross.0")
    rows = opened.locator(".costly button")
    assert [text.split()[0] for text in rows.all_inner_texts()] == ["+2.50", "+1.50"]
    rows.nth(1).click()
    assert opened.input_value("#sentence") == "3"
    assert "Number" in opened.text_content("svg.attention")
    assert opened.count("svg.attention line") == 5  # each query looks at one key
    opened.head("decoder.1.cross.1")
    assert opened.count(".costly") == 0
    assert opened.input_value("#sentence") == "0"  # of whose attention nothing is there


def test_each_head_leads_to_its_exact_effect_or_says_how_to_measure_it(show):
    data = cards()
    one = show(data)
    one.head("decoder.1.cross.6")
    head = next(h for h in data["heads"] if (h["site"], h["head"]) == ("decoder.1.cross", 6))
    exact = one.locator("section", has=one.locator("h3", has_text="Exact effects")).last
    fall = f"{-head['ablation']['difference']:.2f}"
    loss = f"{data['causes']['heads']['decoder.1.cross.6'][0]:.3f}".replace("-", "−")
    assert {fall, loss} <= set(exact.locator("td.number").all_inner_texts())
    assert "200 training pairs, scores/loss-sampled200.json" in exact.inner_text()
    one.click("#to-table")
    assert one.evaluate("document.activeElement.closest('tr').dataset.name") == "decoder.1.cross.6"
    one.click("#to-causes")
    assert one.count("#causes circle.on") == 2
    for head in data["heads"]:
        head["ablation"] = None
    one = show({**data, "causes": None, "measured": {}})
    for command in ("headgates analyze runs/multi30k-en-de-none-s1 --ablate one", "--causes"):
        assert command in one.inner_text("#card")


def test_any_number_colours_the_map_the_table_and_the_points(opened):
    options = opened.texts("#colour option")
    expected = {"Cost in loss", "Fall of BLEU", "Importance", "Confidence", "Entropy", "integrated"}
    assert expected | {"Score of its role", "log α, λ 0.1"} <= set(options)
    fill = "getComputedStyle(each).getPropertyValue('--c')"
    seen = set()
    for option in options:
        opened.select_option("#colour", label=option)
        marks = opened.each("button.mark", fill)
        assert len(set(marks)) > 1, option
        assert opened.each("#table .chip", fill) == marks
        seen.add(tuple(marks))
    assert len(seen) == len(options) - 1  # in these data a fall of BLEU is a fourth of the cost in loss
    opened.select_option("#colour", label="log α, λ 0.1")
    below = opened.count("button.mark.below")
    assert below == 72 - cards()["states"][3]["heads_open"]


def test_names_of_one_letter_and_number_stand_beside_the_long_ones(opened):
    opened.head("decoder.1.cross.5")
    assert "decoder.1.cross.5 · L1H5" in opened.inner_text("#card")
    label = opened.get_attribute(mark("decoder.1.cross.5"), "aria-label")
    assert label.startswith("decoder.1.cross.5, L1H5:")
    assert "L1H5 is head 5 of layer 1 of its kind" in opened.inner_text("#hint")
    assert opened.texts("#map thead th")[:8] == [f"H{i}" for i in range(8)]


# ---------------------------------------------------------------- the address


def shown(one: Tab) -> dict[str, Any]:
    return {
        "cards": one.texts("[id^=card-name]"),
        "shut": one.count("button.mark.shut"),
        "pictures": one.count("svg.small"),
        "cells": one.count("svg.attention .cell"),
        "lines": differing(one),
        **{id: one.input_value(f"#{id}") for id in ("series", "state", "colour", "size", "line-right")},
    }


def test_a_link_shows_the_same_and_back_and_forward_go_through_what_was_shown(show):
    one = show()
    steps = [
        lambda: one.head("decoder.1.cross.0"),
        lambda: one.click(".costly li:nth-child(2) button"),
        lambda: one.click("#keep-beside"),
        lambda: one.head("encoder.0.enc-self.3"),
        lambda: one.click("[data-drawing=heat]"),
        lambda: one.select_option("#colour", "confidence"),
        lambda: one.select_option("#show", "attention"),
        lambda: one.fill("#state", "3"),
        lambda: one.select_option("#series", "importance"),
        lambda: one.fill("#state", "5"),
        lambda: one.select_option("#line-order", "test"),
    ]
    states, urls = [shown(one)], [one.url]
    for step in steps:
        step()
        states.append(shown(one))
        urls.append(one.url)
    assert len(set(urls)) == len(urls)
    other = show()
    for url, state in [*zip(urls, states, strict=True)][1::2]:  # each has most of what those before it have
        other.goto("about:blank")
        other.goto(url)
        assert shown(other) == state
    for state in reversed(states[:-1]):
        one.go_back()
        one.becomes(lambda: shown(one), state)
    for state in states[1:]:
        one.go_forward()
        one.becomes(lambda: shown(one), state)


@pytest.mark.parametrize(
    "end",
    [
        "decoder.1.cross.3",
        "head=decoder.1.cross.3&beside=no&state=no&by=no&sentence=-7&colour=no",
        "%E0%A4%A&%",
    ],
)
def test_an_old_link_or_a_strange_one_opens_the_page(show, end):
    usual = show()
    expected, address = shown(usual), usual.url.partition("#")[0]
    expected |= {} if end.startswith("%") else {"cards": ["decoder.1.cross.3"]}
    usual.goto("about:blank")
    usual.goto(f"{address}#{end}")
    assert shown(usual) == expected
    usual.focus(".skip")
    usual.keyboard.press("Enter")  # which leads to a place of the page and changes nothing
    assert shown(usual) == expected
    usual.close()


def bare(data: dict[str, Any]) -> dict[str, Any]:
    """Only the heads, with nothing known of them."""
    known = {"site", "kind", "layer", "head"}
    return {
        "run": "bare",
        "heads": [{key: head[key] if key in known else None for key in head} for head in data["heads"]],
    }


def without_examples(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "examples": [], "curves": []}


def uneven(data: dict[str, Any]) -> dict[str, Any]:
    """A pruned model: one kind has two heads left in one layer, and the gates know sites that are gone."""
    left = [
        head
        for head in data["heads"]
        if head["kind"] == "cross" or (head["kind"] == "enc-self" and head["layer"] == 1 and head["head"] < 2)
    ]
    return {**data, "heads": left, "states": []}


@pytest.mark.parametrize("change", [bare, without_examples, uneven])
def test_missing_parts_leave_no_holes(show, change):
    data = change(copy.deepcopy(cards()))
    one = show(data)
    assert one.count("button.mark") == len(data["heads"])
    one.locator("button.mark").first.click()
    body = one.inner_text("body")
    assert not re.search(r"undefined|NaN|null|\[object|Infinity", body)
    visible = one.texts("section:visible, .head-card > section")
    assert visible
    assert all(map(str.strip, visible))
    assert one.locator("#curves").is_visible() == (change is not bare)


def test_a_narrow_screen_never_scrolls_sideways(show):
    one = show(cards(layers=2, heads=16))
    one.set_viewport_size({"width": 360, "height": 740})
    one.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert one.evaluate("document.documentElement.scrollWidth") <= 360


def test_288_heads_open_in_seconds(show):
    one = show(cards(layers=6, heads=16))
    assert one.count("button.mark") == 288
    assert int(one.get_attribute("html", "data-ready")) < 1000 * OPENS_IN
