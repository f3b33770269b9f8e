// What every part of the page uses: the data, the families of roles, the makers of elements, numbers as text.

const data = JSON.parse(document.getElementById("data").textContent);
const command = (name) => data.commands?.[name] ?? `headgates ${name} runs/${data.run ?? "RUN"}`; // as it is typed
const METRIC = data.metric ?? "BLEU"; // pages of before 0.2 say nothing
const LIVE = data.live ?? null; // of explore's page, which has the model behind it
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "line", "path", "circle", "rect", "text", "title"]);

// One element. Attributes whose name starts with "on" are listeners, "style" is an object of custom properties; null ones are left out.
function el(tag, attributes = {}, ...children) {
  const made = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, setting] of Object.entries(value)) made.style.setProperty(property, setting);
    else made.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Elements that several parts of the page are made of. `chip` shows the letter of a family, `bar` a share in [0, 1].
const HIDDEN = { "aria-hidden": "true" };
const span = (name, words) => el("span", { class: name }, words);
const note = (words) => el("p", { class: "note" }, words);
const button = (attributes, ...children) => el("button", { type: "button", ...attributes }, ...children);
const chip = (family, name = "chip") => el("span", { class: `${name} f-${family.id}`, ...HIDDEN }, family.letter);
const bar = (name, share, mark) => el("span", { class: name, ...HIDDEN, style: { "--of": share } }, mark);
const svg = (width, height, attributes, ...children) => el("svg", { viewBox: `0 0 ${width} ${height}`, ...attributes }, ...children);
const line = (x1, y1, x2, y2, attributes) => el("line", { x1, y1, x2, y2, ...attributes });
const write = (x, y, words, attributes) => el("text", { x, y, ...attributes }, words);
const writeBefore = (x, y, words, attributes) => write(x, y, words, { "text-anchor": "end", ...attributes });

// Roles belong to families; a family has a colour (in page.css) and a letter, so that the page reads without colour.
const FAMILIES = [
  { id: "positional", letter: "P", words: "positional", what: "at least 90% of its largest weights are at one offset", is: /^position/i },
  { id: "syntactic", letter: "S", words: "syntactic", is: /->|→|^synta/i,
    what: "follows a dependency, 10 points above the best fixed offset" },
  { id: "rare", letter: "R", words: "rare words", is: /^rare|rarest/i,
    what: "looks at one of the two least frequent tokens of the sentence at least half of the time" },
  { id: "aligned", letter: "A", words: "aligned", is: /^align/i,
    what: "looks at an aligned source word, 10 points more often than the best fixed offset" },
  { id: "other", letter: "O", words: "other", what: "has another role", is: /./ },
];
const NO_FAMILY = { id: "none", letter: "", words: "no role", what: "none of the analyses names it" };
const KIND_WORDS = { "enc-self": "Encoder self-attention", "dec-self": "Decoder self-attention", cross: "Cross-attention" };
const headsOf = (kind) => data.heads.filter((head) => head.kind === kind);
const KINDS = [...new Set([...Object.keys(KIND_WORDS), ...data.heads.map((head) => head.kind)])].filter((kind) => headsOf(kind).length);

const REMOVED_ALONE = `${METRIC} with all heads minus ${METRIC} without this one: exact, on the test set`;
// costs: it says what the model loses without the head; exact: it was measured so, no score estimates it; signed: it is drawn from 0, and what
// is below has a mark; live: it is of the sentence that the reader typed; extra: for colour and size alone
const MEASURES = [
  { key: "effect", words: "Effect alone", digits: 3, unit: "nats", adds: "the cost of closing heads one at a time, on this sentence", costs: true, live: true,
    exact: true, signed: true, what: "what closing this head alone adds to the loss of the output, on this sentence: exact" },
  { key: "effect_now", words: "Effect now", digits: 3, unit: "nats", live: true, exact: true, signed: true,
    what: "the loss with this head closed minus that with it open, all others open or closed as they are now: exact" },
  { key: "patch_effect", words: "Patch effect", digits: 3, unit: "nats", live: true, exact: true, signed: true,
    what: "what it adds to the loss when this head alone reads the second sentence: exact" },
  { key: "loss", words: "Cost in loss", digits: 3, unit: "nats a sentence", adds: "the cost of closing heads one at a time", costs: true,
    exact: true, signed: true, what: "what closing this head alone adds to the loss, in nats a sentence: exact, on a sample" },
  { key: "fall", words: `Fall of ${METRIC}`, digits: 2, unit: METRIC, exact: true, signed: true, what: REMOVED_ALONE },
  { key: "importance", words: "Importance", digits: 3, unit: "nats a sentence", adds: "the importance", what: "mean |∂L/∂ξ| of the head's gate, in nats (Michel et al. 2019)" },
  { key: "lrp_share", words: "LRP share", digits: 3,
    what: "share of its layer's relevance for the predicted word (layer-wise relevance propagation)" },
  { key: "confidence", words: "Confidence", digits: 3, what: "mean of the largest attention weight, end of sentence left out" },
  { key: "entropy", words: "Entropy", digits: 2, what: "of its attention weights, in nats" },
  { key: "role_score", words: "Score of its role", digits: 2, extra: true, what: "the first role's; heads without a role have none" },
  ...otherScores(),
  ...gateEnds(),
];
const KNOWN_MEASURES = MEASURES.filter(({ key, live }) => (LIVE && live) || data.heads.some((head) => isNumber(head[key])));
const CARD_MEASURES = KNOWN_MEASURES.filter(({ extra }) => !extra);

