// A head's attention on a sentence: lines from each query to its keys, or a heat map with a cell for each pair.

const FAINTEST = 0.03; // the smallest weight whose line is drawn
const WIDTH = 360; // of both drawings, in units of their own: they are stretched to the card

// All sentences whose attention is there: of every head, then those on which single heads matter, of these heads alone.
const sentences = () => [...(data.examples ?? []), ...(data.sentences ?? [])];
const numbered = (head) => sentences().map((example, number) => ({ example, number })).filter(({ example }) => example.weights?.[head.site]?.[head.head]);

function attentionPart(head) {
  const examples = numbered(head);
  if (!examples.length) return null;
  const { example } = examples.find(({ number }) => number === view.sentence) ?? examples[0];
  const drawingButton = (name, words) => {
    const onclick = () => redraw({ drawing: name }, `[data-drawing=${name}]`);
    return button({ "aria-pressed": view.drawing === name, "data-drawing": name, onclick }, words);
  };
  const onchange = (event) => redraw({ sentence: Number(event.target.value) }, `#${idOf("sentence", head)}`);
  const option = ({ example: other, number }) => el("option", { value: number, selected: other === example }, `${number + 1}. ${clipped(other.text)}`);
  const [costly, others] = [true, false].map((is) => examples.filter(({ example: other }) => Boolean(other.effects) === is).map(option));
  const select = el(
    "select",
    { "aria-label": "sentence", id: idOf("sentence", head), onchange },
    others,
    costly.length ? el("optgroup", { label: "This head matters most on" }, costly) : null,
  );
  const drawings = [drawingButton("lines", "Lines"), drawingButton("heat", "Heat map")];
  const weights = example.weights[head.site][head.head].map((row) => row.map((weight) => weight / 1000));
  const [queries, keys] = labels(head, example, weights).map(readable);
  const [height, drawn] = (view.drawing === "heat" ? heatMap : lines)(head, queries, keys, weights);
  const words = "Largest weight of each query: " + strongest(queries, keys, weights);
  return part(
    "Attention",
    el("div", { class: "bar" }, LIVE ? null : select, el("div", { class: "switch", role: "group", "aria-label": "drawing" }, drawings)),
    svg(WIDTH, height, { class: "attention f-" + head.family.id, role: "img", "aria-label": words }, drawn),
    LIVE || head === view.beside ? null : note(`Your own sentences: ${command("explore")}; or here, one a line of a file: ${command("analyze")} --examples-from FILE`),
  );
}

// The sentences on which closing this head alone costs most; a click draws its attention there.
function costlyPart(head) {
  const rows = numbered(head)
    .filter(({ example }) => isNumber(example.effects?.[head.name]))
    .sort((a, b) => b.example.effects[head.name] - a.example.effects[head.name])
    .map(({ example, number }) => {
      const onclick = () => redraw({ sentence: number }, `[data-sentence="${number}"]`);
      const words = clipped(example.text, 200);
      return el("li", {}, button({ class: "link", "aria-pressed": number === view.sentence, "data-sentence": number, onclick }, span("number", signed(example.effects[head.name], 2)), " ", words));
    });
  if (!rows.length) return null;
  const facts = data.settings?.facts?.sentences;
  const of = facts ? `, of ${plural(facts.sentences, "short sentence")}` : "";
  return part("It matters most on", el("ol", { class: "costly" }, rows), note(`Nats that closing this head alone adds to the loss of the sentence's reference: exact${of}. A click draws its attention there.`));
}

// Draw the cards again with a changed view; the element that was used keeps the focus.
function redraw(change, focus) {
  Object.assign(view, change);
  drawCard();
  if (view.show === "attention") {
    drawPictures();
    drawLegend();
  }
  keep();
  byId("card").querySelector(focus)?.focus({ preventScroll: true });
}

const clipped = (text, most = 60) => (text.length > most ? text.slice(0, most - 2) + "…" : text);

