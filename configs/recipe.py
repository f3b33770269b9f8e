"""A recipe says how a smaller model is made of a base: what chooses the parts that stay, how much may stay,
what happens to the weights around what closes, and how long the smaller model trains. Nothing here imports
torch.

    Recipe("importance", Units(heads=24))                                the 24 heads of highest importance
    Recipe("l0", Lambda(0.01), epochs=3)                                 learned gates with a price
    Recipe("plan", Speed(2.0, runtime="int8"), kinds=ALL, epochs=8)      twice as fast
    Recipe("unpruned", Units(), epochs=3)                                the base itself, trained as long

Rates, batches and distillation are no part of it: they are settings of the base, the same for all recipes.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from headgates.configs.closing import CLOSED_OUTPUTS, REFITS, ZERO
from headgates.configs.fields import shortened
from headgates.configs.json_file import hints_of, parsed
from headgates.configs.kinds import ALL_KINDS, FFN_KINDS, KINDS
from headgates.configs.learned import LEARNED

UNPRUNED = "unpruned"  # in the place of a choice: everything stays
LAYERS = "layers"  # in its place: the layers that the command names go
PIECES = "pieces"  # in its place: the pieces of the vocabulary that a text needs stay
SHORTLIST = "shortlist"  # in its place: a list says which pieces may follow from a source
PLAN = "plan"  # in its place: heads, neurons, layers and output rows are traded off against each other
NO_SHORTLIST = "0"  # beside a speed: the output layer stays as the base has it
USUAL_BATCH = 32  # sentences at once, where a command does not say
MOST_VALUES = 10_000  # values of a list; numbers are at most its cube
CHOICE_LABELS = {  # what figures and tables call a choice, where that is not its name
    UNPRUNED: "unpruned",
    LAYERS: "layers dropped",
    PIECES: "vocabulary trimmed",
    SHORTLIST: "output layer shortened",
    PLAN: "planned",
    "scratch": "the same shape from random weights",
    "uniform": "a smaller model from random weights",
    "raw-importance": "raw importance",
}


@dataclass(frozen=True)
class Lambda:
    """A price for each expected open head, in nats per target token: the gates say how many stay."""

    name: ClassVar[str] = "lambda"
    price: float

    @property
    def words(self) -> str:
        return f"λ {self.price:g}"

    @property
    def file_word(self) -> str:
        return f"{self.price:g}"

    @property
    def flags(self) -> dict[str, Any]:
        return {"lambda": self.price}


@dataclass(frozen=True)
class Units:
    """So many heads, and feed-forward neurons, stay; None: all of them. by_kind: heads of each kind, in
    place of their sum."""

    name: ClassVar[str] = "units"
    heads: int | None = None
    neurons: int | None = None
    by_kind: tuple[tuple[str, int], ...] = ()

    def __post_init__(self) -> None:
        if self.by_kind and self.heads != sum(count for _, count in self.by_kind):
            raise ValueError(f"{self.heads} heads are not the sum of {dict(self.by_kind)}")

    @property
    def words(self) -> str:
        """24 heads, 768 neurons, both with "and"."""
        parts = {"heads": self.heads, "neurons": self.neurons}
        named = [f"{count:,} {what}" for what, count in parts.items() if count is not None]
        if self.by_kind:
            named[0] += f" ({', '.join(f'{kind} {count}' for kind, count in self.by_kind)})"
        return " and ".join(named) or "all heads"

    @property
    def file_word(self) -> str:
        heads = "+".join(f"{kind}{count}" for kind, count in self.by_kind) or self.heads
        words = ["" if heads is None else f"{heads}", "" if self.neurons is None else f"{self.neurons}n"]
        return "-".join(filter(None, words))

    @property
    def flags(self) -> dict[str, Any]:
        heads = ",".join(f"{kind}={count}" for kind, count in self.by_kind) or self.heads
        return {"heads": heads, "neurons": self.neurons}

    @property
    def counts(self) -> dict[str, int]:
        """How many stay by the words that gates and closing take: heads, ffn, or each kind."""
        heads = dict(self.by_kind) or ({} if self.heads is None else {"heads": self.heads})
        return heads | ({} if self.neurons is None else {"ffn": self.neurons})


@dataclass(frozen=True)
class Share:
    """A share of the parameters (params) or of the multiply-adds (macs)."""

    name: ClassVar[str] = "share"
    of: str
    share: float

    def __post_init__(self) -> None:
        if self.of not in ("params", "macs"):
            raise ValueError(f"a share is of params or macs, got {shortened(self.of)}")

    @property
    def words(self) -> str:
        return f"{100 * self.share:g}% of the {UNITS[self.of]}"

    @property
    def file_word(self) -> str:
        return f"{self.share:g}{self.of}"

    @property
    def flags(self) -> dict[str, Any]:
        return {self.of: self.share}


@dataclass(frozen=True)
class Speed:
    """So many times as fast as the base by a runtime, with so many sentences at once. shortlist: of the
    output layer, as `Listed.by`, or NO_SHORTLIST; None where a plan decides."""

    name: ClassVar[str] = "speed"
    factor: float
    runtime: str = "auto"
    batch: int = USUAL_BATCH
    shortlist: str | None = None

    @property
    def words(self) -> str:
        return f"{self.factor:g} times the speed" + beside_words(self.batch, self.shortlist)

    @property
    def file_word(self) -> str:
        return f"{self.factor:g}x" + beside_file_word(self.batch, self.shortlist)

    @property
    def flags(self) -> dict[str, Any]:
        found = {"speedup": self.factor, "runtime": self.runtime, "batch": self.batch}
        return found | {"shortlist": self.shortlist}


@dataclass(frozen=True)
class MaxDrop:
    """The smallest model that loses at most so many points on validation, among these numbers of heads, these
    speeds of a plan, or what gates leave at these prices of a head; among the usual numbers or speeds where
    there are none. shortlist: as of a `Speed`."""

    name: ClassVar[str] = "max_drop"
    points: float
    heads: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()
    prices: tuple[float, ...] = ()
    runtime: str = "auto"
    batch: int = USUAL_BATCH
    shortlist: str | None = None

    @property
    def words(self) -> str:
        return f"at most {self.points:g} points lost" + beside_words(self.batch, self.shortlist)

    @property
    def file_word(self) -> str:
        return f"drop{self.points:g}" + beside_file_word(self.batch, self.shortlist)

    @property
    def flags(self) -> dict[str, Any]:
        tried = {"heads": self.heads, "speedup": self.speeds, "lambda": self.prices}
        among = {name: ",".join(map(str, values)) for name, values in tried.items() if values}
        found = {"max_drop": self.points, **among, "runtime": self.runtime, "batch": self.batch}
        return found | {"shortlist": self.shortlist}


@dataclass(frozen=True)
class Layers:
    """These layers go, such as encoder.2."""

    name: ClassVar[str] = "layers"
    dropped: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"without {', '.join(self.dropped)}"

    @property
    def file_word(self) -> str:
        return "+".join(self.dropped)

    @property
    def flags(self) -> dict[str, Any]:
        return {"drop_layers": ",".join(self.dropped)}


@dataclass(frozen=True)
class Pieces:
    """The pieces of the vocabulary that these texts need."""

    name: ClassVar[str] = "pieces"
    texts: tuple[str, ...]

    @property
    def words(self) -> str:
        return f"the pieces of {', '.join(self.texts)}"

    @property
    def file_word(self) -> str:
        return "trimmed"

    @property
    def flags(self) -> dict[str, Any]:
        return {"trim_vocabulary": ",".join(self.texts)}


@dataclass(frozen=True)
class Listed:
    """The output layer computes so many target pieces for each source piece of a batch: a number, or Marian's
    file with a list of them."""

    name: ClassVar[str] = "listed"
    by: str

    @property
    def words(self) -> str:
        return list_words(self.by)

    @property
    def file_word(self) -> str:
        return list_file_word(self.by)

    @property
    def flags(self) -> dict[str, Any]:
        return {"shortlist": self.by}


def list_words(by: str) -> str:
    """A shortlist by what makes it: a number of pieces, or Marian's file."""
    return f"{by} pieces listed for each" if by.isdigit() else f"the pieces of {by}"


