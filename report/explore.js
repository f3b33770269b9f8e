// explore's page as a whole: what the reader asks, the server's answers, heads that are closed and patched, the address that holds it all.

// What the reader asks. shut: names of closed heads by model; prefix: ids that the translation begins with; step: the token that is looked at.
const ask = {
  text: "",
  shut: LIVE.models.map(({ start }) => new Set(start)),
  patched: new Set(),
  other: "",
  prefix: [],
  step: null,
};
const alike = (one, other) => one.size === other.size && [...one].every((name) => other.has(name));
const shutHere = () => ask.shut[LIVE.number];

// Whether what a model is asked differs from what the run has.
function isChanged(number) {
  const own = number === LIVE.number;
  return !alike(ask.shut[number], new Set(LIVE.models[number].start)) || (own && (ask.patched.size > 0 || ask.prefix.length > 0));
}

// ---------------------------------------------------------------- heads

// A click shows a head; a second click closes or opens it.
function choose(head, asked) {
  if (asked && head === view.head) return turn(head);
  view.head = head;
  paintChosen();
  drawCard();
  markQuery();
  if (!asked) return;
  byId("said").textContent = `Card of ${head.name}`;
  update();
}

function turn(head) {
  const shut = shutHere();
  if (!shut.delete(head.name)) shut.add(head.name);
  ask.patched.delete(head.name);
  changed(`${head.name} is ${shut.has(head.name) ? "closed" : "open"}`);
}

function patch(head) {
  if (!ask.patched.delete(head.name)) ask.patched.add(head.name);
  shutHere().delete(head.name);
  changed(`${head.name} reads the ${ask.patched.has(head.name) ? "second" : "first"} sentence`);
}

function changed(words) {
  ask.prefix = [];
  byId("said").textContent = words;
  paintHeads();
  update();
}

// What was used last keeps the focus when a part of the page is drawn again.
function keepingFocus(place, draw) {
  const used = byId(place).contains(document.activeElement) ? document.activeElement : null;
  draw();
  if (!used || used.isConnected) return;
  const [name, value] = ["id", "data-drawing", "data-step"].map((each) => [each, used.getAttribute(each)]).find(([, each]) => each) ?? [];
  if (name) byId(place).querySelector(`[${name}="${value}"]`)?.focus({ preventScroll: true });
}

function redrawCard() {
  keepingFocus("card", drawCard);
  markQuery();
}

function paintHeads() {
  const open = {};
  for (const head of data.heads) (open[head.site] ??= [])[head.head] = !shutHere().has(head.name);
  view.state = { label: "now", open };
  for (const head of data.heads) head.mark.classList.toggle("patched", ask.patched.has(head.name));
  readControls();
  drawState();
  redrawCard();
}

const PICTURE_BUTTON = download("Save as SVG", () => "sentence.svg", "image/svg+xml", pictureFile);

// What is closed, and the way back.
function drawState() {
  const start = new Set(LIVE.models[LIVE.number].start);
  const setTo = (names, words) => () => {
    ask.shut[LIVE.number] = new Set(names);
    ask.patched.clear();
    changed(words);
  };
  const shut = shutHere();
  const words = [`${TOTAL - shut.size} of ${plural(TOTAL, "head")} open`, ask.patched.size ? `${ask.patched.size} patched` : null].filter(Boolean).join(", ");
  byId("state").replaceChildren(
    el("p", { id: "state-words" }, words),
    el(
      "div",
      { class: "keys" },
      shut.size || ask.patched.size ? button({ class: "download", id: "open-all", onclick: setTo([], "all heads are open") }, "Open all") : "",
      start.size && (!alike(shut, start) || ask.patched.size) ? button({ class: "download", onclick: setTo(start, "heads as the run has them") }, "As the run has it") : "",
      PICTURE_BUTTON,
    ),
  );
}

// The part of the card that acts on its head.
function gatePart(head) {
  const shut = shutHere().has(head.name);
  const act = (id, words, onclick) => button({ class: "download", id: idOf(id, head), onclick: () => onclick(head) }, words);
  return el(
    "div",
    { class: "keys gate" },
    act("turn", shut ? "Open this head" : "Close this head", turn),
    ask.other ? act("patch", ask.patched.has(head.name) ? "Read the first sentence" : "Patch from the second sentence", patch) : null,
  );
}
CARD_PARTS.unshift(gatePart);

// ---------------------------------------------------------------- questions

// answered: by the server, which goes on.
class Refused extends Error {
  constructor(words, answered = false) {
    super(words);
    this.answered = answered;
  }
}

async function question(path, content) {
  const headers = { "Content-Type": "application/json", "X-Headgates-Token": LIVE.token };
  let answer;
  try {
    answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(content) });
  } catch {
    throw new Refused("No answer: is `headgates explore` still running?");
  }
  const found = await answer.json().catch(() => ({ error: "the answer is no JSON" }));
  if (!answer.ok) throw new Refused(found.error ?? answer.statusText, true);
  return found;
}

