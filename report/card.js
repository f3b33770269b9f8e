// The card of one head: its roles against their baselines, its numbers among the heads of its kind, its gates, where it looks. A second head's card
// stands beside it where the reader keeps one.

// What a card shows below its title, from top to bottom; each gives an element, several, or null.
const CARD_PARTS = [attentionPart, costlyPart, rolesPart, exactPart, measuresPart, statesPart, pathPart, offsetsPart];
const idOf = (id, head) => (head === view.beside && head !== view.head ? `${id}-beside` : id);

function drawCard() {
  const heads = [...new Set([view.head, view.beside].filter(Boolean))];
  document.querySelector("main").classList.toggle("two", heads.length > 1);
  byId("card").replaceChildren(...heads.map(headCard));
  placeCard();
}

function headCard(head) {
  const pruned = (SERIES.get(view.series) ?? []).filter((state) => !state.unpruned);
  const only = pruned.length === 1 ? `, ${isOpen(head, pruned[0]) ? "open" : "closed"} with ${pruned[0].label}` : "";
  const place = `${kindWords(head)}, layer ${head.layer}, head ${head.head}${only}`;
  const name = el("b", { id: idOf("card-name", head) }, head.before ? `${head.name}, before heads went ${head.before}` : head.name);
  return el(
    "article",
    { class: "head-card", "aria-labelledby": idOf("card-title", head) },
    el(
      "div",
      { class: "card-head" },
      ofHead(chip(head.family, "chip big"), head),
      el("div", {}, el("h2", { id: idOf("card-title", head), tabindex: "-1" }, cardFinding(head)), note([name, ` · ${head.short} · ${place}`])),
    ),
    el("div", { class: "keys" }, besideButton(head)),
    CARD_PARTS.map((each) => each(head)),
  );
}

// Keeps a head, so that the next one is shown beside it, or lets the kept one go.
function besideButton(head) {
  const kept = view.beside === head;
  if (view.beside && !kept) return null;
  const onclick = () => {
    view.beside = kept ? null : head;
    paintChosen();
    redraw({}, "#keep-beside, #keep-beside-beside");
  };
  const words = !kept ? "Compare with another head" : head === view.head ? "Click another head; or stop comparing" : "Stop comparing";
  return button({ class: "download", id: idOf("keep-beside", head), "aria-pressed": kept, onclick }, words);
}

// The card stays in view while the page scrolls: by its top, or by its end where it is taller than the window.
function placeCard() {
  const card = byId("card");
  card.style.top = Math.min(16, innerHeight - card.offsetHeight - 16) + "px";
}

// What is known of the head, in a line: its role, and what it costs.
function cardFinding(head) {
  const role = head.roles.length ? roleWords(head.roles[0].role) : null;
  const measure = MEASURES.find(({ key, costs }) => costs && isNumber(head[key])) ?? MEASURES[0];
  const begun = (words) => words[0].toUpperCase() + words.slice(1);
  if (!isNumber(head[measure.key])) return role ? begun(role) : head.name;
  const place = 1 + data.heads.filter((other) => other[measure.key] > head[measure.key]).length;
  const cost = head[measure.key] < 0 ? "the loss is lower without it" : `costs ${text(head[measure.key], 2)} nats, ${ordinal(place)} of ${TOTAL}`;
  return begun(role ? `${role}; ${cost}` : cost);
}

function part(title, ...content) {
  return el("section", {}, el("h3", {}, title), content);
}

const kindWords = (head) => KIND_WORDS[head.kind] ?? head.kind;

function rolesPart(head) {
  if (!head.roles.length) return null;
  const highest = Math.max(1, ...head.roles.flatMap((role) => [role.score, role.baseline]).filter(isNumber));
  const share = (value) => Math.max(0, value) / highest;
  const rows = head.roles.map((role) => {
    const family = familyOf(role);
    const hasBaseline = isNumber(role.baseline);
    const mark = hasBaseline ? el("i", { style: { "--at": share(role.baseline) } }) : null;
    return el(
      "li",
      { class: "f-" + family.id },
      chip(family),
      span("what", roleWords(role.role)),
      span("number", text(role.score, 2) + (hasBaseline ? `, baseline ${text(role.baseline, 2)}` : "")),
      isNumber(role.score) ? bar("bullet", share(role.score), mark) : null,
      role.words ? span("note", String(role.words)) : null,
    );
  });
  const baselines = head.roles.some((role) => isNumber(role.baseline));
  return part(
    head.roles.length > 1 ? "Roles" : "Role",
    el("ul", { class: "roles" }, rows),
    baselines ? note("Bar: score; upright line: baseline.") : null,
  );
}

