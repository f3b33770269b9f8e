// Tables that sort on a click on a column's name; rows without a value stay last. A table is built when its tab is first opened.

const WORDS = {
  lambda: "λ",
  bleu: "BLEU",
  bleu_low: "BLEU low",
  bleu_high: "BLEU high",
  chrf: "chrF",
  p_value: "p",
  p_value_holm: "p (Holm)",
  p_sacrebleu: "p (sacreBLEU)",
  p_value_vs_base: "p against base",
  p_value_vs_reference: "p against reference",
  heads_open: "open heads",
  heads_total: "of heads",
  low: "95% from",
  high: "95% to",
  value: METRIC,
  base_value: `${METRIC} of the base`,
  n: "tested",
  at_first: "at first",
  lifetime_specialised: "lifetime with a role",
  lifetime_others: "lifetime without",
  ways: "permutations",
  spearman: "Spearman ρ",
  bleu_difference: "BLEU difference",
  chrf_difference: "chrF difference",
};
const OF_SYSTEMS = ["run", "label", "asked", "heads_open", "heads_total", "enc-self", "dec-self", "cross"];
const AFTER_SCORES = ["p_value_vs_reference", "p_value_vs_base", "parameters", "seconds"];
const TABLES = [
  ["Heads", headRows],
  ["States", stateRows],
  ["Systems", systemRows],
  ["Comparison", () => generic((data.comparisons ?? []).flatMap(({ name, points }) => points.map((point) => ({ comparison: name, ...point }))))],
  ["Tried", () => generic((data.states ?? []).flatMap(({ run, path }) => (path ?? []).map((each) => ({ run, ...each }))))],
  ["Causes", () => generic(data.causes?.rows)],
  ["Pairs of heads", () => generic(data.causes?.pairs)],
  ["Causal gates", () => generic(data.causes?.gating?.heads)],
  ["Contrasts", () => generic((data.contrasts ?? []).flatMap(({ name, rows }) => rows.map((row) => ({ contrast: name, ...row }))))],
  ["Survival", () => generic(data.survival)],
  ["Survival test", () => generic(data.tests)],
  ["Correlations", () => generic(data.correlations)],
]
  .map(([name, rows]) => ({ name, made: withContent(rows()) }))
  .filter(({ made }) => made.rows.length && made.columns.length);

// Without the columns in which no row has anything.
function withContent({ columns, rows }) {
  const empty = (value) => value === null || value === undefined || value === "";
  return { rows, columns: columns.filter((column) => rows.some((row) => !empty(column.get(row)))) };
}

function headRows() {
  const last = [...SERIES.values()][0]?.filter((state) => !state.unpruned) ?? [];
  const columns = [
    { words: "head", get: (head) => head.name, order: data.heads.map((head) => head.name) },
    { words: "roles", get: (head) => head.roles.map((role) => roleWords(role.role)).join(", ") },
    { words: "score", get: (head) => head.roles[0]?.score, digits: 2 },
    ...CARD_MEASURES.map(({ key, words, digits, what }) => ({ words, get: (head) => head[key], digits, title: what })),
    { words: "p (Holm)", get: (head) => head.ablation?.p_value_holm, show: pValue },
    last.length > 1
      ? { words: `open in`, title: `of ${last.length} states`, get: (head) => last.filter((state) => isOpen(head, state)).length }
      : null,
  ].filter(Boolean);
  return { columns, rows: data.heads };
}

function stateRows() {
  return generic((data.states ?? []).map(({ open, words, against, path, ...rest }) => rest));
}

function systemRows() {
  const rows = (data.systems ?? []).map((row) => ({ ...row, ...(row.heads_by_kind ?? {}) }));
  // every metric has a signature, also those that the user brought
  const metrics = new Set(rows.flatMap((row) => Object.keys(row).filter((key) => `${key}_signature` in row)));
  const scores = [...metrics].flatMap((metric) => [metric, `${metric}_difference`]);
  return generic(rows, [...OF_SYSTEMS, ...scores, ...AFTER_SCORES].filter((key) => rows.some((row) => row[key] !== null && row[key] !== undefined)));
}