// One question at a time: what changes meanwhile is asked once, when the last answer is there.
const asking = { now: false, again: false, effectsOf: null, refused: "" };
async function update() {
  keep();
  asking.again = true;
  if (asking.now) return;
  asking.now = true;
  document.documentElement.dataset.asking = "true";
  while (asking.again) {
    asking.again = false;
    try {
      await askAll();
      trouble(asking.refused);
      asking.refused = "";
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      trouble(error.message);
      if (error.answered && !ask.other) clear();
      if (!error.answered || !ask.other) continue;
      // the first sentence is answered without the second, which stays in its field
      asking.refused = error.message;
      ask.other = "";
      ask.patched.clear();
      asking.again = true;
      address.entering = true; // in the place of the refused address, or else back would lead to it again
      keep();
      address.entering = false;
      paintHeads();
    }
  }
  asking.now = false;
  document.documentElement.dataset.asking = "false";
}

async function askAll() {
  if (!ask.text) {
    clear();
    byId("text").focus();
    return;
  }
  const about = (number) => ({ model: number, text: ask.text, shut: [...ask.shut[number]] });
  const shown = [view.head, view.beside].filter(Boolean);
  const sites = new Set((view.show === "attention" ? data.heads : shown).map(({ site }) => site));
  const own = { ...about(LIVE.number), prefix: ask.prefix, sites: [...sites] };
  if (ask.patched.size) Object.assign(own, { other: ask.other, patched: [...ask.patched] });
  const patched = ask.other ? { other: ask.other } : {};
  answers.own = await question("/api/say", own);
  if (asking.again) return;
  data.examples = answers.own.example ? [answers.own.example] : [];
  drawRows();
  drawPictures();
  redrawCard();
  if (LIVE.models.length > 1) {
    answers.beside = null;
    try {
      answers.beside = await question("/api/say", about(1 - LIVE.number));
    } catch (error) {
      if (!error.answered) throw error;
      asking.refused = `${LIVE.models[1 - LIVE.number].label}: ${error.message}`; // of this model alone
    }
    if (asking.again) return;
    drawRows();
  }
  const effectsOf = JSON.stringify([about(LIVE.number), patched]);
  if (effectsOf === asking.effectsOf) return;
  answers.effects = await question("/api/effects", { ...about(LIVE.number), ...patched });
  asking.effectsOf = effectsOf;
  for (const head of data.heads)
    for (const { key, live } of MEASURES) if (live) head[key] = answers.effects[key]?.[head.name] ?? null;
  byId("heads-title").textContent = mapFinding();
  paintHeads();
  drawWhy();
}

// Nothing is said of another sentence than the one that is asked about.
function clear() {
  Object.assign(answers, { own: null, beside: null, effects: null });
  asking.effectsOf = null;
  data.examples = [];
  for (const head of data.heads) for (const { key, live } of MEASURES) if (live) head[key] = null;
  byId("heads-title").textContent = "Heads";
  drawRows();
  drawPictures();
  paintHeads();
}

function trouble(words) {
  byId("trouble").hidden = !words;
  byId("trouble").textContent = words;
}

// ---------------------------------------------------------------- the address

// Ask about another sentence.
function begin(sentence) {
  byId("text").value = sentence;
  Object.assign(ask, { text: sentence, prefix: [], step: null });
  update();
}

// Everything that the reader asks stands after the # of the address.
function keep() {
  const state = new URLSearchParams();
  const add = (name, value) => value && state.set(name, value);
  add("text", ask.text);
  LIVE.models.forEach(({ start }, number) => {
    const shut = ask.shut[number];
    if (!alike(shut, new Set(start))) state.set("shut" + number, [...shut].sort().join(","));
  });
  add("other", ask.other);
  add("patched", [...ask.patched].join(","));
  if (ask.prefix.length) state.set(`prefix${LIVE.number}`, ask.prefix.join(","));
  if (ask.step !== null) state.set("step", ask.step + 1);
  if (view.head) state.set("head", view.head.name);
  add("beside", view.beside?.name);
  add("drawing", view.drawing === "lines" ? "" : view.drawing);
  keepSelects(state);
  keepAddress(state);
  byId("pair").value = pairNow();
}

