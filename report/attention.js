// A head's attention on a sentence: lines from each query to its keys, or a heat map with a cell for each pair.

const FAINTEST = 0.03; // of a weight whose line is drawn

function attentionPart(head) {
  const examples = (data.examples ?? [])
    .map((example, number) => ({ example, number }))
    .filter(({ example }) => example.weights?.[head.site]?.[head.head]);
  if (!examples.length) return null;
  const { example } = examples.find(({ number }) => number === view.sentence) ?? examples[0];
  const chosen = (name, words) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": view.drawing === name,
        onclick: () =>
          redraw(() => {
            view.drawing = name;
          }, `[data-drawing=${name}]`),
        "data-drawing": name,
      },
      words,
    );
  const sentences = el(
    "select",
    {
      "aria-label": "sentence",
      id: "sentence",
      onchange: (event) =>
        redraw(() => {
          view.sentence = Number(event.target.value);
        }, "#sentence"),
    },
    examples.map(({ example: other, number }) =>
      el("option", { value: number, selected: other === example }, `${number + 1}. ${sentenceOf(other.source)}`),
    ),
  );
  const weights = example.weights[head.site][head.head].map((row) => row.map((weight) => weight / 1000));
  const [queries, keys] = labels(head, example, weights);
  return part(
    "Attention",
    el(
      "div",
      { class: "bar" },
      sentences,
      el("div", { class: "switch", role: "group", "aria-label": "drawing" }, chosen("lines", "Lines"), chosen("heat", "Heat map")),
    ),
    view.drawing === "heat" ? heatMap(head, queries, keys, weights) : lines(head, queries, keys, weights),
  );
}

function redraw(change, focus) {
  change();
  drawCard();
  byId("card").querySelector(focus)?.focus();
}

function sentenceOf(pieces) {
  const whole = pieces
    .filter((piece) => !/^<.*>$/.test(piece))
    .join("")
    .replace(/▁/g, " ")
    .trim();
  return whole.length > 60 ? whole.slice(0, 58) + "…" : whole;
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

function short(piece, most = 15) {
  return piece.length > most ? piece.slice(0, most - 1) + "…" : piece;
}

function lines(head, queries, keys, weights) {
  const row = 19,
    width = 360,
    left = 122,
    right = 238,
    height = Math.max(queries.length, keys.length) * row + 26;
  const y = (i) => 32 + i * row;
  const direction = head.kind === "cross" ? ["to produce", "source"] : ["from", "to"];
  return el(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      class: "attention f-" + head.family.id,
      role: "img",
      "aria-label": "Largest weight of each query: " + strongest(queries, keys, weights),
    },
    el("text", { x: left - 8, y: 12, "text-anchor": "end", class: "axis" }, direction[0]),
    el("text", { x: right + 8, y: 12, class: "axis" }, direction[1]),
    keys.map((key, j) => el("text", { x: right + 8, y: y(j) + 4, class: "piece" }, short(key))),
    queries.map((query, i) =>
      el(
        "g",
        { class: "query" },
        el("rect", { x: 0, y: y(i) - row / 2, width: left, height: row }),
        el("text", { x: left - 8, y: y(i) + 4, "text-anchor": "end", class: "piece" }, short(query)),
        weights[i].map((weight, j) =>
          weight < FAINTEST
            ? null
            : el("line", {
                x1: left,
                y1: y(i),
                x2: right,
                y2: y(j),
                "stroke-opacity": (0.08 + 0.92 * weight).toFixed(2),
                "stroke-width": (0.6 + 2.6 * weight).toFixed(2),
              }),
        ),
        el(
          "title",
          {},
          `${query}: ` +
            keys
              .map((key, j) => [key, weights[i][j]])
              .sort((a, b) => b[1] - a[1])
              .slice(0, 4)
              .map(([key, weight]) => `${key} ${text(weight, 2)}`)
              .join(", "),
        ),
      ),
    ),
  );
}

function heatMap(head, queries, keys, weights) {
  const left = 104,
    top = 92,
    cell = Math.min(20, (360 - left - 6) / keys.length),
    width = 360,
    height = top + queries.length * cell + 4;
  return el(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      class: "attention f-" + head.family.id,
      role: "img",
      "aria-label": "Largest weight of each query: " + strongest(queries, keys, weights),
    },
    keys.map((key, j) =>
      el("text", { class: "piece", transform: `translate(${left + (j + 0.5) * cell + 3},${top - 6}) rotate(-62)` }, short(key, 13)),
    ),
    queries.map((query, i) => [
      el("text", { x: left - 6, y: top + (i + 0.5) * cell + 4, "text-anchor": "end", class: "piece" }, short(query, 14)),
      ...weights[i].map((weight, j) =>
        el(
          "rect",
          {
            class: "cell",
            x: left + j * cell,
            y: top + i * cell,
            width: cell - 1,
            height: cell - 1,
            "fill-opacity": (0.05 + 0.95 * weight).toFixed(2),
          },
          el("title", {}, `${query} → ${keys[j]}: ${text(weight, 3)}`),
        ),
      ),
    ]),
  );
}
