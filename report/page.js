// The page as a whole: title and summary, what happens when the reader chooses a head or a state, the theme, where the numbers come from.

function choose(head, asked) {
  view.head = head;
  paintChosen();
  drawCard();
  markRow();
  markPoints();
  if (!asked) return;
  keep();
  byId("said").textContent = `Card of ${head.name}: ${head.roles.map((role) => roleWords(role.role)).join(", ") || "no role found"}`;
  const box = byId("card").getBoundingClientRect();
  if (box.top < 0 || box.top > innerHeight - 160) byId("card").scrollIntoView({ behavior: smoothly(), block: "start" });
  else byId("card").scrollTop = 0;
}

// settled: not while the slider moves.
function chooseState(state, settled = true) {
  view.state = state;
  paintSlider();
  paintState();
  drawCurves();
  drawShapes();
  followState();
  const top = byId("card").scrollTop;
  drawCard();
  byId("card").scrollTop = top;
  if (settled) keep();
}

// ---------------------------------------------------------------- the address

// A state in the address, as long as its run or curve is on the page.
const keyOf = (state) => state.run ?? state.label; // that of all heads has no run

function keep() {
  const state = new URLSearchParams({ head: view.head.name });
  const add = (name, value, own) => value !== own && state.set(name, value);
  add("beside", view.beside?.name ?? "", "");
  if (SERIES.size) {
    add("by", view.series, FIRST_SERIES);
    add("state", keyOf(view.state), keyOf(startState()));
  }
  add("sentence", view.sentence + 1, 1);
  add("drawing", view.drawing, "lines");
  keepSelects(state);
  keepAddress(state);
}

function enter() {
  const state = readAddress();
  if (SERIES.size) {
    view.series = SERIES.has(state.get("by")) ? state.get("by") : FIRST_SERIES;
    view.state = SERIES.get(view.series).find((each) => keyOf(each) === state.get("state")) ?? startState();
    drawSlider();
  }
  view.sentence = Math.max(0, Math.min(sentences().length - 1, (Number.parseInt(state.get("sentence")) || 1) - 1));
  view.drawing = state.get("drawing") === "heat" ? "heat" : "lines";
  view.beside = headByName.get(state.get("beside")) ?? null;
  view.head = headByName.get(state.get("head")) ?? firstHead();
  followState();
  readSelects(state);
  drawLines();
  readControls();
  choose(view.head, false);
  drawCurves();
  drawShapes();
  keep();
}

// What the page shows, in a sentence: what the heads are worth that learned gates or the page's own run leave, or how many can close untrained.
function finding() {
  if (data.unlearned) return "The model has not learned its task";
  if (data.speed) return data.speed;
  const state = view.state.learned || opensWith([view.state]) ? view.state : null;
  if (!state || !isNumber(state.value)) return curveFinding();
  const value = `${text(state.value, 1)} ${METRIC}`;
  if (!isNumber(state.difference)) return `${state.words} have ${value}`;
  const [low, high] = state.difference_ci95 ?? [0, 0];
  if (high < 0) return `${state.words} keep ${text(state.value, 1)} of ${text(state.value - state.difference, 1)} ${METRIC}`;
  const change = low > 0 ? signed(state.difference, 1) : "no significant loss";
  return `${state.words} are enough: ${value}, ${change} against ${state.against}`;
}

function drawTitle() {
  byId("title").textContent = finding() ?? data.run ?? "Attention heads";
  const ofBase = data.base && data.base !== data.run ? `base ${data.base}` : "attention heads of the base model";
  const own = data.system && data.system !== "base" ? `its own model, ${data.system}` : ofBase;
  byId("place").textContent = ["headgates", data.run, own].filter(Boolean).join(" · ");
  const named = data.heads.filter((head) => head.roles.length).length;
  const parts = FOUND.filter((family) => family !== NO_FAMILY).map(
    (family) => `${data.heads.filter((head) => head.families.includes(family)).length} ${family.words}`,
  );
  const layers = new Set(data.heads.map((head) => head.site)).size;
  const roles = named
    ? `${named} ${named === 1 ? "has" : "have"} a role that can be named: ${list(parts)}.`
    : data.heads.some((head) => head.asked?.length)
      ? "None has a role that could be named."
      : `No analysis has looked for their roles; ${command("analyze")} --siblings does.`;
  const several = data.heads.some((head) => head.families.length > 1) ? " Some have more than one." : "";
  const heads = `${plural(TOTAL, "head")} in ${plural(layers, "attention layer")}.`;
  byId("summary").textContent = [data.result, heads, roles + several].filter(Boolean).join(" ");
}

