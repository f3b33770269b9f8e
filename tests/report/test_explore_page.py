"""explore.py's page in a real browser, by clicking: sentence, heads, steps, patches, address, picture."""

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from headgates.commands.explore import ExploreOptions, server_of
from headgates.data.contrast import read_contrasts
from headgates.explain.sentence_model import Change
from headgates.report.explore.page import ready_pairs
from headgates.report.explore.server import Server
from tests.report.test_explore_server import HEADS, RUN, SHUT, TEXT, masked

OTHER = "the old dog sees a small man."  # of as many pieces


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    against = masked(tmp_path_factory.mktemp("masked"))
    with server_of(ExploreOptions(source=RUN, against=against, port=0, threads=1)) as one:
        thread = threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield one
        one.shutdown()
        thread.join()


class Page:
    """The page in a tab; what its console says is kept."""

    def __init__(self, browser: Any, server: Server, state: str = "", **options: Any):
        self.server, self.model = server, server.answers.models[0]
        self.said: list[str] = []
        self.tab = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.tab.set_default_timeout(20_000)
        self.tab.on("console", lambda message: self.said.append(message.text))
        self.tab.on("pageerror", lambda error: self.said.append(str(error)))
        self.tab.goto(server.url + state)

    def settled(self) -> "Page":
        self.tab.wait_for_selector("html[data-asking=false]", state="attached")
        return self

    def type(self, selector: str, text: str) -> "Page":
        self.tab.fill(selector, text)
        self.tab.press(selector, "Enter")
        return self.settled()

    def click(self, selector: str) -> "Page":
        self.tab.click(selector)
        return self.settled()

    def head(self, name: str) -> "Page":
        return self.click(f'button.mark[data-name="{name}"]')

    def shut(self, name: str) -> "Page":
        return self.head(name).head(name)

    def texts(self, selector: str) -> list[str]:
        return self.tab.locator(selector).all_inner_texts()


@pytest.fixture
def page(browser, server) -> Iterator[Page]:
    one = Page(browser, server).type("#text", TEXT)
    yield one
    assert one.said == [], "the console stays empty"
    one.tab.close()


def test_a_stranger_types_a_sentence_shuts_two_heads_and_sees_why(page):
    whole = page.model.as_it_is(TEXT)
    own, beside = page.texts("#rows .text")
    assert own == page.model.written(whole.ids)
    assert beside == page.server.answers.models[1].written(page.server.answers.models[1].as_it_is(TEXT).ids)
    alone = page.model.effects(TEXT, frozenset())
    for name in HEADS:
        page.shut(name)
        assert f"{alone[name]:.3f}" in page.tab.inner_text(".measures").replace("−", "-")
    assert page.tab.locator("button.mark.shut").count() == 2
    assert "46 of 48 heads open" in page.tab.inner_text("#state-words")
    said = page.model.say(TEXT, Change(frozenset(page.model.heads[name] for name in HEADS)))
    assert page.texts("#rows .text")[1] == page.model.written(said.ids)
    both = sum(alone[name] for name in HEADS)
    assert f"= {both:.2f}" in page.tab.inner_text("#why")
    page.click("#open-all")
    assert page.tab.locator("button.mark.shut").count() == 0
    assert page.texts("#rows .text") == [own, beside]


def test_the_address_holds_all_of_it(page, browser):
    page.shut(HEADS[0]).click('[data-step="1"]').click(".choices li:nth-child(2) button")
    page.tab.click("[data-drawing=heat]")
    page.tab.select_option("#colour", "effect_now")
    page.shut(HEADS[1]).click('[data-step="2"]')
    rows, state = page.texts("#rows .text"), "#" + page.tab.url.partition("#")[2]
    assert unquote(state).count("decoder.") == 3
    other = Page(browser, page.server, state).settled()
    assert other.texts("#rows .text") == rows
    assert other.tab.inner_text("#card-name") == page.tab.inner_text("#card-name") == HEADS[1]
    assert other.tab.locator(".attention .cell").count() == page.tab.locator(".attention .cell").count() > 0
    fill = "all => all.map(mark => getComputedStyle(mark).backgroundColor)"
    colours = [each.tab.eval_on_selector_all("button.mark span", fill) for each in (page, other)]
    assert colours[0] == colours[1]
    assert other.tab.input_value("#colour") == "effect_now"
    assert other.tab.inner_text("#step h3") == page.tab.inner_text("#step h3")
    assert other.tab.locator("button.mark.shut").count() == 2
    other.click("#other-model")  # the same address, with the heads of the second model
    assert other.tab.locator("button.mark.shut").count() == len(SHUT)
    assert other.tab.input_value("#text") == TEXT
    assert other.said == []
    other.tab.close()


