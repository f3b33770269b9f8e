// The score against open heads: every curve with its band, every state of pruning as a point with its interval.

// Colours, dashes and markers are those of report/palette.py; page.py writes a look for each curve.
const PLAIN = { colour: "var(--soft)", dash: "none", marker: "o" };
const lookOf = (curve) => (data.looks ?? {})[curve.look] ?? PLAIN;
const colours = (curve) => ({ "--k": lookOf(curve).colour, "--dash": lookOf(curve).dash });

function drawCurves() {
  const curves = (data.curves ?? []).filter((curve) => (curve.points ?? []).some((point) => isNumber(point.value)));
  const states = [...SERIES]
    .filter(([name]) => name === view.series || isLearned(name)) // the others are the points of a curve
    .sort(([a], [b]) => (a === view.series) - (b === view.series)) // the slider's own are drawn last, on top
    .flatMap(([, own]) => own)
    .filter((state) => isNumber(state.value));
  byId("curves").hidden = !curves.length && !states.length;
  if (byId("curves").hidden) return;
  const said = curveFinding();
  byId("curves-title").textContent = said && said !== byId("title").textContent ? said : `${METRIC} against open heads`;
  const shown = curves.filter((curve) => !view.hidden.has(curve.name));
  const width = Math.max(280, byId("chart").clientWidth);
  const height = Math.round(Math.min(400, 180 + width * 0.28));
  const [left, right, top, bottom] = [36, width - 14, 12, height - 40];
  const all = [...curves.flatMap((curve) => curve.points), ...states];
  const most = Math.max(...all.map((point) => point.heads_open), TOTAL);
  const high = Math.max(...all.flatMap((point) => [point.value, point.high]).filter(isNumber));
  const step = high > 50 ? 20 : high > 20 ? 10 : high > 8 ? 5 : 2;
  const highest = Math.ceil((high * 1.02) / step) * step;
  const ceiling = high <= 100 ? Math.min(100, highest) : highest; // what is measured out of 100 ends there
  const x = (heads) => left + ((most - heads) / most) * (right - left);
  const y = (value) => bottom - (value / ceiling) * (bottom - top);
  const ticks = [];
  for (let value = 0; value <= ceiling; value += step)
    ticks.push(line(left, y(value), right, y(value), { class: "grid" }), writeBefore(left - 8, y(value) + 4, String(value)));
  const apart = Math.max(1, Math.ceil(most / (width < 480 ? 5 : 9)));
  const nice = [1, 2, 4, 5, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128].find((size) => size >= apart) ?? apart;
  const centred = { "text-anchor": "middle" };
  for (let heads = 0; heads <= most; heads += nice)
    ticks.push(line(x(heads), bottom, x(heads), bottom + 4, { class: "tick" }), write(x(heads), bottom + 18, String(heads), centred));
  ticks.push(write((left + right) / 2, height - 4, "open heads (fewer to the right)", { ...centred, class: "axis" }));
  const drawn = shown.map((curve) => curveLine(curve, asideOf(curve, shown, states, x, y), y));
  const here = x(view.state.heads_open);
  const rule = SERIES.size ? line(here, top, here, bottom, { class: "here" }) : null;
  const points = states.map((state) => statePoint(state, x, y));
  const words = `${METRIC} against open heads. ${states.map((state) => pointWords(state.label, state)).join("; ")}`;
  byId("chart").replaceChildren(svg(width, height, { width, height, role: "img", "aria-label": words }, ticks, rule, drawn, points));
  drawCurveLegend(curves, states.length > 0);
}

// What is left untrained at the number of heads of the page's learned gates, or at half of them, beside what those keep.
function curveFinding() {
  const untrained = (data.curves ?? []).filter((curve) => !curve.trained && curve.points?.some((point) => isNumber(point.value)));
  if (!untrained.length || data.unlearned) return null;
  const learned = view.state.learned && isNumber(view.state.value) ? view.state : null;
  const wanted = learned?.heads_open ?? OF_MODEL / 2;
  const away = (point) => Math.abs(point.heads_open - wanted);
  const points = untrained.map((curve) => curve.points.reduce((one, other) => (away(other) < away(one) ? other : one)));
  const best = points.reduce((one, other) => (other.value > one.value ? other : one));
  const words = `Untrained, ${best.heads_open} of ${OF_MODEL} heads keep ${text(best.value, 1)} ${METRIC}`;
  if (!learned) return isNumber(data.base_value) ? words.replace(METRIC, `of ${text(data.base_value, 1)} ${METRIC}`) : words;
  return `${words}; learned gates, after training, ${text(learned.value, 1)}${best.heads_open === learned.heads_open ? "" : ` with ${learned.heads_open}`}`;
}

const pointWords = (label, point) => `${label}: ${point.heads_open} heads, ${scoreWords(point)}`;

// x, moved aside for a single point that would lie on that of another curve or state.
function asideOf(curve, shown, states, x, y) {
  const single = (other) => other.points.length === 1;
  if (!single(curve)) return x;
  const [point] = curve.points;
  const near = (other) => other.heads_open === point.heads_open && Math.abs(y(other.value) - y(point.value)) < 14;
  const before = shown.slice(0, shown.indexOf(curve)).filter((other) => single(other) && near(other.points[0])).length;
  const over = before + states.some(near);
  return (heads) => x(heads) + 16 * over * (x(heads) > x(0) - 40 ? -1 : 1);
}

