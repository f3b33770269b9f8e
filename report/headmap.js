// The head map: a grid for each kind of attention, a row for each layer, a mark or a small picture of its attention for each head; the slider over
// states; the legend.

const SMALLEST = 0.5; // of a mark's full width: a letter must fit

function drawMap() {
  byId("map").replaceChildren(...KINDS.map(kindGrid));
  byId("map").addEventListener("keydown", moveFocus);
  byId("map").addEventListener("click", (event) => {
    const mark = event.target.closest("button.mark");
    if (mark) choose(headByName.get(mark.dataset.name), true);
    if (mark && event.detail === 0) byId("card-title").focus(); // a click of the keyboard: Enter or space; Escape leads back
  });
  byId("hint").textContent = "Click a head, or move with the arrow keys and press Enter, to see its card. L1H5 is head 5 of layer 1 of its kind of attention; both count from 0.";
}

function kindGrid(kind) {
  const heads = headsOf(kind);
  const layers = [...new Set(heads.map((head) => head.layer))].sort((a, b) => a - b);
  const width = Math.max(...heads.map((head) => head.head)) + 1;
  const at = new Map(heads.map((head) => [head.layer + "." + head.head, head]));
  const rows = layers.map((layer) =>
    el(
      "tr",
      { role: "row" },
      el("th", { role: "rowheader", scope: "row", "aria-label": `layer ${layer}` }, `L${layer}`),
      [...Array(width).keys()].map((number) => {
        const head = at.get(layer + "." + number);
        return el("td", { role: "gridcell" }, head ? mark(head) : null);
      }),
    ),
  );
  const title = KIND_WORDS[kind] ?? kind;
  const columns = [...Array(width).keys()].map((number) => el("th", { role: "columnheader", scope: "col", "aria-label": `head ${number}` }, `H${number}`));
  const names = el("thead", {}, el("tr", { role: "row" }, el("td", { role: "presentation" }), columns));
  const grid = el("table", { role: "grid", "aria-label": `${title}: rows are layers, columns heads` }, names, el("tbody", {}, rows));
  const heading = el("h3", {}, title, el("span", { class: "count", "data-kind": kind }));
  return el("div", { class: "kind" }, heading, el("div", { class: "scroll" }, grid));
}

function mark(head) {
  const more = head.families.length > 1 ? el("i", { class: "more f-" + head.families[1].id }) : null;
  const attributes = { class: "mark f-" + head.family.id, "data-name": head.name, "data-of": head.name, tabindex: "-1" };
  head.mark = button(attributes, el("span", {}, head.family.letter), more);
  return head.mark;
}

// Kinds stand side by side where their heads fit, else below each other with the legend at their side; pictures of attention are as large as fits.
function fitMap() {
  const heads = Math.max(...data.heads.map((head) => head.head)) + 1;
  const room = byId("board").clientWidth;
  const cell = (across) => Math.floor(((room - 24 * (across - 1)) / across - 28) / heads);
  const few = new Set(data.heads.map((head) => head.site)).size <= 6; // rows, which have room to be large
  const pictures = view.show === "attention";
  const beside = pictures || (cell(KINDS.length) >= 26 && !few);
  byId("board").classList.toggle("stacked", !beside);
  byId("map").classList.toggle("below", pictures);
  const [most, across] = pictures ? [88, 1] : [few ? 42 : beside ? 36 : 33, beside ? KINDS.length : 1];
  byId("map").style.setProperty("--cell", Math.max(26, Math.min(most, cell(across))) + "px");
}

// The chosen sentence, or the first: of one on which a head matters most, the attention of some heads alone is there.
const picturedSentence = () => (data.examples ?? [])[view.sentence] ?? data.examples?.[0];

// The attention of all heads on that sentence, a small picture in each mark; of heads that it is not known of, their marks.
function drawPictures() {
  const pictures = view.show === "attention";
  const weights = pictures ? picturedSentence()?.weights : null;
  for (const head of data.heads) {
    head.mark.querySelector("svg")?.remove();
    const rows = weights?.[head.site]?.[head.head];
    head.mark.classList.toggle("pictured", Boolean(rows));
    if (rows) head.mark.append(smallPicture(rows));
  }
}

