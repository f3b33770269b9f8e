// The picture that explore's page saves: the sentence, what the model says, the head map and the chosen head's attention, as one SVG.

const PICTURE = 900; // its width, in pixels

function pictureFile() {
  const drawing = picture();
  drawing.classList.add("unseen");
  document.body.append(drawing); // styles are computed of what stands in the page
  try {
    return svgFile(drawing);
  } finally {
    drawing.remove();
  }
}

function picture() {
  const drawn = [];
  let y = 34;
  const say = (words, attributes) => {
    for (const part of wrapped(words, attributes.class === "picture-text" ? 84 : 120)) {
      drawn.push(write(24, y, part, attributes));
      y += attributes.class === "picture-text" ? 24 : 19;
    }
  };
  const { own } = answers;
  say(ask.text || "no sentence", { class: "picture-text" });
  if (own) {
    const row = (words, said) => {
      y += 8;
      say(`${words} · ${text(said.loss, 2)} nats`, { class: "picture-note" });
      say(said.text || "(nothing)", { class: "picture-text" });
      const pieces = readable(said.tokens.map(({ piece }) => piece));
      say(said.tokens.map((token, i) => `${pieces[i]} ${share(token.p)}`).join(", "), { class: "picture-note" });
    };
    row(startWords(LIVE.number), own.whole);
    if (isChanged(LIVE.number)) row(changeWords(LIVE.number), own.now);
    y += 6;
    if (byId("why").textContent) say(byId("why").textContent, { class: "picture-note" });
  }
  const top = y + 22;
  const [maps, low] = pictureMap(top);
  const shown = byId("card").querySelector("svg.attention");
  let high = top;
  if (shown) {
    const copy = shown.cloneNode(true);
    const height = shown.viewBox.baseVal.height;
    for (const [name, value] of Object.entries({ x: PICTURE - WIDTH - 24, y: top + 14, width: WIDTH, height })) copy.setAttribute(name, value);
    drawn.push(write(PICTURE - WIDTH - 24, top, `Attention of ${view.head.name}`, { class: "picture-title" }), copy);
    high = top + 14 + height;
  }
  const height = Math.max(low, high) + 24;
  const paper = el("rect", { x: 0, y: 0, width: PICTURE, height, class: "picture-paper" });
  return svg(PICTURE, height, { width: PICTURE, height, class: "picture" }, paper, drawn, maps);
}

// The marks of the map as circles, kind below kind; returns them and where they end.
function pictureMap(top) {
  const drawn = [];
  const most = Math.max(...data.heads.map((head) => head.head)) + 1;
  const cell = Math.min(30, (PICTURE - WIDTH - 24 * 4) / most);
  let y = top;
  for (const kind of KINDS) {
    drawn.push(write(24, y, KIND_WORDS[kind] ?? kind, { class: "picture-title" }));
    y += 8;
    for (const layer of [...new Set(headsOf(kind).map((head) => head.layer))].sort((a, b) => a - b)) {
      drawn.push(write(24, y + cell / 2 + 4, String(layer), { class: "picture-note" }));
      for (const head of headsOf(kind).filter((each) => each.layer === layer)) {
        const style = getComputedStyle(head.mark.querySelector("span"));
        const shut = head.mark.classList.contains("shut");
        const circle = el("circle", { cx: 52 + (head.head + 0.5) * cell, cy: y + cell / 2, r: Math.max(3, (parseFloat(style.width) / parseFloat(getComputedStyle(head.mark).width)) * (cell / 2)) });
        circle.style.fill = shut ? "transparent" : style.backgroundColor;
        circle.style.stroke = style.borderColor;
        if (head === view.head) drawn.push(el("rect", { class: "picture-chosen", x: 52 + head.head * cell + 1, y: y + 1, width: cell - 2, height: cell - 2, rx: 6 }));
        drawn.push(circle);
        if (isBelow(view.colour, head)) drawn.push(write(52 + (head.head + 0.5) * cell, y + cell / 2 + 4, "−", { class: "picture-note", "text-anchor": "middle" }));
      }
      y += cell;
    }
    y += 26;
  }
  drawn.push(write(24, y, `Size and colour: ${[...new Set([view.size?.words, view.colour?.words])].filter(Boolean).join(", ").toLowerCase() || "none"}. Not filled: closed. −: below 0.`, { class: "picture-note" }));
  return [drawn, y];
}

function wrapped(words, most) {
  const rows = [""];
  for (const word of words.split(" ")) {
    if (rows.at(-1).length + word.length > most && rows.at(-1)) rows.push("");
    rows[rows.length - 1] += (rows.at(-1) ? " " : "") + word;
  }
  return rows;
}
