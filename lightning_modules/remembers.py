"""State of a stage that its checkpoints hold."""

from typing import Any


class Remembers:
    """The attributes named in `remembered`, and the states of `parts`, are kept in every checkpoint, so that
    a resumed stage goes on with them."""

    remembered: tuple[str, ...]

    def parts(self) -> dict[str, Any]:
        """What has a state of its own, by its name there."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.remembered}
        return own | {name: part.state_dict() for name, part in self.parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.remembered:
            setattr(self, name, state[name])
        for name, part in self.parts().items():
            part.load_state_dict(state[name])