// Pieces as they are read: a word as it is, what goes on a word with a hyphen. Of other tokenizers the pieces themselves.
function readable(pieces) {
  if (!pieces.some((piece) => piece.startsWith("▁"))) return pieces;
  return pieces.map((piece) => (piece.startsWith("▁") ? piece.slice(1) || "␣" : /^[\p{L}\p{N}]/u.test(piece) ? "-" + piece : piece));
}

// Queries are rows. Encoder heads look from source to source, decoder heads from target to target, cross heads from target to source.
function labels(head, example, weights) {
  const queries = head.kind === "enc-self" ? example.source : (head.kind === "cross" && example.produced) || example.target,
    keys = head.kind === "dec-self" ? example.target : example.source;
  return [fitted(queries, weights.length, head.kind !== "enc-self"), fitted(keys, weights[0]?.length ?? 0, head.kind === "dec-self")];
}

// The weights count the end of the source and the beginning of the target, which the pieces may leave out.
function fitted(pieces, length, begins) {
  if (pieces.length + 1 === length) return begins ? ["<s>", ...pieces] : [...pieces, "</s>"];
  return [...Array(length).keys()].map((i) => pieces[i] ?? `(${i})`);
}

function strongest(queries, keys, weights) {
  return queries
    .map((query, i) => {
      const most = Math.max(...weights[i]);
      return `${query} → ${keys[weights[i].indexOf(most)]} ${text(most, 2)}`;
    })
    .join("; ");
}

const short = (piece, most = 15) => (piece.length > most ? piece.slice(0, most - 1) + "…" : piece);

// Both drawings return their height and their elements.
function lines(head, queries, keys, weights) {
  const [row, left, right] = [19, 122, 238];
  const y = (i) => 32 + i * row;
  const [fromWords, toWords] = head.kind === "cross" ? ["to produce", "source"] : ["from", "to"];
  const most = (i) => {
    const pairs = keys.map((key, j) => [key, weights[i][j]]).sort((a, b) => b[1] - a[1]);
    return pairs.slice(0, 4).map(([key, weight]) => `${key} ${text(weight, 2)}`).join(", ");
  };
  const stroke = (weight) => ({ "stroke-opacity": (0.08 + 0.92 * weight).toFixed(2), "stroke-width": (0.6 + 2.6 * weight).toFixed(2) });
  const drawn = [
    writeBefore(left - 8, 12, fromWords, { class: "axis" }),
    write(right + 8, 12, toWords, { class: "axis" }),
    keys.map((key, j) => write(right + 8, y(j) + 4, short(key), { class: "piece" })),
    queries.map((query, i) =>
      el(
        "g",
        { class: "query", "data-query": i },
        el("rect", { x: 0, y: y(i) - row / 2, width: left, height: row }),
        writeBefore(left - 8, y(i) + 4, short(query), { class: "piece" }),
        weights[i].map((weight, j) => (weight < FAINTEST ? null : line(left, y(i), right, y(j), stroke(weight)))),
        el("title", {}, `${query}: ${most(i)}`),
      ),
    ),
  ];
  return [Math.max(queries.length, keys.length) * row + 26, drawn];
}

function heatMap(head, queries, keys, weights) {
  const [left, top] = [104, 92];
  const cell = Math.min(20, (WIDTH - left - 6) / keys.length);
  const size = { class: "cell", width: cell - 1, height: cell - 1 };
  const keyAt = (j) => `translate(${left + (j + 0.5) * cell + 3},${top - 6}) rotate(-62)`;
  const drawn = [
    keys.map((key, j) => el("text", { class: "piece", transform: keyAt(j) }, short(key, 13))),
    queries.map((query, i) => [
      writeBefore(left - 6, top + (i + 0.5) * cell + 4, short(query, 14), { class: "piece" }),
      weights[i].map((weight, j) => {
        const place = { x: left + j * cell, y: top + i * cell, "fill-opacity": (0.05 + 0.95 * weight).toFixed(2) };
        return el("rect", { ...size, ...place }, el("title", {}, `${query} → ${keys[j]}: ${text(weight, 3)}`));
      }),
    ]),
  ];
  return [top + queries.length * cell + 4, drawn];
}
