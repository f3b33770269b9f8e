// The shapes of pruned models: a drawing for each, a row for each layer. A head is a square, a feed-forward layer a bar.

const PARTS_OF_LAYER = [
  ["self-attention", /-self$/],
  ["cross-attention", /^cross$/],
  ["feed-forward", /-ffn$/],
];
const SQUARE = 7; // and 2 between them; so many stand in a line:
const IN_LINE = 8;
const BAR = 60; // of a whole feed-forward layer

// Planned models are on every page, others on their own and where the slider chose them.
const isShown = ({ run, everywhere }) => everywhere || (run !== null && [data.opens_with, view.state.run].includes(run));

function drawShapes() {
  const own = (shape) => shape.run !== null && shape.run === data.opens_with;
  const shown = (data.shapes ?? []).filter(isShown).sort((a, b) => own(b) - own(a));
  byId("shapes").hidden = !shown.length;
  byId("shapes-body").replaceChildren(...shown.map(shapeDrawing));
}

function shapeDrawing({ label, sentence, words, shape }) {
  const layers = new Map(); // "encoder 0" -> its sites
  const layerOf = (stack, number) => {
    const name = `${stack} ${number}`;
    if (!layers.has(name)) layers.set(name, { stack, number: Number(number), name, sites: [] });
    return layers.get(name);
  };
  for (const site of Object.keys(shape.of)) {
    const [stack, number, kind] = site.split(".");
    layerOf(stack, number).sites.push({ site, kind });
  }
  const dropped = ({ stack, number }) => (shape.dropped[stack] ?? []).includes(number);
  for (const [stack, numbers] of Object.entries(shape.dropped)) for (const number of numbers) layerOf(stack, number);
  const rows = [...layers.values()].sort((a, b) => (a.stack === "decoder") - (b.stack === "decoder") || a.number - b.number);
  const columns = PARTS_OF_LAYER.filter(([, is]) => rows.some(({ sites }) => sites.some(({ kind }) => is.test(kind))));
  const widest = Math.max(...Object.entries(shape.of).map(([site, count]) => (site.endsWith("-ffn") ? count : 0)));
  const cellOf = (layer, is) => {
    const found = layer.sites.find(({ kind }) => is.test(kind));
    return el("td", {}, found ? unitsDrawing(shape.open[found.site], shape.of[found.site], found.kind.endsWith("-ffn") ? widest : 0) : null);
  };
  const body = rows.map((layer) => {
    const second = layer.stack === "decoder" && layer === rows.find(({ stack }) => stack === "decoder") && layer !== rows[0];
    const name = el("th", { scope: "row", title: `${layer.stack} layer ${layer.number}`, "aria-label": `${layer.stack} layer ${layer.number}` }, layer.stack[0].toUpperCase() + layer.number);
    const cells = dropped(layer) ? el("td", { colspan: columns.length, class: "dropped" }, "dropped") : columns.map(([, is]) => cellOf(layer, is));
    return el("tr", { class: second ? "second" : null }, name, cells);
  });
  const names = el("tr", {}, el("td"), columns.map(([words]) => el("th", { scope: "col" }, words)));
  const drawing = el("table", { "aria-label": `shape: ${label}` }, el("thead", {}, names), el("tbody", {}, body));
  return el("article", {}, el("h3", {}, label), note(sentence ?? words), sentence ? note(words) : null, drawing);
}

// So many of so many: squares for heads, a bar for neurons, whose whole is as long as its share of the widest layer.
function unitsDrawing(open, of, widest) {
  const square = (i) => `M${(i % IN_LINE) * (SQUARE + 2)},${Math.floor(i / IN_LINE) * (SQUARE + 2)}h${SQUARE}v${SQUARE}h-${SQUARE}z`;
  const squares = (from, to) => Array.from({ length: to - from }, (_, i) => square(from + i)).join("");
  const bar = (width) => `M0,0h${width.toFixed(1)}v${SQUARE}h-${width.toFixed(1)}z`;
  const [stays, gone] = widest ? [bar((BAR * open) / widest), bar((BAR * of) / widest)] : [squares(0, open), squares(open, of)];
  const wide = widest ? BAR : Math.min(of, IN_LINE) * (SQUARE + 2) - 2;
  const high = widest ? SQUARE : Math.ceil(of / IN_LINE) * (SQUARE + 2) - 2;
  const size = { width: Math.max(wide, 1), height: Math.max(high, 1) };
  const drawing = svg(size.width, size.height, { ...size, ...HIDDEN }, el("path", { class: "gone", d: gone }), el("path", { class: "stays", d: stays }));
  return [drawing, `${open.toLocaleString("en")}/${of.toLocaleString("en")}`];
}