function curveLine(curve, x, y) {
  const points = curve.points.filter((point) => isNumber(point.value)).sort((a, b) => b.heads_open - a.heads_open);
  const banded = points.filter((point) => isNumber(point.low) && isNumber(point.high));
  const path = (list, key) => list.map((point) => `${x(point.heads_open).toFixed(1)},${y(point[key]).toFixed(1)}`).join("L");
  return el(
    "g",
    { class: "curve", style: colours(curve) },
    banded.length > 1 ? el("path", { class: "band", d: `M${path(banded, "high")}L${path([...banded].reverse(), "low")}Z` }) : null,
    el("path", { class: "line", d: "M" + path(points, "value") }),
    points.map((point) => {
      const d = marker(lookOf(curve).marker, x(point.heads_open), y(point.value));
      return el("path", { class: "point", d }, el("title", {}, pointWords(curve.name, point)));
    }),
  );
}

// The shape of one of matplotlib's markers, or one like it.
function marker(shape, x, y, r = 3.2) {
  if (shape === "s" || shape === "8") return `M${x - r},${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`;
  if (shape === "v") return `M${x},${y + r + 1}L${x + r + 1},${y - r}H${x - r - 1}Z`;
  if ("^<>".includes(shape)) return `M${x},${y - r - 1}L${x + r + 1},${y + r}H${x - r - 1}Z`;
  if ("Dd".includes(shape)) return `M${x},${y - r - 1}L${x + r + 1},${y}L${x},${y + r + 1}L${x - r - 1},${y}Z`;
  if ("XP".includes(shape)) return `M${x - r},${y - r}L${x + r},${y + r}M${x - r},${y + r}L${x + r},${y - r}`;
  return `M${x - r},${y}a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`;
}

const stateClass = (learned, mine) => "state" + (learned ? " learned" : "") + (mine ? "" : " aside");

function statePoint(state, x, y) {
  const [cx, cy] = [x(state.heads_open), y(state.value)];
  const chosen = state === view.state;
  const anchor = cx > x(0) - 60 ? "end" : cx < 80 ? "start" : "middle";
  const mine = SERIES.get(view.series).includes(state); // of the slider; the others stand behind, smaller
  return el(
    "g",
    { class: stateClass(state.learned, mine) + (chosen ? " chosen" : ""), onclick: mine ? () => chooseState(state) : null },
    mine && isNumber(state.low) ? line(cx, y(state.low), cx, y(state.high)) : null,
    el("circle", { cx, cy, r: 13, class: "reach" }),
    el("circle", { cx, cy, r: chosen ? 6.5 : mine ? 4.5 : 2.6, class: "dot" }),
    chosen ? write(cx, cy < 42 ? cy + 26 : cy - 15, `${state.label}: ${text(state.value, 1)}`, { "text-anchor": anchor, class: "halo" }) : null,
    el("title", {}, pointWords(state.label, state)),
  );
}

// Curves of one name are told apart by a number.
function nameCurves() {
  const names = (data.curves ?? []).map((curve) => curve.name);
  for (const [i, curve] of (data.curves ?? []).entries()) {
    curve.look = curve.name;
    if (names.indexOf(curve.name) !== names.lastIndexOf(curve.name)) curve.name = `${curve.name} ${i + 1}`;
  }
}

function stateKey(words, learned, mine) {
  const dot = el("circle", { cx: 10, cy: 6, r: mine ? 4.5 : 2.6, class: "dot" });
  const drawing = el("g", { class: stateClass(learned, mine) }, mine ? line(10, 0, 10, 12) : null, dot);
  return span("key", [svg(20, 12, { width: 20, height: 12, ...HIDDEN }, drawing), words]);
}

const isLearned = (series) => Boolean(SERIES.get(series)?.at(-1)?.learned);

function drawCurveLegend(curves, states) {
  const sample = (curve) => {
    const drawn = [el("path", { class: "line", d: "M1,6H33" }), el("path", { class: "point", d: marker(lookOf(curve).marker, 17, 6) })];
    return svg(34, 12, { width: 34, height: 12, class: "curve", style: colours(curve), ...HIDDEN }, drawn);
  };
  const systems = (data.states ?? []).map(({ series, beam }) => ({ name: series ?? "steps", beam }));
  const searched = [...systems, ...curves].filter(({ beam }) => beam);
  const beams = [...new Set(searched.map(({ name, beam }) => `${name} beam ${beam}`))];
  const differ = new Set(searched.map(({ beam }) => beam)).size > 1;
  const warning = `Decoded with different beams, so small differences between these say nothing: ${list(beams)}.`;
  byId("curves-note").textContent = differ ? warning : "";
  const others = states ? [...SERIES.keys()].filter((name) => name !== view.series && isLearned(name)) : [];
  const curveButtons = curves.map((curve, number) => {
    const hidden = view.hidden.has(curve.name);
    const onclick = () => {
      hidden ? view.hidden.delete(curve.name) : view.hidden.add(curve.name);
      drawCurves();
      byId("chart-legend").querySelectorAll("button")[number].focus();
    };
    return button({ "aria-pressed": !hidden, title: "show or hide", onclick }, sample(curve), curve.trained ? curve.name : `${curve.name}, untrained`);
  });
  byId("chart-legend").replaceChildren(
    ...(states ? [stateKey(`${view.series} (chosen above)`, isLearned(view.series), true)] : []),
    ...others.map((name) => stateKey(`${name} (choose it above)`, isLearned(name), false)),
    ...curveButtons,
  );
}