// What was measured without the head, which no score estimates: what measured it, the table and the drawings that have it, the heads that back it up.
function exactPart(head) {
  const measured = data.measured ?? {};
  const { p_value: p, p_value_holm: holm } = head.ablation ?? {};
  const table = measureTable(head, CARD_MEASURES.filter(({ exact }) => exact));
  if (LIVE) return table ? part("Exact effects", table) : null;
  const pValues = [isNumber(p) ? `p ${pValue(p)}` : null, isNumber(holm) ? `Holm ${pValue(holm)}` : null].filter(Boolean).join(", ");
  const words = [
    isNumber(head.loss) ? `Loss: ${measured.loss ? `${plural(measured.loss.pairs, "training pair")}, ${measured.loss.file}` : "training pairs"}.` : `Loss without it: ${command("analyze")} --causes.`,
    isNumber(head.fall) ? `${METRIC}: the test set, ${measured.metric?.file ?? "ablation/one.csv"}${pValues ? `; ${pValues}` : ""}.` : `${METRIC} without it: ${command("analyze")} --ablate one.`,
  ];
  const go = (id, place, show) => {
    const onclick = () => {
      show?.();
      byId(place).scrollIntoView({ behavior: smoothly(), block: "start" });
    };
    return button({ class: "link", id: idOf(id, head), onclick }, id === "to-table" ? "In the table of heads" : "Among the scores");
  };
  const links = [table ? go("to-table", "tables", () => showRow(head)) : null, data.causes?.heads[head.name] ? go("to-causes", "causes") : null];
  const pairs = (data.causes?.pairs ?? []).filter((row) => [row.head, row.other].includes(head.name)).slice(0, 3);
  return part("Exact effects", table, note(words.join(" ")), el("p", { class: "links" }, links), pairs.length ? el("ul", { class: "note" }, pairs.map(pairLine)) : null);
}

