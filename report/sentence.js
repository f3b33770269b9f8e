// The sentence of explore's page: what the model says of it, as the run has it and as the reader has changed it, and each of its steps.

// What the server said last: `own` of the model of this page, `beside` of the other one.
const answers = { own: null, beside: null, effects: null };

// One row a translation: as the run has it, then as it is now; at their side those of the model beside it.
function drawRows() {
  const columns = [[LIVE.number, answers.own], [1 - LIVE.number, answers.beside]].filter(([, answer]) => answer);
  const models = columns.map(([number, answer]) => {
    const own = number === LIVE.number;
    const changed = isChanged(number);
    return el(
      "div",
      { class: "model" },
      LIVE.models.length > 1 ? el("h3", {}, LIVE.models[number].label) : null,
      row(startWords(number), answer.whole, { probabilities: changed ? answer.whole.now : null, steps: own && !changed }),
      changed ? row(changeWords(number), answer.now, { like: answer.whole, steps: own, forced: answer.forced }) : null,
    );
  });
  keepingFocus("rows", () => byId("rows").replaceChildren(...(ask.text ? [unknownNote(), ...models] : [offer()]).filter(Boolean)));
  drawWhy();
  drawStep();
}

// What there is before a sentence is typed.
function offer() {
  const sentence = LIVE.sentence;
  const example = sentence ? [" Or begin with ", button({ class: "download", id: "example", onclick: () => begin(sentence) }, sentence)] : [];
  return el("p", { class: "note", id: "offer" }, "Type a sentence and press Enter.", example);
}

// Pieces that the vocabulary does not know are alike to the model.
function unknownNote() {
  const { unknown = 0, source = [] } = answers.own ?? {};
  const all = source.filter((piece) => piece !== "▁").length - 1; // the end is none
  if (!unknown) return null;
  const words = unknown >= all ? "The model's vocabulary knows nothing of this sentence: what follows does not come from its words." : `${unknown} of ${all} pieces are unknown to the model's vocabulary, which are all alike to it.`;
  return el("p", { class: "note", id: "unknown" }, words);
}

// probabilities: those of the same tokens now; like: the translation to which this one is compared; steps: whether its tokens are buttons.
function row(words, said, { probabilities = null, like = null, steps = false, forced = 0 }) {
  const same = like ? inBoth(...[like, said].map(({ tokens }) => tokens.map(({ id }) => id))) : null;
  const pieces = readable(said.tokens.map(({ piece }) => piece));
  const tokens = said.tokens.map((token, i) => {
    const p = probabilities ? probabilities[i] : token.p;
    const both = share(p) === share(token.p) ? share(p) : `${share(token.p)} → ${share(p)}`;
    const shown = [span("piece", pieces[i]), bar("sure", p), span("p", i < forced ? "given" : both)];
    const title = `${pieces[i]}: ${probabilities ? `${share(token.p)} as the run has it, ${share(p)} now` : share(p)}`;
    const name = ["token", same && !same.has(i) ? "differs" : "", probabilities && p < token.p / 2 ? "fell" : ""].filter(Boolean).join(" ");
    if (!steps) return el("span", { class: name, title }, shown);
    return button({ class: name, title: `${title}; step ${i + 1}`, "data-step": i, "aria-pressed": i === ask.step, onclick: () => chooseStep(i) }, shown);
  });
  return el(
    "article",
    { class: like ? "now" : "whole" },
    el("p", { class: "note" }, words, ` · probability ${share(Math.exp(-said.loss))}, a loss of ${text(said.loss, 2)} nats (−ln of it)`),
    el("p", { class: "text", lang: LIVE.target, dir: "auto" }, said.text || "(nothing)"),
    el("div", { class: "tokens" }, tokens),
  );
}

const share = (p) => (p >= 0.995 ? "1" : p < 0.0005 ? "0" : text(p, p < 0.01 ? 3 : 2).replace(/^0/, ""));

function startWords(number) {
  const { start, heads } = LIVE.models[number];
  return start.length ? `As the run has it, ${heads - start.length} of ${plural(heads, "head")} open` : "All heads open";
}

function changeWords(number) {
  const { start, heads } = LIVE.models[number];
  const shut = ask.shut[number];
  const words = [];
  if (!alike(shut, new Set(start))) words.push(shut.size ? `${shut.size} of ${plural(heads, "head")} closed` : "All heads open");
  if (number === LIVE.number && ask.patched.size) words.push(`${plural(ask.patched.size, "head")} patched`);
  if (number === LIVE.number && ask.prefix.length) words.push(`from step ${ask.prefix.length} on your token`);
  return words.join(", ");
}