// What an address says; heads that this model lacks are left out.
function read() {
  const state = readAddress();
  const names = (key) => (state.get(key) ?? "").split(",").filter(Boolean);
  ask.text = state.get("text") ?? "";
  ask.other = state.get("other") ?? "";
  LIVE.models.forEach(({ start }, number) => {
    const own = number === LIVE.number;
    const given = state.has("shut" + number) ? names("shut" + number) : start;
    ask.shut[number] = new Set(given.filter((name) => !own || headByName.has(name)));
  });
  ask.patched = new Set(ask.other ? names("patched").filter((name) => headByName.has(name)) : []);
  ask.prefix = names(`prefix${LIVE.number}`).map(Number).filter(Number.isInteger);
  ask.step = Number.isInteger(Number(state.get("step"))) && Number(state.get("step")) > 0 ? Number(state.get("step")) - 1 : null;
  view.drawing = state.get("drawing") === "heat" ? "heat" : "lines";
  view.beside = headByName.get(state.get("beside")) ?? null;
  readSelects(state);
  byId("text").value = ask.text;
  byId("other").value = ask.other;
  byId("second").open = Boolean(ask.other);
  return headByName.get(state.get("head")) ?? null;
}

// ---------------------------------------------------------------- ready pairs of sentences

// A choice for each pair of a contrast that this model may be asked about; its value is the place in LIVE.contrasts.
function drawPairs() {
  byId("ready").hidden = !LIVE.contrasts.length;
  const groups = LIVE.contrasts.map(({ name, about, pairs }, i) =>
    el("optgroup", { label: `${name}: ${about}` }, pairs.map(([one, other], j) => el("option", { value: `${i},${j}` }, `${one} | ${other}`))),
  );
  byId("pair").append(el("option", { value: "" }, "choose one"), ...groups);
  byId("pair").addEventListener("change", () => {
    const [i, j] = byId("pair").value.split(",").map(Number);
    const pair = LIVE.contrasts[i]?.pairs[j];
    if (!pair) return;
    [byId("text").value, byId("other").value] = [ask.text, ask.other] = pair;
    ask.patched.clear();
    Object.assign(ask, { prefix: [], step: null });
    paintHeads();
    update();
  });
}

// Which ready pair is asked about, "" for sentences of the reader's own.
function pairNow() {
  const places = LIVE.contrasts.flatMap(({ pairs }, i) => pairs.map(([one, other], j) => [one === ask.text && other === ask.other, `${i},${j}`]));
  return places.find(([same]) => same)?.[1] ?? "";
}

// ---------------------------------------------------------------- the page

function drawTitle() {
  const model = LIVE.models[LIVE.number];
  byId("place").textContent = ["headgates", model.label].join(" · ");
  byId("title").textContent = "Try it on your own sentence";
  byId("go").textContent = LIVE.translates ? "Translate" : "Label";
  if (!LIVE.translates) byId("text").placeholder = "Type a sentence, or two with ||| between them, and press Enter";
  const heads = `${plural(TOTAL, "head")}${model.start.length ? `, of which the run has closed ${model.start.length}` : ""}.`;
  byId("summary").replaceChildren(heads + " ");
  if (LIVE.models.length > 1) {
    const other = LIVE.models[1 - LIVE.number];
    const go = (event) => {
      event.preventDefault();
      location.href = `/?token=${LIVE.token}&model=${1 - LIVE.number}${location.hash}`;
    };
    byId("summary").append("Beside it: ", el("a", { href: `/?token=${LIVE.token}&model=${1 - LIVE.number}`, id: "other-model", onclick: go }, `${other.label}, show its heads`));
  }
}

function open() {
  drawTitle();
  drawTheme();
  drawMap();
  drawControls();
  drawPairs();
  byId("controls").addEventListener("change", update); // pictures of attention need all of it
  byId("heads-title").textContent = "Heads";
  byId("hint").textContent =
    "Click a head to see it, and again to close or open it. Keys: arrows move, Enter shows, x closes or opens. The address of this page holds all of it; " +
    "back undoes. L1H5 is head 5 of layer 1 of its kind of attention; both count from 0.";
  const submit = (form, act) =>
    byId(form).addEventListener("submit", (event) => {
      event.preventDefault();
      act();
    });
  submit("ask", () => begin(byId("text").value.trim()));
  submit("ask-other", () => {
    ask.other = byId("other").value.trim();
    ask.patched.clear();
    ask.prefix = [];
    paintHeads();
    update();
  });
  byId("map").addEventListener("keydown", (event) => {
    const mark = event.target.closest("button.mark");
    if (event.key !== "x" || !mark) return;
    const head = headByName.get(mark.dataset.name);
    if (head !== view.head) choose(head, false);
    turn(head);
    mark.focus();
  });
  byId("card").addEventListener("click", markQuery); // lines or heat map
  byId("card").addEventListener("keydown", (event) => {
    if (event.key === "Escape") view.head.mark.focus();
  });
  const enter = () => {
    choose(read() ?? view.head ?? data.heads[0], false);
    paintHeads();
    update();
  };
  onWidth(fitMap);
  onAddress(enter);
  document.documentElement.dataset.ready = Math.round(performance.now());
}

open();