// Queries are rows, keys columns; six strengths, as a path each.
const STRENGTHS = 6;
function smallPicture(rows) {
  const squares = Array.from({ length: STRENGTHS }, () => "");
  rows.forEach((row, i) =>
    row.forEach((weight, j) => {
      if (weight > 40) squares[Math.min(STRENGTHS - 1, Math.floor((weight / 1000) * STRENGTHS))] += `M${j},${i}h1v1h-1z`;
    }),
  );
  const paths = squares.map((d, n) => (d ? el("path", { d, "fill-opacity": ((n + 1) / STRENGTHS).toFixed(2) }) : null));
  return svg(rows[0].length, rows.length, { class: "small", preserveAspectRatio: "none", ...HIDDEN }, paths);
}

// The selects above the map: by what a head is pruned, coloured and sized.
function drawControls() {
  const sizes = KNOWN_MEASURES;
  const choice = (words, id, options, chooseValue) => {
    const elements = options.map(([value, optionWords]) => el("option", { value }, optionWords));
    return el("label", { class: "choice" }, words, el("select", { id, onchange: (event) => chooseValue(event.target.value) }, elements));
  };
  const measureOptions = sizes.map((measure) => [measure.key, measure.words]);
  // roles where many heads have one, else what is known of all
  const named = data.heads.filter((head) => head.roles.length).length;
  const roleFirst = !sizes.length || named >= TOTAL / 4;
  const colourOptions = named ? [["", "Role"], ...measureOptions] : measureOptions;
  if (!roleFirst) colourOptions.sort(([a], [b]) => (a === "") - (b === ""));
  const seriesOptions = [...SERIES.keys()].map((name) => [name, name]);
  byId("controls").append(
    SERIES.size > 1 ? choice("Pruned by ", "series", seriesOptions, chooseSeries) : "",
    colourOptions.length > 1 ? choice("Colour ", "colour", colourOptions, readControls) : "",
    sizes.length ? choice("Size ", "size", [...measureOptions, ["", "All alike"]], readControls) : "",
    LIVE || data.examples?.length ? choice("Show ", "show", [["marks", "Marks"], ["attention", "Attention"]], readControls) : "",
  );
  byId("heads-title").textContent = mapFinding();
  for (const id of ["colour", "size", "show"]) if (byId(id)) usual[id] = byId(id).value;
  readControls();
}

// Draw the map by what the selects above it say.
function readControls() {
  const chosen = (id, usually) => (byId(id) ? byId(id).value : usually);
  const known = ({ key }) => data.heads.some((head) => isNumber(head[key]));
  const measureOf = (key) => KNOWN_MEASURES.find((measure) => measure.key === key && known(measure)) ?? null;
  view.show = chosen("show", "marks");
  sizeBy(measureOf(chosen("size", "")));
  const colour = chosen("colour", KNOWN_MEASURES[0]?.key);
  // a measure of the sentence has no numbers before one is typed: the first that is on disk
  colourBy(measureOf(colour) ?? ((colour && KNOWN_MEASURES.find(known)) || null));
  fitMap();
  drawPictures();
  paintState();
}

function sizeBy(measure) {
  view.size = measure;
  for (const head of data.heads)
    head.mark.style.setProperty("--size", (measure ? SMALLEST + (1 - SMALLEST) * shareOf(measure, head) : 0.8).toFixed(3));
}

// Colour of a measure, or without one of the roles.
function colourBy(measure) {
  view.colour = measure;
  for (const head of data.heads) head.mark.classList.toggle("below", isBelow(measure, head));
  for (const element of document.querySelectorAll("[data-of]")) paint(element, headByName.get(element.dataset.of));
}

// Give what stands for a head its colour.
function paint(element, head) {
  const share = view.colour ? shareOf(view.colour, head) : 1;
  element.classList.toggle("pale", share < PALE);
  if (view.colour) element.style.setProperty("--c", heat(share));
  else element.style.removeProperty("--c");
  return element;
}

// An element that stands for a head is coloured as its mark is.
function ofHead(element, head) {
  element.dataset.of = head.name;
  return paint(element, head);
}