// A column for each of `keys`, or without any for each key of the rows whose value is no object.
function generic(rows, keys = []) {
  rows = rows ?? [];
  if (!keys.length)
    keys = [...new Set(rows.flatMap((row) => Object.keys(row).filter((key) => row[key] === null || typeof row[key] !== "object")))];
  const digits = (key) => (/bleu|chrf|accuracy/.test(key) ? 2 : /second/.test(key) ? 0 : 3);
  const columns = keys.map((key) => {
    const words = WORDS[key] ?? key.replace(/_/g, " ");
    return { words, get: (row) => row[key], digits: digits(key), show: /^p_value/.test(key) ? pValue : key === "lambda" ? (value) => (isNumber(value) ? plainly(value) : "") : null };
  });
  return { rows, columns };
}

function drawTabs() {
  byId("tables").hidden = !TABLES.length;
  if (!TABLES.length) return;
  byId("tabs").replaceChildren(
    ...TABLES.map(({ name }, i) => button({ role: "tab", id: "tab" + i, "aria-controls": "table", onclick: () => openTab(i) }, name)),
  );
  byId("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const i = [...byId("tabs").children].indexOf(document.activeElement);
    if (step && i >= 0) {
      const to = (i + step + TABLES.length) % TABLES.length;
      openTab(to);
      byId("tab" + to).focus();
    }
  });
  openTab(0);
}

function openTab(i) {
  [...byId("tabs").children].forEach((tab, j) => {
    tab.setAttribute("aria-selected", i === j);
    tab.tabIndex = i === j ? 0 : -1;
  });
  byId("table").setAttribute("aria-labelledby", "tab" + i);
  const known = TABLES[i];
  known.element ??= table(known.name, known.made);
  byId("table").replaceChildren(known.element);
  markRow();
}

const shownTable = () => TABLES[[...byId("tabs").children].findIndex((tab) => tab.getAttribute("aria-selected") === "true")];

// The table that is shown, with its numbers as they are, in the order of its rows.
function tableAsCsv() {
  const { columns, rows } = shownTable().made;
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value);
  const lines = [columns.map(({ words }) => words), ...rows.map((row) => columns.map(({ get }) => get(row) ?? ""))];
  return lines.map((cells) => cells.map((value) => quoted(String(value))).join(",") + "\n").join("");
}

function table(name, { columns, rows }) {
  const body = el("tbody");
  const numeric = columns.map((column) => rows.some((row) => isNumber(column.get(row))));
  for (const column of columns)
    if (rows.every((row) => !isNumber(column.get(row)) || Number.isInteger(column.get(row)))) column.digits = undefined;
  const lines = rows.map((row) => {
    const cells = columns.map((column, i) => cell(row, column, numeric[i]));
    return { row, element: el("tr", headByName.has(row.name) ? { "data-name": row.name } : {}, cells) };
  });
  const heads = columns.map((column, i) => {
    const attributes = { scope: "col", class: numeric[i] ? "number" : null, title: column.title };
    return el("th", attributes, button({ onclick: () => sort(i) }, column.words, el("span", { class: "arrow", ...HIDDEN })));
  });
  const fill = () => body.append(...lines.map(({ element }) => element));
  function sort(i) {
    const value = ({ row }) => {
      const got = columns[i].get(row);
      return columns[i].order ? columns[i].order.indexOf(got) : got === "" ? null : (got ?? null);
    };
    const was = heads[i].getAttribute("aria-sort");
    const down = was ? was === "ascending" : numeric[i]; // numbers start with the largest
    for (const other of heads) other.removeAttribute("aria-sort");
    heads[i].setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => (isNumber(a) && isNumber(b) ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    lines.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      return x === null || y === null ? (x === null) - (y === null) : down ? order(y, x) : order(x, y);
    });
    fill();
  }
  fill();
  return el("table", { "aria-label": name }, el("thead", {}, el("tr", {}, heads)), body);
}

function cell(row, column, numeric) {
  const value = column.get(row);
  const words = column.show ? column.show(value) : typeof value === "boolean" ? (value ? "yes" : "no") : text(value, column.digits);
  if (!column.order) return el("td", { class: numeric ? "number" : null }, words);
  return el("td", {}, button({ class: "link", onclick: () => choose(row, true) }, ofHead(chip(row.family, "chip small"), row), words), " ", span("short", row.short));
}

function showRow(head) {
  openTab(TABLES.findIndex(({ name }) => name === "Heads"));
  const row = byId("table").querySelector(`tr[data-name="${CSS.escape(head.name)}"]`);
  byId("table").scrollTop = row.offsetTop - byId("table").clientHeight / 2;
  row.querySelector("button").focus({ preventScroll: true });
}

function markRow() {
  for (const line of document.querySelectorAll("#table tr[data-name]")) line.classList.toggle("on", line.dataset.name === view.head?.name);
}
