"""State of a stage that its checkpoints hold."""

from typing import Any


class Remembers:
    """The attributes named in `remembered` are kept in every checkpoint, so that a resumed stage goes on with
    them."""

    remembered: tuple[str, ...]

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.remembered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.remembered:
            setattr(self, name, state[name])