function flatPairs(value, before = "") {
  return Object.entries(value ?? {})
    .flatMap(([key, item]) =>
      item && typeof item === "object" && !Array.isArray(item)
        ? flatPairs(item, before + key + " ")
        : [[before + key, Array.isArray(item) ? item.join(" ") : item]],
    )
    .filter(([, item]) => item !== null && item !== undefined && item !== "");
}

function plainly(item) {
  return isNumber(item) && !Number.isInteger(item) ? String(Number(item.toPrecision(4))) : String(item);
}

const GLOSSARY = [
  ["head", "one of the attention functions that a layer runs side by side; the layer adds up what they say"],
  ["gate", "a learned number in [0, 1] that a head's output is multiplied by"],
  ["open, closed", "an open head takes part; a closed one says nothing: its gate is 0, or it was removed"],
  ["λ (lambda)", `the price of an open head in training, in nats of loss per ${data.unit ?? "target token"}: a larger one closes more heads`],
  [METRIC, "of the outputs for the test set, on which nothing was trained or chosen"],
  ["95% and p", "paired bootstrap over test sentences, two-sided; Holm: adjusted for all heads tested. The luck of training is not in them"],
  ["unpruned, trained as long", "the base itself, trained on for as many steps as a smaller model: what more training gains is not pruning's"],
  ["untrained", "heads closed in the finished base, which was not trained on"],
  ["score of a role", "the share of the words that the role is about for which the head's largest weight is where the role says"],
  ["baseline of a role", "what a head would score by always looking at one distance (the best fixed offset), or by chance; a role must beat it"],
];

function drawDownloads() {
  byId("curves-downloads").append(download("Save as SVG", () => "curves.svg", "image/svg+xml", () => svgFile(byId("chart").querySelector("svg"))));
  byId("table-downloads").append(download("Save as CSV", () => `${shownTable().name.toLowerCase().replace(/ /g, "-")}.csv`, "text/csv", tableAsCsv));
}

function drawFooter() {
  const words = [
    ...GLOSSARY,
    ...FOUND.filter((family) => family !== NO_FAMILY).map((family) => [`${family.letter} ${family.words}`, family.what]),
    ...KNOWN_MEASURES.map((measure) => [measure.words, measure.what]),
    ["L1H5", "head 5 of layer 1 of its kind of attention, both counted from 0, as interpretability tools count"],
  ];
  const parts = [
    ["What the words mean", Object.fromEntries(words)],
    ["Settings of the analyses", data.settings],
    ["What made this page", data.made],
  ];
  for (const [title, value] of parts) {
    const items = flatPairs(value).flatMap(([key, item]) => [el("dt", {}, key.replace(/_/g, " ")), el("dd", {}, plainly(item))]);
    if (items.length) byId("footer").append(el("details", {}, el("summary", {}, title), el("dl", {}, items)));
  }
}

// The head whose card is shown first: the largest mark, of those with a role if there are any.
function firstHead() {
  const value = (head) => (head.roles.length ? 1e6 : 0) + (head[view.size?.key] ?? 0);
  return data.heads.reduce((best, head) => (value(head) > value(best) ? head : best));
}

function open() {
  nameCurves();
  if (SERIES.size) {
    view.series = FIRST_SERIES;
    view.state = startState();
  }
  drawTitle();
  drawTheme();
  drawMap();
  drawControls();
  drawLinesPart();
  drawComparisons();
  drawCauses();
  drawContrasts();
  drawTabs();
  drawDownloads();
  drawFooter();
  onWidth(() => {
    fitMap();
    drawCurves();
  });
  onAddress(enter);
  for (const id of ["controls", "lines-controls"]) byId(id).addEventListener("change", keep);
  byId("card").addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.head.mark.focus();
  });
  document.documentElement.dataset.ready = Math.round(performance.now()); // milliseconds since the page was asked for; the tests read it
}

open();
