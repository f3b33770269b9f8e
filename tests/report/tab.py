"""A page in a tab of the browser, with what its console said and which addresses it asked for."""

from collections.abc import Callable
from typing import Any


class Tab:
    """What it has not of its own (click, fill, locator, ...) is playwright's."""

    def __init__(self, browser: Any, address: str, **options: Any):
        self.said: list[str] = []
        self.asked: list[str] = []
        self.tab = browser.new_page(**{"viewport": {"width": 1360, "height": 900}, **options})
        self.set_default_timeout(30_000)
        self.on("console", lambda message: self.said.append(message.text))
        self.on("pageerror", lambda error: self.said.append(str(error)))
        self.on("request", lambda request: self.asked.append(request.url))
        self.goto(address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tab, name)

    def head(self, name: str) -> "Tab":
        self.click(mark(name))
        return self

    def count(self, selector: str) -> int:
        return int(self.locator(selector).count())

    def texts(self, selector: str) -> list[str]:
        return list(self.locator(selector).all_inner_texts())

    def each(self, selector: str, script: str) -> Any:
        """What a script says of each element."""
        return self.eval_on_selector_all(selector, f"all => all.map(each => {script})")

    def becomes(self, shown: Callable[[], Any], state: Any) -> None:
        """Wait until this is shown: browsers tell a page of another address when they have time."""
        for _ in range(100):
            if shown() == state:
                return
            self.wait_for_timeout(100)
        assert shown() == state

    def close(self) -> None:
        self.tab.close()
        assert self.said == [], "the console stays empty"


def mark(name: str) -> str:
    """The selector of a head's mark."""
    return f'button.mark[data-name="{name}"]'
