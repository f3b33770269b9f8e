// What the systems say: lines of the test set with two systems side by side, words marked in which they differ, and what the others say.

const MORE_LINES = 10;
const REFERENCE = "reference";
const said = { lines: data.lines?.lines ?? [], systems: data.lines?.systems ?? [], shown: MORE_LINES };

// A system by how it was made, and by its run too where several were made alike.
const NAMES = said.systems.map(({ run, label }) => [label, `${label}, ${run}`]);
function systemName(system) {
  const names = NAMES[said.systems.indexOf(system)];
  return names.find((name, i) => NAMES.filter((others) => others[i] === name).length === 1) ?? names.at(-1);
}
const systemWords = (system) => `${systemName(system)}: ${system.heads_open} of ${system.heads_total} heads, ${METRIC} ${text(system.value, 1)}`;
const sideName = (side) => (side === REFERENCE ? "the reference" : systemName(said.systems[side]));
const textOf = (line, side) => (side === REFERENCE ? line.reference : line.outputs[line.of[side]]);

// Words and what stands between them, as the text has them.
const segmenter = new Intl.Segmenter(undefined, { granularity: "word" });
const segmentsOf = (words) => [...segmenter.segment(words)].map(({ segment }) => segment);
const wordsOf = (words) => segmentsOf(words).filter((segment) => segment.trim());

// The share of words that two texts have in common, in order: 1 where they are the same, 0 where no word is.
function likeness(one, other) {
  if (one === other) return 1;
  const [first, second] = [wordsOf(one), wordsOf(other)];
  return (2 * inBoth(first, second).size) / Math.max(1, first.length + second.length);
}

// A text whose words that the other text lacks are marked.
function marked(words, other) {
  const same = inBoth(wordsOf(other), wordsOf(words));
  let place = 0;
  return segmentsOf(words).map((segment) => (!segment.trim() || same.has(place++) ? segment : el("mark", {}, segment)));
}

// Larger numbers come first.
const ORDERS = {
  test: ["as in the test set", null],
  differ: ["most different first", (line, left, right) => -likeness(textOf(line, left), textOf(line, right))],
  worse: [
    "right loses most, by the reference",
    (line, left, right) => likeness(textOf(line, left), line.reference) - likeness(textOf(line, right), line.reference),
  ],
};

// The system on the right follows the state of pruning above until the reader chooses another.
function sideOfState() {
  const of = (run) => said.systems.findIndex((system) => system.own && system.run === run && run !== data.base);
  const place = [view.state.run, data.opens_with].map(of).find((found) => found >= 0);
  return String(place ?? Math.min(1, said.systems.length - 1));
}

function drawLinesPart() {
  byId("lines").hidden = !said.lines.length;
  if (!said.lines.length) return;
  const sides = [...said.systems.map((system, i) => [String(i), systemWords(system)]), [REFERENCE, "the reference"]];
  const again = () => {
    said.shown = MORE_LINES;
    drawLines();
  };
  const chooser = (words, id, options) =>
    el("label", { class: "choice" }, words, el("select", { id, onchange: again }, options.map(([value, name]) => el("option", { value }, name))));
  byId("lines-controls").replaceChildren(
    chooser("Left ", "line-left", sides),
    chooser("Right ", "line-right", sides),
    chooser("Order ", "line-order", Object.entries(ORDERS).map(([value, [name]]) => [value, name])),
    el("label", { class: "choice" }, "Find ", el("input", { id: "find-line", type: "search", oninput: again, autocomplete: "off" })),
  );
  byId("line-left").value = said.systems.length > 1 ? "0" : REFERENCE;
  byId("line-order").value = "differ";
  for (const id of ["line-left", "line-order", "find-line"]) usual[id] = byId(id).value;
  followState();
}

function followState() {
  if (!said.lines.length) return;
  const usually = sideOfState();
  if (byId("line-right").value === (usual["line-right"] ?? byId("line-right").value)) byId("line-right").value = usually;
  usual["line-right"] = usually;
  drawLines();
}

function drawLines() {
  if (!said.lines.length) return;
  const [left, right] = ["line-left", "line-right"].map((id) => byId(id).value);
  const wanted = byId("find-line").value.trim().toLowerCase();
  const has = (line) => [line.source, line.reference, ...line.outputs].some((words) => words.toLowerCase().includes(wanted));
  const found = said.lines.filter(has);
  const order = ORDERS[byId("line-order").value][1];
  const key = new Map(found.map((line) => [line, order ? order(line, left, right) : 0]));
  const sorted = found.sort((a, b) => key.get(b) - key.get(a)); // ties stay as in the test set
  const same = said.lines.filter((line) => textOf(line, left) === textOf(line, right)).length;
  byId("lines-title").textContent =
    left === right ? "What the systems say" : `On ${same} of ${said.lines.length} lines ${sideName(right)} says what ${sideName(left)} says`;
  const [count, total] = [said.lines.length, data.lines.total];
  const part = count < total ? `a sample of ${count} of ${total.toLocaleString("en")} test lines` : `all ${count} test lines`;
  byId("lines-note").textContent = `Shown: ${wanted ? `${found.length} found in ` : ""}${part}. Marked: words that the other side lacks.`;
  byId("lines-body").replaceChildren(...sorted.slice(0, said.shown).map((line) => lineArticle(line, left, right)));
  const more = sorted.length - said.shown;
  byId("lines-more").replaceChildren(
    more > 0 ? button({ class: "download", onclick: () => ((said.shown += 2 * MORE_LINES), drawLines()) }, `Show ${Math.min(2 * MORE_LINES, more)} more of ${more}`) : "",
  );
}

function lineArticle(line, left, right) {
  const [one, other] = [textOf(line, left), textOf(line, right)];
  const side = (name, words) => el("div", {}, note(name), el("p", { lang: data.lines.tgt, dir: "auto" }, words));
  const pair = one === other ? [side(left === right ? sideName(left) : `${sideName(left)} and ${sideName(right)}`, one || "(nothing)")] : [side(sideName(left), marked(one, other)), side(sideName(right), marked(other, one))];
  const given = [left, right].includes(REFERENCE) ? null : side("reference", line.reference);
  const others = said.systems.map((_, i) => String(i)).filter((place) => place !== left && place !== right);
  const rest = el("details", { ontoggle: () => rest.open && rest.append(...(rest.children.length > 1 ? [] : restOf(line, left, others))) }, el("summary", {}, `${plural(others.length, "other system")}`));
  return el(
    "article",
    {},
    el("p", { class: "source", lang: data.lines.src }, span("number", line.number + 1), " ", el("bdi", {}, line.source)),
    el("div", { class: "sides" }, given, pair),
    others.length ? rest : null,
  );
}

// What the other systems say, those that say the same together.
function restOf(line, left, others) {
  const groups = new Map();
  for (const place of others) groups.set(textOf(line, place), [...(groups.get(textOf(line, place)) ?? []), place]);
  return [...groups].map(([words, places]) => el("div", {}, note(places.map(sideName).join(", ")), el("p", { lang: data.lines.tgt, dir: "auto" }, marked(words, textOf(line, left)))));
}