// What the map says in a sentence: how few heads have half of what can be added up, or else how many have a role.
function mapFinding() {
  if (data.unlearned) return "Heads";
  const measure = KNOWN_MEASURES.find(({ adds }) => adds);
  if (!measure) {
    const named = data.heads.filter((head) => head.roles.length).length;
    return named ? `${named} of ${plural(TOTAL, "head")} have a role that can be named` : "Heads";
  }
  const values = data.heads.map((head) => Math.max(0, head[measure.key] ?? 0)).sort((a, b) => b - a);
  const half = values.reduce((sum, value) => sum + value, 0) / 2;
  if (!half) return "No head costs anything when it is closed alone";
  let [few, sum] = [0, 0];
  while (few < TOTAL && sum < half) sum += values[few++];
  return `${few} of ${plural(TOTAL, "head")} account for half of ${measure.adds}`;
}

function paintState() {
  for (const head of data.heads) {
    const open = isOpen(head, view.state);
    head.mark.classList.toggle("shut", !open);
    const roles = head.roles.map((role) => `${roleWords(role.role)} ${text(role.score, 2)}`).join(", ");
    const value = head[view.size?.key];
    const size = isNumber(value) ? `; ${view.size.words.toLowerCase()} ${text(value, view.size.digits)}` : "";
    const words = `${head.name}, ${head.short}: ${roles || "no role found"}${size}; ${open ? "open" : "closed"}`;
    head.mark.title = words;
    head.mark.setAttribute("aria-label", words);
  }
  for (const count of document.querySelectorAll("#map .count")) {
    const heads = headsOf(count.dataset.kind);
    const open = heads.filter((head) => isOpen(head, view.state)).length;
    count.textContent = SHUTS ? `${open} of ${heads.length}` : plural(heads.length, "head");
  }
  drawLegend();
}

function paintChosen() {
  for (const head of data.heads) {
    const chosen = head === view.head;
    head.mark.setAttribute("aria-pressed", chosen);
    head.mark.classList.toggle("beside", head === view.beside);
    head.mark.tabIndex = chosen ? 0 : -1;
  }
}

// Arrow keys go to the nearest mark in that direction as it stands on the screen, so grids side by side or below each other are one map.
function moveFocus(event) {
  const from = event.target.closest("button.mark");
  const direction = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (!from || (!direction && event.key !== "Home" && event.key !== "End")) return;
  event.preventDefault();
  let to = null;
  if (!direction) {
    to = [...from.closest("tr").querySelectorAll("button.mark")].at(event.key === "Home" ? 0 : -1);
  } else {
    const middle = (button) => {
      const box = button.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    };
    const [x, y] = middle(from);
    const [dx, dy] = direction;
    let best = Infinity;
    for (const head of data.heads) {
      const [ox, oy] = middle(head.mark);
      const ahead = (ox - x) * dx + (oy - y) * dy;
      const aside = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
      if (ahead > 2 && aside < ahead * 2 && ahead + 4 * aside < best) {
        best = ahead + 4 * aside;
        to = head.mark;
      }
    }
  }
  if (to) {
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }
}

