// What heads do for contrasts: of each a sentence, and the heads that it needs most, each leading to its card.

const CONTRAST_HEADS = 10;
const CONTRAST_COLUMNS = { effect: "closing it costs", patch: "patched", direct: "directly" };

function drawContrasts() {
  const contrasts = data.contrasts ?? [];
  byId("contrasts").hidden = !contrasts.length;
  byId("contrasts-body").replaceChildren(...contrasts.map(contrastPart));
}

function contrastPart(contrast) {
  const rows = contrast.rows.map((row) => ({ ...row, name: `${row.site}.${row.head}` })).filter(({ name }) => headByName.has(name));
  const of = new Map(rows.map((row) => [row.name, row]));
  const names = { ...CONTRAST_COLUMNS, into: `into ${contrast.into}` };
  const columns = [{ words: "head", get: (head) => head.name, order: data.heads.map((head) => head.name) }];
  for (const [key, words] of Object.entries(names).filter(([key]) => rows.some((row) => isNumber(row[key])))) {
    const value = (head) => of.get(head.name)[key];
    const ends = (head) => [of.get(head.name)[key + "_low"], of.get(head.name)[key + "_high"]].map((end) => signed(end, 2)).join(" to ");
    columns.push({ words, get: value, digits: 2 }, { words: "95%", get: ends });
    columns.push({ words: "p (Holm)", get: (head) => of.get(head.name)[key + "_p_value_holm"], show: pValue });
  }
  const heads = rows.slice(0, CONTRAST_HEADS).map(({ name }) => headByName.get(name));
  const lines = table(`Heads for ${contrast.name}`, { columns, rows: heads });
  return el("article", {}, el("h3", {}, contrast.title), el("div", { class: "rows" }, lines), contrast.sentences.map(note));
}