def test_back_and_forward_undo_and_repeat_what_was_asked(page):
    steps = [
        lambda: page.shut(HEADS[0]),
        lambda: page.head(HEADS[1]),
        lambda: page.click("#keep-beside"),
        lambda: page.head(HEADS[0]),
        lambda: page.tab.click("[data-drawing=heat]"),
        lambda: page.click('[data-step="1"]'),
        lambda: page.type("#text", OTHER),
    ]

    def shown() -> list[Any]:
        counted = [page.tab.locator(each).count() for each in (".mark.shut", ".cell", "#step h3")]
        return [page.texts("#rows .text"), page.texts("[id^=card-name]"), *counted]

    def becomes(state: list[Any]) -> None:
        for _ in range(100):
            if page.settled() and shown() == state:
                return
            page.tab.wait_for_timeout(100)
        assert shown() == state

    states = [shown()]
    for step in steps:
        step()
        page.settled()
        states.append(shown())
    assert page.tab.input_value("#text") == OTHER
    for state in reversed(states[2:-1]):
        page.tab.go_back()
        becomes(state)
    assert page.tab.input_value("#text") == TEXT
    for state in states[3:]:
        page.tab.go_forward()
        becomes(state)
    assert page.tab.input_value("#text") == OTHER


def test_the_attention_of_every_head_and_of_two_side_by_side_is_that_of_the_typed_sentence(page):
    page.head(HEADS[0]).click("#keep-beside").head(HEADS[1])
    assert page.tab.locator("svg.attention").count() == 2
    page.tab.select_option("#show", "attention")
    page.settled()
    drawn = page.tab.eval_on_selector_all("button.mark svg.small", "all => all.map(each => each.outerHTML)")
    assert len(drawn) == 48
    assert len(set(drawn)) > 40
    weights = page.model.attention(TEXT, page.model.as_it_is(TEXT).ids, Change())
    strong = int((weights["decoder.1.cross"][3] > 0.0405).sum())
    squares = page.tab.inner_html('button.mark[data-name="decoder.1.cross.3"] svg.small').count("h1v1h-1z")
    assert abs(squares - strong) <= 1  # a weight may be rounded
    assert TEXT in page.tab.inner_text("#legend")
    page.head(HEADS[1])  # a click on a picture of the chosen head shuts it
    assert page.tab.locator(".mark.pictured.shut").count() == 1
    with page.tab.expect_download() as saved:
        page.tab.click("#state >> text=Save as SVG")
    circles = list(ElementTree.parse(saved.value.path()).getroot().iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 48
    assert len({each.get("r") for each in circles}) > 9  # sizes, as of marks


def test_the_reader_steps_through_and_goes_on_from_another_token(page):
    page.head("decoder.1.cross.3").click('[data-step="1"]')
    assert page.tab.inner_text("#step h3").startswith("Step 2 of 9")
    assert page.tab.locator(".query.at").count() == 1
    page.tab.click("[data-drawing=heat]")
    assert page.tab.url.endswith("&drawing=heat")
    page.tab.click("[data-drawing=lines]")
    assert page.tab.locator(".query.at").count() == 1
    page.click('[data-key="on"]')
    assert page.tab.inner_text("#step h3").startswith("Step 3 of 9")
    page.click('[data-key="back"]')
    second = page.tab.inner_text(".choices li:nth-child(2) .piece")
    page.click(".choices li:nth-child(2) button")
    tokens = page.texts(".now .tokens .piece")
    assert tokens[1] == second
    first = page.model.as_it_is(TEXT)
    prefix = [first.ids[0], int(first.log_p[1].topk(2).indices[1])]
    assert page.texts("#rows .text")[1] == page.model.written(
        page.model.say(TEXT, Change(), prefix=prefix).ids
    )
    page.click('[data-key="own"]')
    assert page.tab.locator(".now").count() == 0


def test_heads_are_patched_from_a_second_sentence(page):
    page.click("#second summary").type("#other", OTHER)
    page.head("decoder.1.cross.3")
    effects = page.model.patch_effects(TEXT, OTHER)
    assert f"{effects['decoder.1.cross.3']:.3f}" in page.tab.inner_text(".measures").replace("−", "-")
    page.click("#patch")
    assert page.tab.locator(".mark.patched").count() == 1
    rise = effects["decoder.1.cross.3"]
    assert f"{'+' if rise > 0 else '−'}{abs(rise):.2f}" in page.tab.inner_text("#why")
    page.type("#other", "a cat.")
    assert "equal lengths" in page.tab.inner_text("#trouble")
    assert page.tab.input_value("#other") == "a cat."  # to be mended
    assert page.tab.locator(".mark.patched, .now, #patch").count() == 0
    page.shut(HEADS[0])
    assert page.texts("#state-words") == ["47 of 48 heads open"]
    page.said.clear()  # Chromium writes of every refused question


def test_a_ready_pair_fills_both_sentences_and_the_address_chooses_it_again(page, browser):
    page.click("#second summary")
    labels = "all => all.map(each => each.label.split(':')[1])"
    groups = page.tab.eval_on_selector_all("#pair optgroup", labels)
    assert groups == ["number", "gender", "case", "order"]
    page.tab.select_option("#pair", "1,0")
    page.settled()
    one, other = (page.tab.input_value(each) for each in ("#text", "#other"))
    assert one != other
    assert other in [each.corrupted for each in read_contrasts("toy:gender") if each.source == one]
    effects = page.model.patch_effects(one, other)
    page.head("decoder.1.cross.5")
    assert f"{effects['decoder.1.cross.5']:.3f}" in page.tab.inner_text(".measures").replace("−", "-")
    again = Page(browser, page.server, "#" + page.tab.url.partition("#")[2]).settled()
    assert again.tab.input_value("#pair") == "1,0"
    assert again.type("#text", TEXT).tab.input_value("#pair") == ""
    again.tab.close()


def test_a_ready_pair_has_equal_pieces_and_is_of_the_models_languages(server, monkeypatch):
    model = server.answers.models[0]
    found = ready_pairs(model)
    for one, other in (pair for each in found for pair in each["pairs"]):
        assert len(model.sources(one, other)) == 2  # or it is refused
    assert [len(each["pairs"]) for each in found] == [8, 8, 8, 8]
    monkeypatch.setattr(model, "longest", 3)
    assert ready_pairs(model) == []
    monkeypatch.undo()
    monkeypatch.setitem(model.source.config, "data", "mine")
    assert "en-de:number" in [each["name"] for each in ready_pairs(model)]
    monkeypatch.setitem(model.source.config, "tgt", "fr")
    assert ready_pairs(model) == []


def test_it_is_used_with_the_keyboard(page):
    at = "document.activeElement.dataset.name"
    page.tab.focus('button.mark[data-name="encoder.0.enc-self.0"]')
    page.tab.keyboard.press("ArrowRight")
    page.tab.keyboard.press("x")
    page.settled()
    assert page.tab.evaluate(at) == "encoder.0.enc-self.1"
    assert page.texts("#state-words") == ["47 of 48 heads open"]
    page.tab.focus("#turn")
    page.tab.keyboard.press("Enter")
    page.settled()
    assert page.texts("#state-words") == ["48 of 48 heads open"]
    assert page.tab.evaluate("document.activeElement.id") == "turn"
    page.tab.keyboard.press("Escape")
    assert page.tab.evaluate(at) == "encoder.0.enc-self.1"


def test_the_picture_holds_sentence_map_and_attention(page):
    page.shut(HEADS[0])
    with page.tab.expect_download() as saved:
        page.tab.click("#state >> text=Save as SVG")
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
    one.tab.select_option("#pair", "3,0")
    one.settled()
    width = one.tab.viewport_size["width"]
    assert one.tab.evaluate("document.documentElement.scrollWidth") <= width
    red = "Number(getComputedStyle(document.body)[name].match(/\\d+/)[0])"
    ink, paper = (one.tab.evaluate(f"name => {red}", name) for name in ("color", "backgroundColor"))
    assert (ink < paper) == ("color_scheme" not in options)
    assert one.said == []
    one.tab.close()


def test_an_empty_page_and_what_cannot_be_answered_are_said_plainly(browser, server):
    one = Page(browser, server).settled()
    assert one.tab.evaluate("document.activeElement.id") == "text"
    assert "Infinity" not in one.tab.inner_text("body")
    one.type("#text", "dog " * 70)
    assert "expected at most 64" in one.tab.inner_text("#trouble")
    one.type("#text", TEXT)
    assert one.tab.locator("#trouble").is_hidden()
    one.tab.goto(server.url.replace("token=", "token=x") + "#text=old")
    one.tab.fill("input", server.token)
    one.tab.press("input", "Enter")
    one.settled()
    assert one.tab.input_value("#text") == "old"
    one.tab.close()