function drawLegend() {
  const rows = FOUND.map((family) => {
    const all = data.heads.filter((head) => hasFamily(head, family));
    const open = all.filter((head) => isOpen(head, view.state)).length;
    return el(
      "li",
      { title: family.what },
      chip(family, view.colour ? "chip bare" : "chip"),
      span("what", family.words),
      bar("meter f-" + family.id, open / all.length),
      span("number", SHUTS ? `${open} of ${all.length}` : String(all.length)),
    );
  });
  const several = data.heads.some((head) => head.families.length > 1);
  const endsOf = (measure) => {
    const values = data.heads.map((head) => head[measure.key]).filter(isNumber);
    return [Math.min(...values), Math.max(...values)];
  };
  const numbers = (measure, values) => values.map((value) => text(value, measure.digits));
  const notes = [
    view.show === "attention" && picturedSentence()
      ? `Pictures: attention on “${clipped(picturedSentence().text)}”; rows are what looks, columns what is looked at, from top and left. Frames: colour.`
      : null,
    view.show === "marks" && view.size && view.size !== view.colour
      ? `Size: ${view.size.words.toLowerCase()}, ${numbers(view.size, endsOf(view.size)).join(" to ")}.`
      : null,
    SHUTS ? (view.show === "attention" ? "Pale, with a broken frame: closed." : "Not filled: closed.") : null,
    data.heads.some((head) => isBelow(view.colour, head)) ? (view.colour.exact ? "−: below 0, the model is better without it." : "−: below 0.") : null,
    several ? "A dot in the corner: one more role." : null,
  ].filter(Boolean);
  let scale = null;
  if (view.colour) {
    const [low, high] = rangeOf(view.colour);
    const ends = numbers(view.colour, [low, low + (high - low) / 4, high]).map((words) => span("number", words));
    const stops = [0, 0.25, 0.5, 0.75, 1].map(heat).join(", ");
    const words = `${view.size === view.colour && view.show === "marks" ? "Colour and size" : "Colour"}: ${view.colour.words.toLowerCase()}${view.colour.unit ? ", " + view.colour.unit : ""}`;
    scale = el("div", { class: "scale", title: view.colour.what }, span("what", words), el("i", { style: { "--ramp": stops } }), el("div", {}, ends));
  }
  const named = FOUND.length > 1 || FOUND[0] !== NO_FAMILY;
  byId("legend").replaceChildren(
    ...[scale].filter(Boolean),
    !named ? "" : el("ul", { "aria-label": SHUTS ? "roles, and how many heads with each are open" : "roles" }, rows),
    note(notes.join(" ")),
  );
}

function drawSlider() {
  if (!SERIES.size) return;
  const states = SERIES.get(view.series);
  const last = states.length - 1;
  const every = Math.ceil(states.length / 9);
  const [value, oninput] = [states.indexOf(view.state), (event) => chooseState(states[Number(event.target.value)], false)];
  const few = last < 3; // which are buttons side by side
  const range = el("input", { type: "range", id: "state", min: 0, max: last, step: 1, value, "aria-label": "state of pruning", oninput, onchange: keep, hidden: few });
  const labels = states.map((state, i) => {
    if (i % every && i !== last) return null;
    const attributes = { "data-number": i, style: { "--at": last ? i / last : 0 }, ...(few ? {} : { tabindex: "-1", ...HIDDEN }) };
    return button({ ...attributes, onclick: () => chooseState(state) }, few && state.unpruned ? "all heads" : state.label);
  });
  byId("slider").replaceChildren(el("p", { id: "state-words" }), range, el("div", { class: few ? "ticks switch" : "ticks" }, labels));
  paintSlider();
}

function paintSlider() {
  if (!SERIES.size) return;
  const state = view.state;
  const states = SERIES.get(view.series);
  const series = byId("series");
  if (series) series.value = view.series;
  const words = [`${state.heads_open} of ${state.heads_total} heads open`, scoreWords(state)].filter(Boolean).join(" · ");
  byId("state").value = states.indexOf(state);
  byId("state").setAttribute("aria-valuetext", `${state.unpruned ? "all heads" : state.label}: ${words}`);
  byId("state-words").replaceChildren(el("strong", {}, state.unpruned ? "No pruning" : state.label), ` · ${words}`);
  for (const label of byId("slider").querySelectorAll(".ticks button")) {
    const on = states[Number(label.dataset.number)] === state;
    label.classList.toggle("on", on);
    label.setAttribute("aria-pressed", on);
  }
}

function chooseSeries(name) {
  view.series = name;
  view.state = startState();
  drawSlider();
  chooseState(view.state, false);
}

// The page opens at the smallest model that costs less than 1 point; where the score is not known, at the first pruned one.
function startState() {
  const states = SERIES.get(view.series);
  const own = states.find((state) => state.run && state.run === data.opens_with);
  if (own) return own;
  const known = states.filter((state) => isNumber(state.value));
  const best = Math.max(...known.map((state) => state.value));
  const good = known.filter((state) => !state.unpruned && state.value > best - 1);
  return good.at(-1) ?? states[1] ?? states[0];
}