// Why it changed: the cost of the heads together beside the sum of their costs alone.
function drawWhy() {
  const { own, effects } = answers;
  const shut = [...ask.shut[LIVE.number]].filter((name) => !LIVE.models[LIVE.number].start.includes(name));
  const parts = [];
  if (own && (shut.length || ask.patched.size)) {
    const rise = own.whole.loss_now - own.whole.loss;
    const what = LIVE.translates ? "translation" : "label";
    parts.push(`The ${what} as the run has it costs ${text(own.whole.loss_now, 2)} nats now, ${text(own.whole.loss, 2)} before: ${signed(rise, 2)}.`);
    const alone = shut.map((name) => effects?.effect?.[name]).filter(isNumber);
    // heads that the run had closed and the reader opened are in the rise and not in the sum
    const opened = LIVE.models[LIVE.number].start.some((name) => !ask.shut[LIVE.number].has(name));
    if (shut.length > 1 && alone.length === shut.length && !ask.patched.size && !opened) {
      const sum = alone.reduce((total, value) => total + value, 0);
      const numbers = shut.length <= 4 ? `${alone.map((value) => text(value, 2)).join(" + ").replace(/\+ −/g, "− ")} = ` : "";
      const gap = rise - sum;
      const compared = Math.abs(gap) < 0.05 ? "as much as together" : gap > 0 ? `${text(gap, 2)} less than together: they back each other up` : `${text(-gap, 2)} more than together`;
      parts.push(`Closed one at a time these heads cost ${numbers}${text(sum, 2)}, ${compared}.`);
    }
  }
  byId("why").textContent = parts.join(" ");
}

// ---------------------------------------------------------------- steps

function chooseStep(step) {
  ask.step = ask.step === step ? null : step;
  keep();
  drawRows();
  markQuery();
}

function drawStep() {
  const tokens = answers.own?.now.tokens ?? [];
  const panel = byId("step");
  panel.hidden = ask.step === null || !tokens[ask.step];
  if (panel.hidden) return panel.replaceChildren();
  const focused = panel.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const step = ask.step;
  const before = answers.own.now.tokens.slice(0, step).map(({ piece }) => piece);
  const go = (key, words, to) =>
    button({ class: "download", "data-key": key, "aria-label": words, disabled: !tokens[to], onclick: () => chooseStep(to) }, key === "back" ? "←" : "→");
  const choices = tokens[step].best.map((each) => {
    const on = each.id === tokens[step].id;
    const onclick = () => force([...tokens.slice(0, step).map(({ id }) => id), each.id]);
    const name = each.piece === "</s>" ? "(end)" : readable([...before, each.piece]).at(-1);
    return el("li", {}, button({ "aria-pressed": on, disabled: !LIVE.translates, "data-key": `token-${each.id}`, onclick }, span("piece", name), bar("sure", each.p), span("p", share(each.p))));
  });
  const given = tokens[step].best.some(({ id }) => id === tokens[step].id) ? null : note(`“${readable([tokens[step].piece])[0]}” was given; its probability is ${share(tokens[step].p)}.`);
  panel.replaceChildren(
    el(
      "div",
      { class: "bar" },
      el("h3", {}, LIVE.translates ? `Step ${step + 1} of ${tokens.length}: the next token after “${readable(before).join(" ") || "<s>"}”` : "The labels"),
      el(
        "div",
        { class: "keys" },
        LIVE.translates ? [go("back", "step back", step - 1), go("on", "step on", step + 1)] : null,
        ask.prefix.length ? button({ class: "download", "data-key": "own", onclick: () => force([]) }, "Let the model choose") : null,
      ),
    ),
    el("ol", { class: "choices" }, choices),
    ...[given].filter(Boolean),
    ...(LIVE.translates ? [note("Click a token to go on from it. Lines of the attention are those of this step.")] : []),
  );
  if (focused) panel.querySelector(`[data-key="${focused}"]`)?.focus();
}

function force(prefix) {
  ask.prefix = prefix;
  update();
}

// In the drawing of attention the query of this step stands out; encoder heads have no steps.
function markQuery() {
  for (const query of document.querySelectorAll("#card .query"))
    query.classList.toggle("at", view.head.kind !== "enc-self" && ask.step !== null && Number(query.dataset.query) === ask.step);
}
