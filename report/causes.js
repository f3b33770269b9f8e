// What heads cause: a small panel for each score, with every head's place by it against its place by the exact effect, and the pairs of heads.

const PANEL = 132;
const SHOWN_PAIRS = 8;

function drawCauses() {
  const causes = data.causes;
  byId("causes").hidden = !causes;
  if (!causes) return;
  byId("causes-title").textContent = causes.title;
  byId("causes-panels").replaceChildren(...causes.names.slice(1).map((name, i) => causesPanel(causes, name, i + 1)));
  byId("causes-note").textContent =
    `Each point is a head. Across: its place by the score, the largest number to the left. Down: its place by what closing it alone adds to the ` +
    `loss, the most at the top; exact, on ${plural(causes.sentences, "training pair")}. On the diagonal a score is right. The tables below have the numbers.`;
  const shown = causes.pairs.slice(0, SHOWN_PAIRS);
  byId("pairs-title").textContent = shown.length ? pairsFinding(causes) : "";
  byId("pairs").replaceChildren(...shown.map(pairLine));
  byId("gating-title").textContent = causes.gating?.title ?? "";
  byId("gating").replaceChildren(...(causes.gating?.lines ?? []).map((line) => el("li", {}, line)));
}

function places(causes, column) {
  const names = Object.keys(causes.heads).sort((a, b) => causes.heads[b][column] - causes.heads[a][column]);
  return new Map(names.map((name, i) => [name, i]));
}

function causesPanel(causes, name, column) {
  const [across, down] = [places(causes, column), places(causes, 0)];
  const at = (place) => 6 + (place / Math.max(1, down.size - 1)) * (PANEL - 12);
  const points = [...down].map(([head, place]) => {
    const known = headByName.get(head);
    const words = `${head}: place ${across.get(head) + 1} by ${name}, ${place + 1} by its cost`;
    const attributes = { cx: at(across.get(head)), cy: at(place), r: 3, class: `cause f-${known?.family.id ?? "none"}` };
    const point = el("circle", { ...attributes, onclick: known ? () => choose(known, true) : null }, el("title", {}, words));
    return known ? ofHead(point, known) : point;
  });
  const rho = causes.rows[column].spearman;
  const said = isNumber(rho) ? `ρ ${signed(rho, 2)}` : "all alike";
  const picture = svg(PANEL, PANEL, { role: "img", "aria-label": `${name}: ${said}` }, line(6, 6, PANEL - 6, PANEL - 6, { class: "diagonal" }), points);
  return el("figure", {}, el("figcaption", {}, name, " ", el("b", {}, said)), picture);
}

// The chosen heads' points stand out.
function markPoints() {
  for (const point of document.querySelectorAll("#causes [data-of]"))
    point.classList.toggle("on", [view.head, view.beside].some((head) => head?.name === point.dataset.of));
}

function pairsFinding({ pairs, paired }) {
  const most = pairs.filter(({ interaction }) => interaction > 0)[0];
  const among = `of the pairs of ${plural(paired, "head")}`;
  if (!most) return `No two heads back each other up, ${among}`;
  return `${most.head} and ${most.other} back each other up most, ${among}`;
}

function pairLine(row) {
  const named = (name) => (headByName.has(name) ? button({ class: "link", onclick: () => choose(headByName.get(name), true) }, name) : name);
  const relation = row.interaction > 0 ? "back each other up" : "share a cost";
  const numbers = `closing both adds ${text(row.both)} nats a sentence, apart they add ${text(row.head_alone)} and ${text(row.other_alone)}`;
  return el("li", {}, named(row.head), " and ", named(row.other), ` ${relation}: ${numbers}`);
}