// Every other score that the run's folder or the table of causes has.
function otherScores() {
  const shown = new Set(["loss", "importance", "importance, |.|", "lrp", "confidence"]);
  const of = (head) => ({ ...head.scores, ...Object.fromEntries((data.causes?.names ?? []).map((name, i) => [name, data.causes.heads[nameOf(head)]?.[i]])) });
  const names = new Set();
  for (const head of data.heads) {
    head.fall = isNumber(head.ablation?.difference) ? -head.ablation.difference : null;
    head.role_score = head.roles?.[0]?.score ?? null;
    for (const [name, value] of Object.entries(of(head))) {
      if (name === "loss") head.loss ??= value;
      if (shown.has(name)) continue;
      names.add(name);
      head[`score:${name}`] = value;
    }
  }
  return [...names].map((name) => ({ key: `score:${name}`, words: name, digits: 3, extra: true, what: `score: ${name}` }));
}

// Where each run's gates ended: log alpha, above 0 for heads that stay open.
function gateEnds() {
  const runs = new Set(data.heads.flatMap((head) => Object.keys(head.gate_path ?? {})));
  for (const head of data.heads)
    for (const [run, path] of Object.entries(head.gate_path ?? {})) head[`gate:${run}`] = path.log_alpha.at(-1);
  const labelOf = (run) => (data.states ?? []).find((state) => state.run === run)?.label ?? run;
  return [...runs].map((run) => {
    const label = [...runs].filter((other) => labelOf(other) === labelOf(run)).length > 1 ? run : labelOf(run);
    return { key: `gate:${run}`, words: `log α, ${label}`, digits: 1, extra: true, signed: true, what: `log α of the head's gate at the end of training; below 0 it is closed` };
  });
}

// The values between which a measure is drawn: from 0 or the lowest below it; a signed one from 0.
function rangeOf(measure) {
  const values = data.heads.map((head) => head[measure.key]).filter(isNumber);
  return [measure.signed ? 0 : Math.min(0, ...values), Math.max(...values)];
}

// A value of a measure as a share of its range; its root, as a few heads are far above the rest.
function shareOf(measure, head) {
  const [low, high] = rangeOf(measure);
  return isNumber(head[measure.key]) && high > low ? Math.sqrt(Math.max(0, head[measure.key] - low) / (high - low)) : 0;
}
const isBelow = (measure, head) => Boolean(measure?.signed) && head[measure.key] < 0;
const PALE = 0.55; // a share below it has a colour on which letters are ink
// The colour of a share in [0, 1]: from little to much over a third colour between.
const HEAT = ["var(--heat-low)", "var(--heat-middle)", "var(--heat-high)"];
function heat(share) {
  const from = share < 0.5 ? 0 : 1;
  return `color-mix(in oklab, ${HEAT[from + 1]} ${(100 * (2 * share - from)).toFixed(1)}%, ${HEAT[from]})`;
}

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
const roleWords = (role) => String(role).replace(/->/g, "→").replace(/-(?=\d)/g, "−");
function familyOf({ family: named, role }) {
  return FAMILIES.find((family) => family.words === named) ?? FAMILIES.find((family) => family.is.test(role));
}

