"""explore.py's page in a real browser, by clicking: sentence, heads, steps, patches, address, picture."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from headgates.data.contrast import read_contrasts
from headgates.explain.sentence_model import Change
from headgates.report.explore.page import ready_pairs
from headgates.report.explore.server import Server
from tests.report.conftest import SHUT
from tests.report.tab import Tab, mark
from tests.report.test_explore_server import HEADS, TEXT

OTHER = "the old dog sees a small man."  # of as many pieces


class Page(Tab):
    """explore's page, whose questions are waited for."""

    def __init__(self, browser: Any, server: Server, state: str = "", **options: Any):
        super().__init__(browser, server.url + state, **options)
        self.server, self.model = server, server.answers.models[0]

    def settled(self) -> "Page":
        self.wait_for_selector("html[data-asking=false]", state="attached")
        return self

    def type(self, selector: str, text: str) -> "Page":
        self.fill(selector, text)
        self.press(selector, "Enter")
        return self.settled()

    def click(self, selector: str) -> "Page":
        self.tab.click(selector)
        return self.settled()

    def shut(self, name: str) -> "Page":
        return self.head(name).head(name)


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    one = Page(browser, server).type("#text", TEXT)
    yield one
    one.close()


def test_a_stranger_types_a_sentence_shuts_two_heads_and_sees_why(page):
    whole = page.model.as_it_is(TEXT)
    own, beside = page.texts("#rows .text")
    assert own == page.model.written(whole.ids)
    assert beside == page.server.answers.models[1].written(page.server.answers.models[1].as_it_is(TEXT).ids)
    alone = page.model.effects(TEXT, frozenset())
    for name in HEADS:
        page.shut(name)
        assert f"{alone[name]:.3f}" in page.inner_text(".measures").replace("−", "-")
    assert page.count("button.mark.shut") == 2
    assert "46 of 48 heads open" in page.inner_text("#state-words")
    said = page.model.say(TEXT, Change(frozenset(page.model.heads[name] for name in HEADS)))
    assert page.texts("#rows .text")[1] == page.model.written(said.ids)
    both = sum(alone[name] for name in HEADS)
    assert f"= {both:.2f}" in page.inner_text("#why")
    page.click("#open-all")
    assert page.count("button.mark.shut") == 0
    assert page.texts("#rows .text") == [own, beside]


def test_the_address_holds_all_of_it(page, browser):
    page.shut(HEADS[0]).click('[data-step="1"]').click(".choices li:nth-child(2) button")
    page.click("[data-drawing=heat]")
    page.select_option("#colour", "effect_now")
    page.shut(HEADS[1]).click('[data-step="2"]')
    rows, state = page.texts("#rows .text"), "#" + page.url.partition("#")[2]
    assert unquote(state).count("decoder.") == 3
    other = Page(browser, page.server, state).settled()
    assert other.texts("#rows .text") == rows
    assert other.inner_text("#card-name") == page.inner_text("#card-name") == HEADS[1]
    assert other.count(".attention .cell") == page.count(".attention .cell") > 0
    fill = "getComputedStyle(each).backgroundColor"
    assert other.each("button.mark span", fill) == page.each("button.mark span", fill)
    assert other.input_value("#colour") == "effect_now"
    assert other.inner_text("#step h3") == page.inner_text("#step h3")
    assert other.count("button.mark.shut") == 2
    other.click("#other-model")  # the same address, with the heads of the second model
    assert other.count("button.mark.shut") == len(SHUT)
    assert other.input_value("#text") == TEXT
    other.close()


def test_back_and_forward_undo_and_repeat_what_was_asked(page):
    steps = [
        lambda: page.shut(HEADS[0]),
        lambda: page.head(HEADS[1]),
        lambda: page.click("#keep-beside"),
        lambda: page.head(HEADS[0]),
        lambda: page.click("[data-drawing=heat]"),
        lambda: page.click('[data-step="1"]'),
        lambda: page.type("#text", OTHER),
    ]

    def shown() -> list[Any]:
        page.settled()
        counted = [page.locator(each).count() for each in (".mark.shut", ".cell", "#step h3")]
        return [page.texts("#rows .text"), page.texts("[id^=card-name]"), *counted]

    states = [shown()]
    for step in steps:
        step()
        states.append(shown())
    assert page.input_value("#text") == OTHER
    for state in reversed(states[2:-1]):
        page.go_back()
        page.becomes(shown, state)
    assert page.input_value("#text") == TEXT
    for state in states[3:]:
        page.go_forward()
        page.becomes(shown, state)
    assert page.input_value("#text") == OTHER