def list_file_word(by: str) -> str:
    return by if by.isdigit() else "file"


def beside_words(batch: int, shortlist: str | None) -> str:
    """What a wish for a speed says of its batch, unless it is the usual one, and of its shortlist, unless a
    plan decides."""
    words = "" if batch == USUAL_BATCH else f", {batch} sentences at once"
    words = ", one sentence at a time" if batch == 1 else words
    if shortlist is None:
        return words
    return words + (", without a shortlist" if shortlist == NO_SHORTLIST else f", {list_words(shortlist)}")


def beside_file_word(batch: int, shortlist: str | None) -> str:
    words = "" if batch == USUAL_BATCH else f"-b{batch}"
    return words + ("" if shortlist is None else f"-list{list_file_word(shortlist)}")


Budget = Lambda | Units | Share | Speed | MaxDrop | Layers | Pieces | Listed
BUDGETS: dict[str, type[Any]] = {
    each.name: each for each in (Lambda, Units, Share, Speed, MaxDrop, Layers, Pieces, Listed)
}
STEPS = {Layers: LAYERS, Pieces: PIECES, Listed: SHORTLIST}  # budgets that say themselves what goes
UNITS = {"params": "parameters", "macs": "multiply-adds", "speedup": "milliseconds"}


@dataclass(frozen=True)
class Recipe:
    """choose: what decides which parts stay, by its name in pruning/choosers.py, or module:function. kinds:
    of attention and feed-forward layers that may close. closed_output, refit: of configs/closing.py.
    epochs: of training afterwards; gates train as long, together with the weights unless these are
    refitted. seed: of samples, gates and training."""

    choose: str
    budget: Budget
    kinds: tuple[str, ...] = tuple(KINDS)
    closed_output: str = ZERO
    refit: str | None = None
    epochs: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises ValueError at what is no recipe; files of others are read into this."""
        known = {"closed_output": CLOSED_OUTPUTS, "refit": [None, *REFITS]}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"{name}: expected one of {', '.join(map(str, choices))}, got {getattr(self, name)}"
                )
        if self.refit and self.closed_output != ZERO:
            raise ValueError(
                f"a refit fits the bias to what closed heads gave: leave {self.closed_output} out, or --refit"
            )
        if strange := [kind for kind in self.kinds if kind not in ALL_KINDS]:
            raise ValueError(f"kinds: expected some of {', '.join(ALL_KINDS)}, got {strange[0]}")

    @property
    def label(self) -> str:
        """What figures and tables call it beside others of the same budget and training."""
        learned = LEARNED.get(self.choose)
        words = [learned.label if learned else CHOICE_LABELS.get(self.choose, self.choose)]
        words += [f"{self.refit} refitted"] * bool(self.refit)
        return ", ".join(words + [self.closed_output] * (self.closed_output != ZERO))

    @property
    def title(self) -> str:
        """What tells it from all others, in one line."""
        epochs = [f"{self.epochs} epoch{'s' * (self.epochs > 1)}"] * bool(self.epochs)
        return ", ".join([self.label, self.budget.words, *epochs, f"seed {self.seed}"])

    @property
    def planned(self) -> bool:
        """Whether a plan decides what stays, be it of a shape that is then made anew."""
        return self.choose == PLAN or (self.choose == "scratch" and isinstance(self.budget, Speed | Share))

    @property
    def is_timed(self) -> bool:
        """Whether models are timed, to choose one or beside the base: those for a speed, or for a size."""
        return self.is_chosen_by_time or isinstance(self.budget, Share)

    @property
    def is_chosen_by_time(self) -> bool:
        """Whether models are timed to choose one."""
        return isinstance(self.budget, Speed) or (self.choose == PLAN and isinstance(self.budget, MaxDrop))

    @property
    def learns(self) -> bool:
        """Whether gates learn what stays."""
        return self.choose in LEARNED

    @property
    def learns_weights(self) -> bool:
        """Whether gates and weights learn together."""
        return self.learns and self.refit is None and self.epochs > 0

    @property
    def closing(self) -> str:
        """What closing means: the refit, or what a closed head outputs."""
        return self.refit or self.closed_output

    @property
    def gates_neurons(self) -> bool:
        return any(kind in FFN_KINDS for kind in self.kinds)

    @property
    def trained_as_long(self) -> "Recipe":
        """The base itself with as much training, which every trained model is compared with."""
        return Recipe(UNPRUNED, Units(), epochs=self.epochs, seed=self.seed)

    @property
    def file_words(self) -> list[str]:
        """Its words in the name of a run's folder."""
        budget = self.budget.file_word
        words = [self.choose.replace(":", "."), budget, *kinds_words(self.kinds, self.budget)]
        words += [self.closing] * (self.closing != ZERO) + [f"e{self.epochs}"] * bool(self.epochs)
        return [*filter(None, words), f"s{self.seed}"]

    def words(self, choose: str = "by") -> list[str]:
        """The same as flags of a command line. choose: the flag that names what chooses."""
        flags = {
            choose: self.choose,
            **self.budget.flags,
            "kinds": ",".join(self.kinds),
            "closed_output": self.closed_output,
            "refit": self.refit or "none",
            "epochs": self.epochs,
            "seed": self.seed,
        }
        if type(self.budget) in STEPS:
            del flags[choose]
        return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None]

    def to_json(self) -> dict[str, Any]:
        budget = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self.budget).items()
        }
        return {**asdict(self), "kinds": list(self.kinds), "budget": {"name": self.budget.name, **budget}}

    @classmethod
    def from_json(cls, content: Any) -> "Recipe":
        """Raises ValueError where this is no recipe."""
        try:
            given = dict(content["budget"])
            kind = BUDGETS[given.pop("name")]
            budget = kind(**{name: checked_value(kind, name, value) for name, value in given.items()})
            rest = {
                name: checked_value(cls, name, value) for name, value in content.items() if name != "budget"
            }
            return cls(budget=budget, **rest)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"expected a recipe, got another content ({error})") from error