function nameOf(head) {
  return head.site + "." + head.head;
}
for (const head of data.heads) {
  head.name = nameOf(head);
  head.short = `L${head.layer}H${head.head}`;
  head.roles = head.roles ?? [];
  head.families = [...new Set(head.roles.map(familyOf))];
  head.family = head.families[0] ?? NO_FAMILY;
}
const headByName = new Map(data.heads.map((head) => [head.name, head]));
const hasFamily = (head, family) => head.family === family || head.families.includes(family);
const FOUND = [...FAMILIES, NO_FAMILY].filter((family) => data.heads.some((head) => hasFamily(head, family)));

// Numbers with that many digits; without, whole numbers as they are and others with three.
function text(value, digits) {
  if (value === null || value === undefined || value === "") return "–";
  if (!isNumber(value)) return String(value);
  const shown = digits === undefined && Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(digits ?? 3);
  return /^-0\.?0*$/.test(shown) ? shown.slice(1) : shown.replace("-", "−");
}
const signed = (value, digits) => (value > 0 ? "+" : "") + text(value, digits);
function percent(value) {
  return isNumber(value) ? (100 * value).toFixed(value < 0.9995 && value > 0.0995 ? 0 : 1) + "%" : "–";
}
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
function pValue(p) {
  return p === null || p === undefined ? "–" : p < 0.001 ? "< 0.001" : text(p, 3);
}
// The places in the second of two lists that are in a longest list that both hold in order.
function inBoth(first, second) {
  const length = Array.from({ length: first.length + 1 }, () => new Uint16Array(second.length + 1));
  for (let i = first.length - 1; i >= 0; i--)
    for (let j = second.length - 1; j >= 0; j--)
      length[i][j] = first[i] === second[j] ? length[i + 1][j + 1] + 1 : Math.max(length[i + 1][j], length[i][j + 1]);
  const places = new Set();
  for (let i = 0, j = 0; i < first.length && j < second.length; ) {
    if (first[i] === second[j]) {
      places.add(j++);
      i++;
    } else if (length[i + 1][j] >= length[i][j + 1]) i++;
    else j++;
  }
  return places;
}
function list(words) {
  return words.length < 2 ? words.join("") : words.slice(0, -1).join(", ") + " and " + words[words.length - 1];
}

// States of pruning: those of one method are a series; each begins with all heads open.
const TOTAL = data.heads.length;
const OF_MODEL = Math.max(TOTAL, ...(data.states ?? []).map((state) => state.heads_total ?? 0)); // of kinds that were not looked at too
const UNPRUNED = { label: "all", heads_open: OF_MODEL, heads_total: OF_MODEL, value: null, open: {}, unpruned: true };
const SERIES = new Map();
for (const state of data.states ?? []) {
  const name = state.series ?? "steps";
  if (!SERIES.has(name)) SERIES.set(name, [{ ...UNPRUNED, value: data.base_value ?? null }]);
  SERIES.get(name).push(state);
}
for (const states of SERIES.values())
  states.sort((a, b) => (b.unpruned ? 1 : 0) - (a.unpruned ? 1 : 0) || b.heads_open - a.heads_open || (a.lambda ?? 0) - (b.lambda ?? 0));

// The page of a run opens with the series that the run is in.
const opensWith = (states) => states.some(({ run }) => run && run === data.opens_with);
const FIRST_SERIES = ([...SERIES].find(([, states]) => opensWith(states)) ?? [...SERIES][0])?.[0];

const SHUTS = SERIES.size > 0 || LIVE !== null; // heads are open or closed here

// Gates that a state does not name are not gated: open.
function isOpen(head, state) {
  return (state.open ?? {})[head.site]?.[head.head] ?? true;
}
function scoreWords(state) {
  if (!isNumber(state.value)) return "";
  return `${METRIC} ${text(state.value, 1)}` + (isNumber(state.low) ? ` (${text(state.low, 1)} to ${text(state.high, 1)})` : "");
}

// What the reader chose. Each part reads it when it draws; `choose` and `chooseState` in page.js call the parts. beside: the head that is kept to
// be compared; show: what the head map is made of, marks or attention.
const view = {
  ...{ head: null, beside: null, series: null, state: UNPRUNED, size: null, colour: null },
  ...{ sentence: 0, drawing: "lines", show: "marks", hidden: new Set() },
};