def test_the_attention_of_every_head_and_of_two_side_by_side_is_that_of_the_typed_sentence(page):
    page.head(HEADS[0]).click("#keep-beside").head(HEADS[1])
    assert page.count("svg.attention") == 2
    page.select_option("#show", "attention")
    page.settled()
    drawn = page.each("button.mark svg.small", "each.outerHTML")
    assert len(drawn) == 48
    assert len(set(drawn)) > 40
    weights = page.model.attention(TEXT, page.model.as_it_is(TEXT).ids, Change())
    strong = int((weights["decoder.1.cross"][3] > 0.0405).sum())
    squares = page.inner_html('button.mark[data-name="decoder.1.cross.3"] svg.small').count("h1v1h-1z")
    assert abs(squares - strong) <= 1  # a weight may be rounded
    assert TEXT in page.inner_text("#legend")
    page.head(HEADS[1])  # a click on a picture of the chosen head shuts it
    assert page.count(".mark.pictured.shut") == 1
    with page.expect_download() as saved:
        page.click("#state >> text=Save as SVG")
    circles = list(ElementTree.parse(saved.value.path()).getroot().iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 48
    assert len({each.get("r") for each in circles}) > 9  # sizes, as of marks


def test_the_reader_steps_through_and_goes_on_from_another_token(page):
    page.head("decoder.1.cross.3").click('[data-step="1"]')
    assert page.inner_text("#step h3").startswith("Step 2 of 9")
    assert page.count(".query.at") == 1
    page.click("[data-drawing=heat]")
    assert page.url.endswith("&drawing=heat")
    page.click("[data-drawing=lines]")
    assert page.count(".query.at") == 1
    page.click('[data-key="on"]')
    assert page.inner_text("#step h3").startswith("Step 3 of 9")
    page.click('[data-key="back"]')
    second = page.inner_text(".choices li:nth-child(2) .piece")
    page.click(".choices li:nth-child(2) button")
    tokens = page.texts(".now .tokens .piece")
    assert tokens[1] == second
    first = page.model.as_it_is(TEXT)
    prefix = [first.ids[0], int(first.log_p[1].topk(2).indices[1])]
    assert page.texts("#rows .text")[1] == page.model.written(
        page.model.say(TEXT, Change(), prefix=prefix).ids
    )
    page.click('[data-key="own"]')
    assert page.count(".now") == 0


def test_heads_are_patched_from_a_second_sentence(page):
    page.click("#second summary").type("#other", OTHER)
    page.head("decoder.1.cross.3")
    effects = page.model.patch_effects(TEXT, OTHER)
    assert f"{effects['decoder.1.cross.3']:.3f}" in page.inner_text(".measures").replace("−", "-")
    page.click("#patch")
    assert page.count(".mark.patched") == 1
    rise = effects["decoder.1.cross.3"]
    assert f"{'+' if rise > 0 else '−'}{abs(rise):.2f}" in page.inner_text("#why")
    page.type("#other", "a cat.")
    assert "equal lengths" in page.inner_text("#trouble")
    assert page.input_value("#other") == "a cat."  # to be mended
    assert page.count(".mark.patched, .now, #patch") == 0
    page.shut(HEADS[0])
    assert page.texts("#state-words") == ["47 of 48 heads open"]
    page.said.clear()  # Chromium writes of every refused question


def test_back_passes_a_second_sentence_that_was_refused(page):
    page.click("#second summary").type("#text", OTHER)
    page.type("#other", "a cat.")
    assert "equal lengths" in page.inner_text("#trouble")
    page.go_back()  # to the same without it
    page.go_back()
    page.becomes(lambda: page.settled().input_value("#text"), TEXT)
    page.said.clear()  # Chromium writes of every refused question


def test_what_the_second_model_refuses_leaves_the_answer_of_the_first(page, monkeypatch):
    monkeypatch.setattr(page.server.answers.models[1], "longest", 3)
    page.type("#text", OTHER)
    assert page.texts("#rows .text") == [page.model.written(page.model.as_it_is(OTHER).ids)]
    assert "expected at most 3" in page.inner_text("#trouble")
    other = page.inner_text("#other-model").removesuffix(", show its heads")
    assert page.inner_text("#trouble").startswith(f"{other}: ")
    assert "account for half of the cost" in page.inner_text("#heads-title")
    page.said.clear()


def test_costs_of_heads_are_not_added_up_where_the_reader_opened_others(page):
    page.click("#other-model")
    closed = [f"{site}.{head}" for site, head in SHUT]
    page.settled()
    for name in [name for name in HEADS if name not in closed]:
        page.shut(name)
    assert "Closed one at a time" in page.inner_text("#why")
    page.shut(closed[0])
    assert "nats now" in page.inner_text("#why")
    assert "Closed one at a time" not in page.inner_text("#why")


def test_a_ready_pair_fills_both_sentences_and_the_address_chooses_it_again(page, browser):
    page.click("#second summary")
    groups = page.each("#pair optgroup", "each.label.split(':')[1]")
    assert groups == ["number", "gender", "case", "order"]
    page.select_option("#pair", "1,0")
    page.settled()
    one, other = (page.input_value(each) for each in ("#text", "#other"))
    assert one != other
    assert other in [each.corrupted for each in read_contrasts("toy:gender") if each.source == one]
    effects = page.model.patch_effects(one, other)
    page.head("decoder.1.cross.5")
    assert f"{effects['decoder.1.cross.5']:.3f}" in page.inner_text(".measures").replace("−", "-")
    again = Page(browser, page.server, "#" + page.url.partition("#")[2]).settled()
    assert again.input_value("#pair") == "1,0"
    assert again.type("#text", TEXT).input_value("#pair") == ""
    again.close()


def test_a_ready_pair_has_equal_pieces_and_is_of_the_models_languages(server, monkeypatch):
    model = server.answers.models[0]
    found = ready_pairs(model)
    assert [len(each["pairs"]) for each in found] == [8, 8, 8, 8]
    for one, other in (pair for each in found for pair in each["pairs"]):
        assert len(model.sources(one, other)) == 2  # or it is refused
    monkeypatch.setattr(model, "longest", 3)
    assert ready_pairs(model) == []
    monkeypatch.undo()
    monkeypatch.setitem(model.source.config, "data", "mine")
    assert "en-de:number" in [each["name"] for each in ready_pairs(model)]
    monkeypatch.setitem(model.source.config, "tgt", "fr")
    assert ready_pairs(model) == []


def test_it_is_used_with_the_keyboard(page):
    at = "document.activeElement.dataset.name"
    page.focus(mark("encoder.0.enc-self.0"))
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    page.settled()
    assert page.evaluate(at) == "encoder.0.enc-self.1"
    assert page.texts("#state-words") == ["47 of 48 heads open"]
    page.focus("#turn")
    page.keyboard.press("Enter")
    page.settled()
    assert page.texts("#state-words") == ["48 of 48 heads open"]
    assert page.evaluate("document.activeElement.id") == "turn"
    page.keyboard.press("Escape")
    assert page.evaluate(at) == "encoder.0.enc-self.1"


def test_the_picture_holds_sentence_map_and_attention(page):
    page.shut(HEADS[0])
    with page.expect_download() as saved:
        page.click("#state >> text=Save as SVG")
    drawn = ElementTree.parse(saved.value.path()).getroot()
    svg = "{http://www.w3.org/2000/svg}"
    assert TEXT in [each.text for each in drawn.iter(f"{svg}text")]
    assert len(list(drawn.iter(f"{svg}circle"))) == 48
    assert len(list(drawn.iter(f"{svg}line"))) > 5
    assert all("fill" in each.get("style", "") for each in drawn.iter(f"{svg}circle"))
    sizes = {
        each.get("style", "").partition("font-size:")[2].split(";")[0] for each in drawn.iter(f"{svg}text")
    }
    assert sizes == {"17px", "13px", "12.5px", "11px"}, "as on the page, also of tabular figures"


@pytest.mark.parametrize("options", [{"viewport": {"width": 390, "height": 844}}, {"color_scheme": "dark"}])
def test_a_narrow_and_a_dark_page_show_everything(browser, server, options):
    one = Page(browser, server, **options).type("#text", TEXT).shut(HEADS[0]).click("#second summary")
    one.select_option("#pair", "3,0")
    one.settled()
    width = one.viewport_size["width"]
    assert one.evaluate("document.documentElement.scrollWidth") <= width
    red = "Number(getComputedStyle(document.body)[name].match(/\\d+/)[0])"
    ink, paper = (one.evaluate(f"name => {red}", name) for name in ("color", "backgroundColor"))
    assert (ink < paper) == ("color_scheme" not in options)
    one.close()


def test_an_empty_page_and_what_cannot_be_answered_are_said_plainly(browser, server):
    one = Page(browser, server).settled()
    assert one.evaluate("document.activeElement.id") == "text"
    assert "Infinity" not in one.inner_text("body")
    assert "cost in loss" in one.inner_text("#legend"), "which is on disk; nothing is grey"
    one.click("#example")
    one.settled()
    example = one.input_value("#text")
    assert one.texts("#rows .text")[0] == one.model.written(one.model.as_it_is(example).ids)
    assert "a loss of" in one.inner_text("#rows")
    assert "effect alone" in one.inner_text("#legend")
    for strange, said, where in (
        ("dog " * 70, "expected at most 64", "#trouble"),
        ("собака", "knows nothing of this sentence", "#unknown"),
        ("", "Type a sentence", "#offer"),
    ):
        one.type("#text", TEXT)
        assert one.locator("#trouble, #unknown, #offer >> visible=true").count() == 0
        assert example not in one.type("#text", strange).texts("#rows .text")
        assert said in one.inner_text(where)
        assert one.locator("#rows .text").count() == 2 * (where == "#unknown"), "no old translation stands"
    one.type("#text", TEXT)
    assert one.locator("#trouble").is_hidden()
    one.goto(server.url.replace("token=", "token=x") + "#text=old")
    one.fill("input", server.token)
    one.press("input", "Enter")
    one.settled()
    assert one.input_value("#text") == "old"
    one.tab.close()  # Chromium writes of every refused question