def checked_value(kind: Any, name: str, value: Any) -> Any:
    """A field's value in its type, as JSON brings it. Raises ValueError at another, or at one of a size that
    no recipe has."""
    if not is_fair(value):
        raise ValueError(f"{name} is {shortened(value)}")
    return parsed(value, hints_of(kind)[name], name)


def is_fair(value: Any) -> bool:
    """Whether lists and numbers are of a size that a recipe may have."""
    if isinstance(value, list):
        return len(value) <= MOST_VALUES and all(map(is_fair, value))
    return not isinstance(value, int | float) or 0 <= value <= MOST_VALUES**3


def kinds_words(kinds: tuple[str, ...], budget: Budget) -> list[str]:
    """The kinds in names of folders; none where they are the usual ones: heads, and all for a plan."""
    usual = ALL_KINDS if isinstance(budget, Share | Speed | MaxDrop) else KINDS
    if set(kinds) == set(usual):
        return []
    groups = {"heads": KINDS, "ffn": FFN_KINDS, "all": ALL_KINDS}
    return [next((word for word, group in groups.items() if set(group) == set(kinds)), "+".join(kinds))]


def plain_recipe(recipe: Recipe) -> Recipe:
    """The recipe without what makes no difference to it, so that one model has one recipe."""
    if recipe.choose == UNPRUNED:
        return recipe.trained_as_long
    if type(recipe.budget) in STEPS:
        return replace(recipe, kinds=tuple(KINDS))
    return recipe