const smoothly = () => (matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth");

function measureTable(head, measures, ...others) {
  const row = (title, words, number, ...cells) =>
    el("tr", {}, el("th", { scope: "row", title }, words), el("td", { class: "number" }, number), cells);
  const rows = measures.filter((measure) => isNumber(head[measure.key])).map((measure) => {
    const value = head[measure.key];
    const values = headsOf(head.kind).map((other) => other[measure.key]).filter(isNumber);
    const place = 1 + values.filter((other) => other > value).length;
    const placeCell = el("td", { class: "place" }, values.length > 1 ? `${ordinal(place)} of ${values.length}` : "");
    return row(measure.what, measure.words, text(value, measure.digits), el("td", {}, strip(values, value)), placeCell);
  });
  for (const [title, words, value] of others) if (isNumber(value)) rows.push(row(title, words, text(value), el("td"), el("td")));
  return rows.length ? el("table", { class: "measures" }, el("tbody", {}, rows)) : null;
}

function measuresPart(head) {
  const signedShare = ["relevance with its sign, of its layer's", "LRP signed", head.lrp_signed];
  const table = measureTable(head, CARD_MEASURES.filter(({ exact }) => !exact), signedShare);
  if (!table) return null;
  return part("Scores", table, note(`Ticks: the heads of ${kindWords(head).toLowerCase()}, lowest to highest; 1st is the highest.`));
}

function ordinal(number) {
  const end = number % 100 > 10 && number % 100 < 14 ? "th" : ({ 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th");
  return number + end;
}

function strip(values, own) {
  const low = Math.min(...values),
    high = Math.max(...values);
  const x = (value) => (4 + (high > low ? (value - low) / (high - low) : 0.5) * 92).toFixed(1);
  const ticks = values.map((value) => line(x(value), 5, x(value), 11));
  return svg(100, 16, { width: 100, height: 16, class: "strip", ...HIDDEN }, ticks, el("circle", { cx: x(own), cy: 8, r: 3.6 }));
}

function statesPart(head) {
  if (!SERIES.size) return null;
  const pruned = SERIES.get(view.series).filter((state) => !state.unpruned);
  if (pruned.length < 2) return null; // which the card's head says
  const buttons = pruned.map((state) => {
    const word = isOpen(head, state) ? "open" : "closed";
    const attributes = { class: word + (state === view.state ? " on" : ""), "aria-label": `${state.label}: ${word}; show` };
    return button({ ...attributes, onclick: () => chooseState(state) }, el("i", { class: "dot f-" + head.family.id }), state.label);
  });
  return part("Open or closed", el("ol", { class: "states" }, buttons.map((each) => el("li", {}, each))));
}

function pathPart(head) {
  const paths = Object.entries(head.gate_path ?? {}).filter(([, path]) => path.steps?.length);
  if (!paths.length) return null;
  const label = (run) => (data.states ?? []).find((state) => state.run === run)?.label ?? run;
  const [width, height] = [360, 132];
  const [left, right, top, bottom] = [30, width - 62, 8, height - 24];
  const values = paths.flatMap(([, path]) => path.log_alpha).filter(isNumber);
  const [low, high] = [Math.min(-1, ...values), Math.max(1, ...values)];
  const last = Math.max(...paths.flatMap(([, path]) => path.steps));
  const x = (step) => left + (step / Math.max(1, last)) * (right - left);
  const y = (value) => bottom - ((value - low) / (high - low)) * (bottom - top);
  const ends = paths
    .map(([run, path]) => ({ run, y: y(path.log_alpha[path.log_alpha.length - 1] ?? 0), x: x(path.steps[path.steps.length - 1]) }))
    .sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => {
    end.at = i ? Math.max(end.y, ends[i - 1].at + 12) : Math.max(top + 4, end.y);
  });
  const over = Math.max(0, (ends[ends.length - 1]?.at ?? 0) - bottom);
  const strength = (run) => 0.45 + 0.55 * ((paths.findIndex(([name]) => name === run) + 1) / paths.length);
  const drawPath = ([run, { steps, log_alpha: values }]) => {
    const points = steps.map((step, i) => (isNumber(values[i]) ? `${x(step).toFixed(1)},${y(values[i]).toFixed(1)}` : null));
    const name = "line" + (view.state.run === run ? " on" : "");
    return el("path", { class: name, "stroke-opacity": strength(run), d: "M" + points.filter(Boolean).join("L") });
  };
  const endWords = ends.map((end) => `${label(end.run)}: log alpha ends ${end.y <= y(0) ? "above 0, open" : "below 0, closed"}`);
  const drawn = [
    line(left, y(0), right, y(0), { class: "zero" }),
    writeBefore(left - 6, y(0) + 4, "0"),
    writeBefore(left - 6, top + 8, text(high, 0)),
    y(low) - y(0) > 16 ? writeBefore(left - 6, bottom, text(low, 0)) : null,
    write(left, height - 6, "step 0"),
    writeBefore(right, height - 6, last.toLocaleString("en")),
    paths.map(drawPath),
    ends.map((end) => write(end.x + 6, end.at + 4 - over, label(end.run), { class: view.state.run === end.run ? "on" : null })),
  ];
  const attributes = { class: "paths f-" + head.family.id, role: "img", "aria-label": endWords.join("; ") };
  return part("Gate while training", svg(width, height, attributes, drawn), note("log α of the gate; above 0 it ends open."));
}

function offsetsPart(head) {
  const offsets = (head.offsets ?? []).filter(([, share]) => isNumber(share)).slice(0, 5);
  if (!offsets.length) return null;
  const rows = offsets.map(([offset, share]) => {
    const name = "f-" + (share >= 0.9 ? "positional" : "none");
    return el("li", { class: name }, span("number", signed(offset, 0)), bar("bullet", share), span("number", percent(share)));
  });
  return part("Offsets of its largest weights", el("ul", { class: "offsets" }, rows));
}
